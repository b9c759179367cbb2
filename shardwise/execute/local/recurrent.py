"""recurrent on shares."""
