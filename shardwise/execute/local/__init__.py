"""Operators on shares: what every rank runs in place of an operator of the graph.

views, windows, convolution, pooling, resampling   rows of neighbours, local sizes
plain, products, reductions                        the overload, terms of sums
normalisation, softmax, losses, attention          exact forms with split statistics
lookup, scatter, experts                           rows by computed indices
factories, random_numbers                          what is made without inputs, or by chance
gathered                                           the form that is always right
"""

from shardwise.execute.local.build import LocalOperator, local_operator

__all__ = ["LocalOperator", "local_operator"]
