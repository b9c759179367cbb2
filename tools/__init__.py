"""Programs for developers; not part of what is installed."""
