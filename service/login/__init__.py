"""Logins by OpenID Connect: the provider identifies a person, our rules say what they may do."""
