"""The node agent: leases, launches and reports on one host; no database."""
