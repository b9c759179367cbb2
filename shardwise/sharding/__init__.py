"""What a split does to tensors: layouts, patterns of groups, micro-batches, precision."""
