"""Logins by OpenID Connect: the provider says who somebody is, our rules what he or she may do."""
