"""The parts of a cluster: gangs, inventories, heartbeats, reports, measurements, launches."""
