"""The library as commands ask it: what a client of the service has too."""

from shardwise.advise import curve, frontier, quote
from shardwise.solve import solve

__all__ = ["curve", "frontier", "quote", "solve"]
