"""convolution on shares."""
