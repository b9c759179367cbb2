"""A strategy of the whole model in a few numbers, and its name.

    TP 8 (SP) × DP 8 (ZeRO-1)        products by weights divide columns or rows 8 times
    Ulysses 8 × FSDP 64              products divide positions, attention the heads over the same
                                     devices; parameters are in shards over all 64
    ring CP 8 × FSDP 8               attention divides positions too, and keys and values go round
    EP 4 × DP 8                      experts 4 times, over devices that divide samples elsewhere

docs/strategies.md explains the words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple


class Degrees(NamedTuple):
    """Numbers of shares per role of a group's configuration; `repeated` ranks do the same work."""

    model: int = 1
    expert: int = 1
    position: int = 1
    batch: int = 1
    repeated: int = 1


class Sharding(NamedTuple):
    """A ZeRO stage over `ranks`; `inside`: all within a node."""

    stage: int
    ranks: int
    inside: bool


PLAIN = Sharding(0, 1, True)


@dataclass(frozen=True)
class Uniform:
    """One strategy for every layer alike.

    `products` are the degrees of products by weights, `attention` those of products without,
    `experts` those of a mixture's experts; None where the model has none. `sharding` is that of
    parameters. `sequence` says that light operators divide positions over the devices that divide
    the model in products; `ring` that keys and values go round where attention divides positions,
    which sees all of them gathered otherwise.
    """

    products: Degrees
    attention: Degrees | None
    experts: Degrees | None
    sharding: Sharding
    sequence: bool = False
    ring: bool = False

    @property
    def plain(self) -> Uniform:
        """The same with attention and experts split as the products."""
        attention = self.attention and self.products._replace(expert=1)
        return replace(self, attention=attention, experts=self.experts and self.products)

    @property
    def ulysses(self) -> int | None:
        """The number of devices over which attention divides heads while products divide positions.

        None if attention or experts do not match the products.
        """
        own, of = self.products, self.attention or self.products
        if of.batch != own.batch or of.model % own.model or of.repeated != own.repeated:
            return None
        times = of.model // own.model
        if of.position * times != own.position:
            return None
        experts = self.experts or own
        if experts != own and (experts.expert == 1 or experts.repeated > own.repeated):
            return None
        return times

    def fully_sharded(self, gpus: int) -> bool:
        """Returns whether samples and parameters are sharded over all devices."""
        return self.products.batch == self.sharding.ranks == gpus and self.sharding.stage == 3

    def name(self, *, of_tokens: bool) -> str:
        """Returns the degrees and the sharding in words; positions are tokens or pixels."""
        own, shard = self.products, self.sharding
        ulysses = self.ulysses or 1
        within = f" ({'SP' if of_tokens else 'spatial'})" if self.sequence and own.model > 1 else ""
        factors = [
            f"{word} {shares}{note}"
            for word, shares, note in (
                ("TP", own.model, within),
                ("EP", (self.experts or own).expert, ""),
                ("Ulysses", ulysses, ""),
                (self._positions(ulysses, of_tokens), own.position // ulysses, ""),
                ("replicated", own.repeated, ""),
            )
            if shares > 1
        ]
        data, note = _data(own, shard)
        factors += [data] if data else []
        return (" × ".join(factors) or "one GPU") + note

    def _positions(self, ulysses: int, of_tokens: bool) -> str:
        """Returns the word for positions that attention divides as products do."""
        if not of_tokens:
            return "spatial"
        return "CP" if not self.ring else "ring" if ulysses > 1 else "ring CP"


def _data(own: Degrees, shard: Sharding) -> tuple[str, str]:
    """Returns the factor that divides samples or parameters, if there is one, and the stage."""
    every = prod((own.position, own.batch, own.repeated))
    usual = own.batch if own.batch > 1 else every
    if shard.stage == 3 and shard.ranks >= usual:
        return f"FSDP {shard.ranks}", ""
    if shard.stage == 3 and shard.inside and own.batch > 1:
        return f"HSDP {own.batch}", f" (shards of {shard.ranks})"
    over = "" if shard.ranks == usual else f" over {shard.ranks}"
    note = f" (ZeRO-{shard.stage}{over})" if shard.stage else ""
    return (f"DP {own.batch}" if own.batch > 1 else ""), note
