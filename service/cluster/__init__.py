"""What a cluster is made of: gangs, inventories, heartbeats, reports, measurements, launches."""
