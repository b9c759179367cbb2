"""Each rank's list for a step: actions of the schedule and transfers.

All ranks take their lists from one order of the whole step, that of the schedule run with equal
times. So two ranks begin the transfers between them in the same order over all cuts, which some
transports (NCCL) need and others (gloo) do not: a transfer that is waited for has always begun. A
transfer is sent right after the action that makes it. It is requested one action before its use, so
that it arrives during that action, but never before an earlier transfer. Between two stages on one
rank there are no transfers.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from shardwise.errors import ShardwiseError
from shardwise.pipeline.actions import Action, Kind, Schedule
from shardwise.pipeline.simulate import StageTimes, simulate


@dataclass(frozen=True)
class Transfer:
    """A transfer from one stage to a neighbour: tensors of a micro-batch, or the gradients of
    received ones. `number` is its position among all transfers of the step, `ranks` are those of
    the two stages, the lower first."""

    number: int
    source: int
    target: int
    micro_batch: int
    ranks: tuple[int, int]

    @property
    def is_forward(self) -> bool:
        """Whether it goes towards the last stage: tensors, not gradients."""
        return self.source < self.target

    @property
    def cut(self) -> int:
        """The cut that it crosses: the one behind this stage."""
        return min(self.source, self.target)

    def __str__(self) -> str:
        what = "tensors" if self.is_forward else "gradients"
        return f"{what} of micro-batch {self.micro_batch} from stage {self.source}"


Item = Action | Transfer
"""One entry of a rank's list: an action, or a transfer that is begun, sent or asked for."""


def forward_only(schedule: Schedule) -> Schedule:
    """Returns only a schedule's forwards."""
    ranks = tuple(
        tuple(action for action in actions if action.kind is Kind.FORWARD)
        for actions in schedule.ranks
    )
    return Schedule(schedule.name, schedule.placement, schedule.micro_batches, ranks)


def lists_of(
    schedule: Schedule, carries: Sequence[bool], returns: Sequence[bool]
) -> tuple[tuple[Item, ...], ...]:
    """Returns each rank's list under a schedule.

    `carries` says for each cut whether tensors cross it, `returns` whether gradients come back.
    Raises `BadInput` for a schedule whose ranks deadlock.
    """
    between: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
    for transfer in _transfers(schedule, carries, returns):
        between[transfer.ranks].append(transfer)
    lists = []
    for rank, actions in enumerate(schedule.ranks):
        stages = frozenset(schedule.placement.stages_of(rank))
        place = {_made_or_read(a): n for n, a in enumerate(actions) if a.kind is not Kind.WEIGHTS}
        before: dict[int, list[Transfer]] = defaultdict(list)
        after: dict[int, list[Transfer]] = defaultdict(list)
        for ranks, over in between.items():
            if rank not in ranks:
                continue
            for transfer, position in zip(over, _positions(over, stages, place), strict=True):
                (after if transfer.source in stages else before)[position].append(transfer)
        items: list[Item] = []
        for number, action in enumerate(actions):
            asked = sorted(before[number], key=lambda t: t.number)
            items += [*asked, action, *after[number]]
        lists.append(tuple(items))
    return tuple(lists)


_Turn = tuple[int, bool, int]
"""A stage, whether it runs forward, and a micro-batch."""


def _made_or_read(action: Action) -> _Turn:
    """Returns the turn of an action that a transfer comes from or goes to."""
    return action.stage, action.kind is Kind.FORWARD, action.micro_batch


def _equal_times(schedule: Schedule) -> list[StageTimes]:
    split = any(a.kind is Kind.WEIGHTS for actions in schedule.ranks for a in actions)
    return [StageTimes(1.0, 1.0, 1.0 if split else 0.0)] * schedule.stages


def _transfers(
    schedule: Schedule, carries: Sequence[bool], returns: Sequence[bool]
) -> list[Transfer]:
    """Returns the transfers of a step in the order of their making."""
    spans = simulate(schedule, _equal_times(schedule)).spans_s
    made = sorted(
        (end, action.stage, action)
        for actions, of_rank in zip(schedule.ranks, spans, strict=True)
        for action, (_, end) in zip(actions, of_rank, strict=True)
        if action.kind is not Kind.WEIGHTS
    )
    rank_of = schedule.placement.rank_of
    transfers: list[Transfer] = []
    for _, stage, action in made:
        forward = action.kind is Kind.FORWARD
        target = stage + 1 if forward else stage - 1
        cut = min(stage, target)
        if not (0 <= cut < schedule.stages - 1 and (carries if forward else returns)[cut]):
            continue
        low, high = sorted((rank_of(stage), rank_of(target)))
        if low != high:
            number = len(transfers)
            transfers.append(Transfer(number, stage, target, action.micro_batch, (low, high)))
    return transfers


def _positions(
    over: Sequence[Transfer], stages: Collection[int], place: Mapping[_Turn, int]
) -> list[int]:
    """Returns for the transfers between two ranks the action after which the one that has `stages`
    sends them, or before which it asks for them."""

    def action_of(transfer: Transfer) -> int:
        stage = transfer.source if transfer.source in stages else transfer.target
        return place[stage, transfer.is_forward, transfer.micro_batch]

    positions = [0] * len(over)
    latest = max(place.values(), default=0) + 1
    for n in range(len(over) - 1, -1, -1):
        if over[n].source in stages:
            latest = positions[n] = action_of(over[n])
        else:
            latest = positions[n] = min(max(action_of(over[n]) - 1, 0), latest)
    earliest = 0
    for n, transfer in enumerate(over):
        if transfer.source in stages:
            earliest = positions[n] + 1
        else:
            positions[n] = max(positions[n], earliest)
    return positions


def require_end(lists: Sequence[Sequence[Item]]) -> None:
    """Walks the lists of all ranks together; raises `ShardwiseError` for a deadlock.

    This is stricter than any transport: transfers between two ranks happen one after another, each
    once both sides have begun it, in each side's order.
    """
    walks = [_Walk(rank, items) for rank, items in enumerate(lists)]
    pairs = sorted({i.ranks for items in lists for i in items if isinstance(i, Transfer)})
    come: set[Transfer] = set()
    moved = True
    while moved:
        moved = sum(walk.advance(come) for walk in walks) > 0
        for low, high in pairs:
            ours, theirs = walks[low].begun[low, high], walks[high].begun[low, high]
            while ours and theirs:
                first, other = ours.popleft(), theirs.popleft()
                if first != other:
                    raise ShardwiseError(
                        f"rank {low} begins {first} where rank {high} begins {other}"
                    )
                come.add(first)
                moved = True
    for walk in walks:
        if walk.rest:
            raise ShardwiseError(f"rank {walk.rank} waits for ever: {walk.rest[0]} comes next")
        for transfer in (t for queue in walk.begun.values() for t in queue):
            raise ShardwiseError(f"rank {walk.rank} alone begins {transfer}")


class _Walk:
    """A rank's position in its list, and the transfers that it has begun, by peer."""

    def __init__(self, rank: int, items: Sequence[Item]) -> None:
        self.rank = rank
        self.rest = deque(items)
        self.begun: defaultdict[tuple[int, int], deque[Transfer]] = defaultdict(deque)
        self._stages = {item.stage for item in items if isinstance(item, Action)}
        self._needed: dict[_Turn, Transfer] = {}

    def advance(self, come: set[Transfer]) -> bool:
        """Advances until something is missing; returns whether it advanced at all."""
        before = len(self.rest)
        while self.rest:
            item = self.rest[0]
            if isinstance(item, Transfer):
                self.begun[item.ranks].append(item)
                if item.target in self._stages:
                    turn = item.target, item.is_forward, item.micro_batch
                    self._needed[turn] = item
            elif item.kind is not Kind.WEIGHTS:
                needed = self._needed.get(_made_or_read(item))
                if needed is not None and needed not in come:
                    break
            self.rest.popleft()
        return len(self.rest) < before
