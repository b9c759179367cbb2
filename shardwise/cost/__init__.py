"""The cost of a strategy: the terms of every group and crossing, and the problem that sums them."""
