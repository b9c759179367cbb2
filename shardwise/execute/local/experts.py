"""experts on shares."""
