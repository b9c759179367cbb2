"""Hosts with agents, and what runs on them."""
