"""Calls of the operators in `descriptions.recurrent`."""

from shardwise.tdl.examples.cases import Given, case, give


def _layer(name: str, gates: int, batch_first: bool, layers: int = 1) -> Given:
    states = 2 if name == "lstm" else 1
    shapes: dict[str, tuple[int, ...]] = {"input": (4, 6, 8) if batch_first else (6, 4, 8)}
    names = [f"hx.{n}" for n in range(states)] if states > 1 else ["hx"]
    shapes |= dict.fromkeys(names, (layers, 4, 10))
    for n in range(layers):
        weights = (
            (gates * 10, 8 if n == 0 else 10),
            (gates * 10, 10),
            (gates * 10,),
            (gates * 10,),
        )
        shapes |= {f"params.{4 * n + k}": shape for k, shape in enumerate(weights)}
    return case(
        f"{name}.input",
        shapes,
        has_biases=True,
        num_layers=layers,
        dropout=0.0,
        train=True,
        bidirectional=False,
        batch_first=batch_first,
    )


def _cell(name: str, gates: int) -> Given:
    shapes: dict[str, tuple[int, ...]] = {"input": (4, 8)}
    shapes |= {"hx.0": (4, 6), "hx.1": (4, 6)} if name == "lstm" else {"hx": (4, 6)}
    shapes |= {"w_ih": (gates * 6, 8), "w_hh": (gates * 6, 6)}
    return case(f"{name}_cell.default", {**shapes, "b_ih": (gates * 6,), "b_hh": (gates * 6,)})


_PACKED = {
    "data": (10, 8),
    "batch_sizes": (4,),
    "params.0": (10, 8),
    "params.1": (10, 10),
    "params.2": (10,),
    "params.3": (10,),
}


def _packed(name: str, gates: int) -> Given:
    shapes = {
        n: (gates * s[0], *s[1:]) if n.startswith("params") else s for n, s in _PACKED.items()
    }
    names = ["hx.0", "hx.1"] if name == "lstm" else ["hx"]
    return case(
        f"{name}.data",
        shapes | dict.fromkeys(names, (1, 4, 10)),
        given={"batch_sizes": [4, 3, 2, 1]},
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=False,
        bidirectional=False,
    )


_GATES = (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1))

give(
    *(_layer(name, gates, first) for name, gates in _GATES for first in (False, True)),
    _layer("lstm", 4, False, layers=2),
    *(_cell(name, gates) for name, gates in _GATES),
    *(_packed(name, gates) for name, gates in _GATES),
    case(
        "_pack_padded_sequence.default",
        {"input": (6, 4, 8), "lengths": (4,)},
        given={"lengths": [6, 4, 4, 2]},
        batch_first=False,
    ),
    case(
        "_pad_packed_sequence.default",
        {"data": (10, 8), "batch_sizes": (4,)},
        given={"batch_sizes": [4, 3, 2, 1]},
        batch_first=False,
        padding_value=0.0,
        total_length=4,
    ),
)
