"""The server under the application: connections, heads of requests, TLS, all within bounds."""
