"""The OpenAPI document and the shapes it publishes."""
