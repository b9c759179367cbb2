"""Calls of the operators in `descriptions.reductions`."""

from shardwise.tdl.examples.cases import give, one

give(
    one("sum.dim_IntList", 4, 6, 8, dim=[1]),
    one("sum.dim_IntList", 4, 6, 8, dim=[0, 2], keepdim=True),
    one("sum.default", 4, 6),
    one("mean.dim", 4, 6, 8, dim=[-1], keepdim=True),
    one("mean.default", 4, 6),
    *(one(f"{name}.default", 4, 6, 8, dim=[2]) for name in ("amax", "amin")),
    *(one(f"{name}.default", 4, 6) for name in ("max", "min", "prod")),
    *(one(f"{name}.dim", 4, 6, dim=1, keepdim=keep) for name in ("max", "min") for keep in (0, 1)),
    one("prod.dim_int", 4, 6, dim=0),
    *(one(f"{name}.default", 4, 6, integers={"self": 2}) for name in ("any", "all")),
    *(one(f"{name}.dim", 4, 6, dim=1, integers={"self": 2}) for name in ("any", "all")),
    *(one(f"{name}.dims", 4, 6, dim=[1], integers={"self": 2}) for name in ("any", "all")),
    *(one(f"{name}.dim", 4, 6, dim=[1]) for name in ("var", "std")),
    *(one(f"{name}.correction", 4, 6, dim=[1], correction=0) for name in ("var", "std")),
    *(one(f"{name}.default", 4, 6) for name in ("var", "std")),
    one("logsumexp.default", 4, 6, dim=[1]),
    one("linalg_vector_norm.default", 4, 6, ord=2, dim=[1]),
    one("cumsum.default", 4, 6, dim=1),
    one("cumprod.default", 4, 6, dim=0),
    *(one(f"{name}.default", 4, 6, dim=1) for name in ("argmax", "argmin")),
    one("argmax.default", 4, 6, dim=None),
    one("topk.default", 4, 6, k=2, dim=1),
    one("sort.default", 4, 6, dim=0),
    one("sort.stable", 4, 6, stable=True, dim=0),
)
