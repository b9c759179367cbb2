"""Steps in a browser."""
