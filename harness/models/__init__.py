"""Models that are captured, exported and compared."""
