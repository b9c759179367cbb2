"""The learned strategy maker (HeteroG §4.1) for devices of several kinds: a graph network that
proposes strategies, its training, and its comparison with the search (docs/policy.md)."""
