"""What a strategy costs: the terms of every group and crossing, and the problem they add up to."""
