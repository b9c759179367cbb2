"""Pages of docs/reference that are read from the service's code, each by a module of its own."""
