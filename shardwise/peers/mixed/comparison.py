"""Every system by replayed steps on devices of several kinds (HeteroG §6).

    HeteroG's baselines   even or proportional samples, parameter server or collective
    Horovod, FlexFlow, Post
    one kind              each group of devices alone, and all devices as the slowest
    ours                  the search by replayed time over all of this

HetPipe is left out: it needs pipelines of unlike devices, which are not priced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from msgspec import UNSET
from msgspec.structs import replace as replace_fields

from shardwise.answers.certificates import certificate
from shardwise.cost.options import ALWAYS, NEVER, Options, Progress
from shardwise.documents import Comparison
from shardwise.documents.common import Certificate
from shardwise.errors import Cancelled, InternalError
from shardwise.hardware import Blocks, Devices, Hardware, JointLinks, RingLinks
from shardwise.peers import flexflow as flexflow_of_one_kind
from shardwise.peers.answer import Answer
from shardwise.peers.document import ALL, OURS, SPLITS, replayed_document
from shardwise.peers.mixed import alone, flexflow, post
from shardwise.peers.mixed.data_parallel import HOROVOD, baselines, horovod
from shardwise.peers.mixed.space import Space, lacks
from shardwise.peers.papers import Peer
from shardwise.search.chosen import fastest, lowest_peak, time_gap
from shardwise.search.fitting import search_fitting
from shardwise.search.mixed.search import MixedDraft, MixedSearch
from shardwise.search.search import Search, Subject

LinksOf = Callable[[Blocks], JointLinks]


def compare_mixed(
    subject: Subject,
    hardware: Hardware,
    bundle: Devices,
    options: Options,
    progress: Progress,
    proposals: int | None,
    seed: int,
) -> Comparison:
    """Returns the comparison by replayed steps on a bundle; raises as `compare`."""
    ours = search_fitting(subject, hardware, bundle, options, progress)
    if any(search.solution.status == "cancelled" for search in ours):
        raise Cancelled
    asked = _Asked(subject, Blocks.of(hardware, bundle), options, progress, ours)
    plain = options.zero == (0,) and options.recomputation == NEVER
    space = SPLITS if plain else ALL
    answers: list[tuple[str, Answer]] = []
    if 0 in options.zero and options.recomputation != ALWAYS:
        answers += [(SPLITS, one.answer(progress)) for one in asked.plain(proposals, seed)]
    answers += [(space, one.answer(progress)) for one in asked.of_one_kind()]
    together = _own_answer(ours)
    own = _or_alone(together, [answer for _, answer in answers], ours)
    answers.append((space, own))
    return replayed_document(
        ours,
        [(of, _with_lacks(answer, ours)) for of, answer in answers],
        None if own is together else _proof_of_alone(own, ours),
    )


@dataclass(frozen=True)
class _Asked:
    """A question, and the systems that it is asked of."""

    subject: Subject
    blocks: Blocks
    options: Options
    progress: Progress
    ours: Sequence[Search]

    def plain(self, proposals: int | None, seed: int) -> Iterator[Peer]:
        """Yields the systems without ZeRO and recomputation."""
        spaces = self._plain_spaces
        yield from baselines(spaces)

        def ring(space: Space) -> Space:
            return self._plain_space(space.micro_batches, RingLinks)

        yield Peer(HOROVOD, "Horovod", lambda _: horovod(spaces, ring))
        count = proposals or flexflow.PROPOSALS
        walk = partial(flexflow.flexflow, proposals=count, seed=seed)
        method, title = flexflow_of_one_kind.METHOD, flexflow_of_one_kind.TITLE
        yield Peer(method, title, partial(self._fitting, walk))
        sample = partial(post.post, samples=min(post.SAMPLES, count), seed=seed)
        yield Peer(post.METHOD, post.TITLE, partial(self._fitting, sample))

    def of_one_kind(self) -> Iterator[Peer]:
        """Yields the answers of systems for devices of one kind."""
        names = alone.groups_of(self.blocks.bundle)
        limit = self.ours[0].limit_bytes
        for name in names:

            def ask(progress: Progress, name: str = name) -> Answer:
                return alone.only(self.subject, self.blocks, name, self.options, limit, progress)

            yield Peer(alone.only_method(name), f"Only {name}", ask)
        if len(names) > 1:
            ask_slowest = partial(
                alone.slowest, self.subject, self.blocks, self.options, self._whole_space
            )
            yield Peer(alone.SLOWEST, alone.SLOWEST_TITLE, ask_slowest)

    def _fitting(self, ask: Callable[[Space, Progress], Answer], progress: Progress) -> Answer:
        """Returns the answer with the least number of micro-batches with which it fits, or where
        none does with the number of the least peak."""
        answers: list[Answer] = []
        for space in self._plain_spaces:
            answers.append(ask(space, progress))
            if answers[-1].points[0].ranking_bytes <= space.limit_bytes:
                break
        return min(answers, key=lambda answer: answer.points[0].ranking_bytes)

    @cached_property
    def _plain_spaces(self) -> list[Space]:
        """The spaces of all numbers of micro-batches that have samples enough, ascending."""
        counts = sorted(search.micro_batches for search in self.ours)
        return [self._plain_space(count, JointLinks) for count in counts]

    def _plain_space(self, micro_batches: int, links_of: LinksOf) -> Space:
        plain = replace(self.options, zero=(0,), recompute=NEVER)
        return self._built(plain, micro_batches, links_of, keep_beaten=True)

    def _whole_space(self, micro_batches: int) -> Space:
        """Returns the space of our search, which a hopeless number of micro-batches has not
        built."""
        for search in self.ours:
            begun = len(search.time_s) and search.micro_batches == micro_batches
            if begun and isinstance(search, MixedSearch):
                return Space.of(search)
        return self._built(self.options, micro_batches, JointLinks, keep_beaten=False)

    def _built(
        self, options: Options, micro_batches: int, links_of: LinksOf, *, keep_beaten: bool
    ) -> Space:
        draft = MixedDraft.of(
            self.subject,
            self.blocks.hardware,
            self.blocks.bundle,
            options,
            self.progress,
            micro_batches,
            links_of,
        )
        groups = replace(draft.groups, keep_beaten=keep_beaten)
        return Space.of(replace(draft, groups=groups).joined(self.progress))


def _own_answer(ours: Sequence[Search]) -> Answer:
    """Returns our answer: the fastest strategy that fits, or where none does the smallest."""
    title = "This system"
    if not any(len(search.time_s) for search in ours):
        return Answer(OURS[ALL], title, "", reason="no strategy was found within the limits")
    best = fastest(ours)
    chosen = best or lowest_peak(ours)
    search, at = chosen.search, chosen.point
    if not isinstance(search, MixedSearch):
        raise InternalError("a bundle was searched as devices of one kind")
    point = Space.of(search).point(search.solution.choices[at], search.solution.edge_choices[at])
    return Answer(
        OURS[ALL],
        title,
        "the search by replayed time over all that the options allow",
        (point,),
        epsilon=None if best is None else time_gap(ours, best),
        seconds=sum(float(one.solution.seconds) for one in ours),
    )


def _or_alone(own: Answer, others: Sequence[Answer], ours: Sequence[Search]) -> Answer:
    """Returns our answer, which is that of one group alone where that is faster and fits."""
    limit = ours[0].limit_bytes
    alone_of = alone.only_method("")
    best = own.points[0] if own.points and own.points[0].ranking_bytes <= limit else None
    for other in others:
        for point in other.points if other.method.startswith(alone_of) else ():
            fits = point.ranking_bytes <= limit
            if fits and (best is None or point.ranking_s < best.ranking_s):
                name = other.method.removeprefix(alone_of)
                note = f"on the devices of {name} alone; the others stay idle"
                own, best = (
                    replace(own, points=(point,), notes=(note,), epsilon=other.epsilon),
                    point,
                )
    return own


def _proof_of_alone(own: Answer, ours: Sequence[Search]) -> Certificate:
    """Returns what is proven of the answer of one group alone: its own gap, and a bound on its
    strategies and on those of all groups together."""
    said = certificate(ours)
    bound_s = said.time_lower_bound_s
    if own.epsilon is None or not isinstance(bound_s, float):
        return replace_fields(said, epsilon=own.epsilon, time_lower_bound_s=UNSET)
    alone_s = own.points[0].ranking_s / (1.0 + own.epsilon)
    return replace_fields(said, epsilon=own.epsilon, time_lower_bound_s=min(bound_s, alone_s))


def _with_lacks(answer: Answer, ours: Sequence[Search]) -> Answer:
    """Returns the answer with a note of the memory that its best strategy lacks."""
    if not answer.points or any(p.ranking_bytes <= ours[0].limit_bytes for p in answer.points):
        return answer
    least = min(answer.points, key=lambda point: point.ranking_bytes)
    return replace(answer, notes=(*answer.notes, lacks(least)))
