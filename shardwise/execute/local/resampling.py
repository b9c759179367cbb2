"""resampling on shares."""
