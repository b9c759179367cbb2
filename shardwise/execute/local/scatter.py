"""scatter on shares."""
