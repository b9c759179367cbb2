"""Compose without a registry, Prometheus, scraped systems."""
