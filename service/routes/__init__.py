"""Routes: each parses, calls one handler, returns."""
