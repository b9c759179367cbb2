"""Between transport and handlers: who asks, how often, in which transaction, with which body."""
