"""Operators on shares: what every rank runs in place of an operator of the graph.

    plain                                              the overload, terms of sums
    views, windows, convolution, pooling, resampling   rows of neighbours, local sizes
    reductions, softmax, normalisation, losses         exact forms with split statistics
    attention, recurrent, experts                      shares of queries, units and experts
    lookup, scatter                                    rows by computed indices
    factories, random_numbers                          operators without inputs, or random ones
    gathered                                           the form that is always correct

docs/reference/execute-operators.md says which kind has which form.
"""

from shardwise.execute.local.build import LocalOperator, local_operator

__all__ = ["LocalOperator", "local_operator"]
