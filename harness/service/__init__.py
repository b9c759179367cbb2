"""A service as processes, agents that are played, malformed requests, an identity provider."""
