"""Other systems' strategies on devices of several kinds (docs/compare.md, HeteroG §6)."""
