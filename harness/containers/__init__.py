"""Stand-ins for base images, and what drives a container engine."""
