"""Other schedulers, installed or played."""
