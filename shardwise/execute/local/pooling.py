"""pooling on shares."""
