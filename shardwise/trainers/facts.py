"""What a graph shows of a decoder: sizes, norms, biases, positions, dropout, tied embeddings.

Facts are read from the first of equal blocks: products by weights before the core of attention make
queries, keys and values, the first after it is its output, the others are the feed-forward layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardwise.documents.model_facts import Activation, ModelFacts, Norm, Positions
from shardwise.graph import Graph, Operator
from shardwise.graph.step import INTEGERS, step_of
from shardwise.sharding.routing import EXPERT_PRODUCT
from shardwise.trainers.model_sizes import stacks_of
from shardwise.trainers.models import MODELS, Model

EMBEDDING, LINEAR = "aten.embedding.default", "aten.linear.default"
_ATTENTION = "aten.scaled_dot_product_attention.default"
_NORMS: dict[str, Norm] = {
    "aten.layer_norm.default": "LayerNorm",
    "aten.native_layer_norm.default": "LayerNorm",
    "aten.rms_norm.default": "RMSNorm",
    "aten.rsqrt.default": "RMSNorm",
}
_ACTIVATIONS: dict[str, Activation] = {
    "aten.gelu.default": "gelu",
    "aten.tanh.default": "gelu-tanh",
    "aten.silu.default": "silu",
    "aten.relu.default": "relu",
}


def facts_of(graph: Graph) -> ModelFacts | None:
    """Returns what a graph shows, None for what is not a decoder of one stack of equal blocks that
    predicts tokens."""
    stacks = stacks_of(graph)
    if len(stacks) != 1 or not step_of(graph).predicts_tokens:
        return None
    ((stack, layers),) = stacks.items()
    blocks = [_block(graph, f"{stack}{number}") for number in range(layers)]
    weights = [[_shapes(graph, operator) for operator in block] for block in blocks]
    tables = [operator for operator in graph.operators if operator.kind == EMBEDDING]
    tokens = [one for one in tables if _reads(graph, one, _is_tokens)]
    if not tokens or any(one != weights[0] for one in weights):
        return None
    vocabulary, hidden = graph.tensors[tokens[0].inputs[0]].shape
    block = _Block(graph, blocks[0], hidden)
    return ModelFacts(
        layers=layers,
        hidden=hidden,
        vocabulary=vocabulary,
        **block.attention(),
        **{**block.feed_forward(), **block.experts()},
        **block.norms(),
        **_positions(graph, [one for one in tables if one not in tokens], block.core),
        rotary_base=_rotary_base(graph.name, layers, hidden),
        tied=any(
            operator.kind == LINEAR and operator.inputs[1] == tokens[0].inputs[0]
            for operator in graph.operators
        ),
        dropout=_dropout(graph, block.core),
    )


def facts_of_preset(model: Model) -> ModelFacts:
    """Returns the facts of a preset that trainers know."""
    gpt = model.family == "gpt"
    return ModelFacts(
        layers=model.layers,
        hidden=model.hidden,
        vocabulary=model.vocabulary,
        heads=model.heads,
        key_value_heads=model.key_value_heads,
        head_size=128 if model.family == "qwen" else model.hidden // model.heads,
        feed_forward=model.feed_forward,
        gated=not gpt,
        activation="gelu-tanh" if gpt else "silu",
        norm="LayerNorm" if gpt else "RMSNorm",
        norm_epsilon=model.norm_epsilon,
        query_key_norm=model.family == "qwen",
        bias=gpt,
        qkv_bias=gpt,
        positions="learned" if gpt else "rotary",
        rotary_share=None if gpt else 1.0,
        position_rows=model.positions if gpt else None,
        rotary_base=model.rope_theta or None,
        tied=gpt,
        causal=True,
        dropout=0.1 if gpt else 0.0,
        attention_dropout=0.1 if gpt else 0.0,
    )


class _Block:
    """The operators of one block, in order; `core` is that of its attention."""

    def __init__(self, graph: Graph, operators: Sequence[Operator], hidden: int) -> None:
        self._tensors = graph.tensors
        self._operators = operators
        self._hidden = hidden
        cores = [operator for operator in operators if operator.kind == _ATTENTION]
        self.core = cores[0] if len(cores) == 1 else None
        place = operators.index(self.core) if self.core else 0
        before = [one for one in operators[:place] if _weight(graph, one)]
        after = [one for one in operators[place:] if _weight(graph, one)]
        self._experts = [one for one in operators if one.kind == EXPERT_PRODUCT]
        self._made = [self._tensors[one.outputs[0]].shape[-1] for one in before]
        self._heads_made = before
        self._rest = after

    def attention(self) -> dict[str, Any]:
        """Returns heads, biases and dropout of attention, empty where there is not one core."""
        if self.core is None:
            return {}
        _, heads, _, size = self._tensors[self.core.inputs[0]].shape
        # Queries, keys and values together: (heads + 2 × key-value heads) × their size.
        pairs, rest = divmod(sum(self._made) - heads * size, 2 * size)
        attributes = self.core.attributes
        return {
            "heads": heads,
            "key_value_heads": None if rest else pairs,
            "head_size": size,
            "qkv_bias": self._all_have(self._heads_made, self._has_bias),
            "bias": self._all_have(self._rest, self._has_bias),
            "causal": True if attributes.get("is_causal") else self._masked(),
            "attention_dropout": float(attributes.get("dropout_p") or 0.0),
        }

    def feed_forward(self) -> dict[str, Any]:
        """Returns the sizes of the layers behind attention and their activation function."""
        layers = self._rest[1:]
        if self.core is None or len(layers) < 2:
            return {}
        wide = self._tensors[_input(self._tensors, layers[-1])].shape[-1]
        made = sum(self._tensors[one.outputs[0]].shape[-1] for one in layers[:-1])
        first, last = (self._operators.index(one) for one in (layers[0], layers[-1]))
        gated = {wide: False, 2 * wide: True}.get(made)
        return {
            "feed_forward": wide,
            "gated": gated,
            "activation": self._activation(first, last),
            "parallel": not self._reaches(self.core, layers[0]),
        }

    def experts(self) -> dict[str, Any]:
        """Returns the sizes of a mixture's experts and their activation function, empty where there
        are not two products of the same experts."""
        if len(self._experts) != 2:
            return {}
        first, last = self._experts
        count, columns, _ = self._tensors[first.inputs[1]].shape
        wide = self._tensors[last.inputs[1]].shape[2]
        places = [self._operators.index(one) for one in self._experts]
        # What all tokens share leads back to the width of the model, as the experts do.
        shapes = [
            (self._tensors[_input(self._tensors, one)].shape, self._tensors[one.outputs[0]].shape)
            for one in self._rest[1:]
        ]
        shared = [read[-1] for read, made in shapes if made[-1] == self._hidden != read[-1]]
        return {
            "feed_forward": shared[0] if len(shared) == 1 else None,
            "experts": count,
            "experts_per_token": self._tensors[first.inputs[2]].shape[-1],
            "expert_feed_forward": wide,
            "gated": {wide: False, 2 * wide: True}.get(columns),
            "activation": self._activation(*places),
        }

    def norms(self) -> dict[str, Any]:
        """Returns the kind of the two norms of a block; none where it has others."""
        found = [one for one in self._operators if one.kind in _NORMS]
        place = self._operators.index(self.core) if self.core else 0
        whole = [one for one in found if self._width(one) == self._hidden]
        kinds = {_NORMS[one.kind] for one in found}
        epsilons = {self._epsilon(one) for one in whole}
        inside = [one for one in found if one not in whole and self._operators.index(one) < place]
        return {
            "norm": kinds.pop() if len(kinds) == 1 and len(whole) == 2 else None,
            "norm_epsilon": epsilons.pop() if len(epsilons) == 1 else None,
            "query_key_norm": len(inside) == 2,
        }

    def _activation(self, first: int, last: int) -> Activation | None:
        """Returns the activation function between two places; None where there is not one."""
        found = {
            "gelu-tanh" if one.attributes.get("approximate") == "tanh" else _ACTIVATIONS[one.kind]
            for one in self._operators[first:last]
            if one.kind in _ACTIVATIONS
        }
        return found.pop() if len(found) == 1 else None

    def _reaches(self, source: Operator, target: Operator) -> bool:
        """Returns whether an operator of the block reads what another makes."""
        made = set(source.outputs)
        for one in self._operators:
            if made & set(one.inputs):
                made.update(one.outputs)
        return bool(made & set(target.inputs))

    def _masked(self) -> bool | None:
        """Returns False for attention in both directions; None where a mask decides."""
        return None if self.core is not None and len(self.core.inputs) > 3 else False

    def _has_bias(self, operator: Operator) -> bool:
        arguments = operator.attributes.get("tensor_arguments", ())
        return "bias" in arguments or operator.kind == "aten.addmm.default"

    @staticmethod
    def _all_have(operators: Sequence[Operator], has: Callable[[Operator], bool]) -> bool | None:
        """Returns whether all or none of them have it, None where some do."""
        found = {has(one) for one in operators}
        return found.pop() if len(found) == 1 else None

    def _width(self, norm: Operator) -> int | None:
        if norm.kind != "aten.rsqrt.default":
            return int(norm.attributes["normalized_shape"][-1])
        powers = [one for one in self._beside(norm) if one.kind == "aten.pow.Tensor_Scalar"]
        return self._tensors[powers[0].inputs[0]].shape[-1] if powers else None

    def _epsilon(self, norm: Operator) -> float | None:
        if norm.kind != "aten.rsqrt.default":
            value = norm.attributes.get("eps")
        else:
            sums = [one for one in self._beside(norm) if norm.inputs[0] in one.outputs]
            value = sums[0].attributes.get("other") if sums else None
        return float(value) if isinstance(value, int | float) else None

    def _beside(self, operator: Operator) -> list[Operator]:
        """Returns the operators of the same module."""
        return [one for one in self._operators if one.scope == operator.scope]


def _block(graph: Graph, path: str) -> list[Operator]:
    return [one for one in graph.operators if f"{one.scope}.".startswith(f"{path}.")]


def _shapes(graph: Graph, operator: Operator) -> tuple[object, ...]:
    return (operator.kind, *(graph.tensors[name].shape for name in operator.inputs))


def _weight(graph: Graph, operator: Operator) -> bool:
    """Returns whether an operator multiplies by a matrix of parameters."""
    return operator.kind in (LINEAR, "aten.addmm.default", "aten.mm.default") and any(
        graph.tensors[name].role == "parameter" and len(graph.tensors[name].shape) == 2
        for name in operator.inputs
    )


def _input(tensors: Any, operator: Operator) -> str:
    """Returns what a product reads beside its parameters."""
    return next(name for name in operator.inputs if tensors[name].role != "parameter")


def _reads(graph: Graph, operator: Operator, wanted: Callable[[Any], bool]) -> bool:
    return any(wanted(graph.tensors[name]) for name in operator.inputs)


def _is_tokens(tensor: Any) -> bool:
    return tensor.role == "input" and tensor.dtype in INTEGERS


def _positions(graph: Graph, tables: Sequence[Operator], core: Operator | None) -> dict[str, Any]:
    """Returns how positions come in: by a table that is not of tokens, or by rotation."""
    angles = [one for one in graph.operators if one.kind == "aten.cos.default"]
    kind: Positions | None = None
    if tables and not angles:
        kind = "learned"
    elif angles and not tables:
        kind = "rotary"
    rows = graph.tensors[tables[0].inputs[0]].shape[0] if kind == "learned" else None
    share = None
    if kind == "rotary" and core is not None:
        read = angles[0].inputs[0]
        twice = graph.producer[read].kind == "aten.cat.default" if read in graph.producer else True
        turned = graph.tensors[read].shape[-1] * (1 if twice else 2)
        share = turned / graph.tensors[core.inputs[0]].shape[-1]
    return {"positions": kind, "position_rows": rows, "rotary_share": share}


def _dropout(graph: Graph, core: Operator | None) -> float | None:
    """Returns the probability of dropout outside of attention; None where there are several."""
    found = {
        float(one.attributes.get("p", 0.0))
        for one in graph.operators
        if one.kind == "aten.dropout.default" and one.attributes.get("train", True)
    }
    return found.pop() if len(found) == 1 else None if found else 0.0


def _rotary_base(name: str, layers: int, hidden: int) -> float | None:
    """Returns the base of a preset's rotation: a graph has no values."""
    model = MODELS.get(name)
    if model is None or (model.layers, model.hidden) != (layers, hidden):
        return None
    return model.rope_theta or None
