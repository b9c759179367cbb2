"""A plan becomes a program on each rank: local operators on local shards, and collectives."""
