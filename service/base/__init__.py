"""What the service's parts share and what knows none of them."""
