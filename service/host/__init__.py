"""The server and its commands: connections, heads of requests, TLS, broker, backup, start."""
