"""Stand-ins for base images, containers as hosts, and clusters of them."""
