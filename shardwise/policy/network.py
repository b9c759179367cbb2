"""The network's forward pass, written once for numpy and torch.

    h_v   = features of group or place v, projected
    e_uv  = LeakyReLU(a_source · W h_u + a_target · W h_v + a_edge · x_uv)
    h_v  += ELU(Σ_u softmax_u(e_uv) (W h_u + M x_uv) + b), normalised    4 layers, 4 heads
    g_n   = ELU(Σ_{v in n} W h_v / √|n|), with depth and size of the unit
    g     = Transformer(g)                                               4 layers
    k_a   = MLP(mean over places of GELU(share of a at p, h_p), what else a is)
    score = g_n S k_a / √width + s · k_a

A unit has no number and an action neither, so that any number of either will do, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

from shardwise.policy.architecture import Size
from shardwise.policy.arithmetic import Arithmetic, Array
from shardwise.policy.features import Inputs


def scores(
    weights: Mapping[str, Array], inputs: Inputs, size: Size, arithmetic: Arithmetic
) -> Array:
    """Returns the score of every action for every unit, (units, actions)."""
    return _Forward(weights, inputs, size, arithmetic).scores()


class _Forward:
    def __init__(
        self, weights: Mapping[str, Array], inputs: Inputs, size: Size, arithmetic: Arithmetic
    ) -> None:
        self._weights, self._inputs, self._size, self._kit = weights, inputs, size, arithmetic

    def scores(self) -> Array:
        nodes = self._encoded()
        units, actions = self._units(nodes), self._actions(nodes)
        width = sqrt(self._size.hidden)
        bilinear = (units @ self._weights["score.w"]) @ actions.swapaxes(0, 1) / width
        return bilinear + actions @ self._weights["score.action"]

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self._weights[f"{name}.w"] + self._weights[f"{name}.b"]

    def _encoded(self) -> Array:
        """Returns embeddings of groups, then of places, (nodes, width)."""
        kit, inputs = self._kit, self._inputs
        groups = self._linear("group", kit.array(inputs.groups))
        places = self._linear("place", kit.array(inputs.places))
        nodes = kit.normalised(kit.concatenated([groups, places]))
        edges = kit.array(inputs.edges)
        for layer in range(self._size.attention_layers):
            nodes = kit.normalised(nodes + self._attended(f"attention.{layer}", nodes, edges))
        return nodes

    def _attended(self, name: str, nodes: Array, edges: Array) -> Array:
        kit, inputs, weights = self._kit, self._inputs, self._weights
        heads = self._size.attention_heads
        values = (nodes @ weights[f"{name}.w"]).reshape(len(nodes), heads, -1)
        at_source = (values * weights[f"{name}.source"]).sum(-1)
        at_target = (values * weights[f"{name}.target"]).sum(-1)
        into = inputs.into
        attention = kit.take(at_source, inputs.sources) + kit.take(at_target, into.index)
        attention = kit.leaky(attention + edges @ weights[f"{name}.edge"])
        shares = kit.segment_softmax(attention, into)
        message = (edges @ weights[f"{name}.message"]).reshape(len(edges), heads, -1)
        message = (kit.take(values, inputs.sources) + message) * shares[:, :, None]
        summed = kit.segment_sum(message, into).reshape(len(nodes), -1)
        return kit.elu(summed + weights[f"{name}.b"])

    def _units(self, nodes: Array) -> Array:
        """Returns embeddings of the units, (units, hidden)."""
        kit, inputs, weights = self._kit, self._inputs, self._weights
        members = kit.take(nodes, inputs.members)
        summed = kit.segment_sum(members, inputs.units) * kit.array(inputs.unit_scale)
        x = kit.elu(self._linear("unit", summed))
        x = x + kit.array(inputs.unit_features) @ weights["unit.features"]
        for layer in range(self._size.layers):
            x = x + self._self_attended(f"layer.{layer}", kit.normalised(x))
            up = kit.gelu(self._linear(f"layer.{layer}.up", kit.normalised(x)))
            x = x + self._linear(f"layer.{layer}.down", up)
        return kit.normalised(x)

    def _self_attended(self, name: str, x: Array) -> Array:
        heads = self._size.heads
        qkv = self._linear(f"{name}.qkv", x).reshape(len(x), 3, heads, -1)
        q, k, v = (qkv[:, part].swapaxes(0, 1) for part in range(3))
        shares = self._kit.softmax(q @ k.swapaxes(1, 2) / sqrt(self._size.hidden / heads))
        mixed = (shares @ v).swapaxes(0, 1).reshape(len(x), -1)
        return self._linear(f"{name}.out", mixed)

    def _actions(self, nodes: Array) -> Array:
        """Returns embeddings of the actions, (actions, hidden)."""
        kit, inputs, weights = self._kit, self._inputs, self._weights
        places = nodes[len(inputs.groups) :] @ weights["action.place.w"]
        at_places = kit.gelu(self._linear("action.share", kit.array(inputs.shares)) + places)
        mean = (at_places * kit.array(inputs.place_weights)[:, None]).sum(1)
        x = self._linear("action", kit.array(inputs.actions)) + mean @ weights["action.sum.w"]
        return kit.normalised(self._linear("action.out", kit.gelu(kit.normalised(x))))
