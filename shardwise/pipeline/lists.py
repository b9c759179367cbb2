"""What a rank of each stage does in a step: actions of the schedule, and what it sends and gets.

All stages take their lists from one order of the whole step, that of the schedule run with equal
times. So the two sides of a cut begin the transfers over it in one order, which is all that some
transports (NCCL) need and more than others (gloo) do: what is waited for was always begun. A
transfer is sent right after the action that makes it. It is asked for one action before the one
that needs it, so that it comes during that one, but never before what was to be begun before it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardwise.errors import ShardwiseError
from shardwise.pipeline.actions import Action, Kind, Schedule
from shardwise.pipeline.simulate import StageTimes, simulate


@dataclass(frozen=True)
class Transfer:
    """What one stage sends to a neighbour: tensors of a micro-batch, or the gradients of those that
    it got. `number` is its place among all transfers of the step."""

    number: int
    source: int
    target: int
    micro_batch: int

    @property
    def is_forward(self) -> bool:
        """Whether it goes towards the last stage: tensors, not gradients."""
        return self.source < self.target

    @property
    def cut(self) -> int:
        """The cut that it goes over: that behind this stage."""
        return min(self.source, self.target)

    def __str__(self) -> str:
        what = "tensors" if self.is_forward else "gradients"
        return f"{what} of micro-batch {self.micro_batch} from stage {self.source}"


@dataclass(frozen=True)
class Item:
    """One entry of a stage's list: an action, or a transfer that is begun, sent or asked for."""

    action: Action | None = None
    transfer: Transfer | None = None

    def __str__(self) -> str:
        return str(self.action or self.transfer)


def forward_only(schedule: Schedule) -> Schedule:
    """Returns a schedule's forwards alone."""
    ranks = tuple(
        tuple(action for action in actions if action.kind is Kind.FORWARD)
        for actions in schedule.ranks
    )
    return Schedule(schedule.name, schedule.placement, schedule.micro_batches, ranks)


def lists_of(
    schedule: Schedule, carries: Sequence[bool], returns: Sequence[bool]
) -> tuple[tuple[Item, ...], ...]:
    """Returns the list of each stage under a schedule of one stage per rank.

    `carries` says of each cut whether tensors go over it, `returns` whether gradients come back.
    Raises `BadInput` for a schedule whose stages wait for each other for ever.
    """
    over_cut: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in _transfers(schedule, carries, returns):
        over_cut[transfer.cut].append(transfer)
    lists = []
    for stage, actions in enumerate(schedule.ranks):
        place = {(a.kind is Kind.FORWARD, a.micro_batch): n for n, a in enumerate(actions)}
        before: dict[int, list[Transfer]] = defaultdict(list)
        after: dict[int, list[Transfer]] = defaultdict(list)
        for cut in (stage - 1, stage):
            over = over_cut[cut]
            for transfer, position in zip(over, _positions(over, stage, place), strict=True):
                (after if transfer.source == stage else before)[position].append(transfer)
        items: list[Item] = []
        for number, action in enumerate(actions):
            items += [Item(transfer=t) for t in sorted(before[number], key=lambda t: t.number)]
            items.append(Item(action=action))
            items += [Item(transfer=t) for t in after[number]]
        lists.append(tuple(items))
    return tuple(lists)


def _transfers(
    schedule: Schedule, carries: Sequence[bool], returns: Sequence[bool]
) -> list[Transfer]:
    """Returns the transfers of a step in the order in which they are made."""
    spans = simulate(schedule, [StageTimes(1.0, 1.0, 0.0)] * schedule.stages).spans_s
    made = sorted(
        (end, stage, action)
        for stage, (actions, of_rank) in enumerate(zip(schedule.ranks, spans, strict=True))
        for action, (_, end) in zip(actions, of_rank, strict=True)
    )
    transfers: list[Transfer] = []
    for _, stage, action in made:
        forward = action.kind is Kind.FORWARD
        target = stage + 1 if forward else stage - 1
        cut = min(stage, target)
        if 0 <= cut < schedule.stages - 1 and (carries if forward else returns)[cut]:
            transfers.append(Transfer(len(transfers), stage, target, action.micro_batch))
    return transfers


def _positions(
    over: Sequence[Transfer], stage: int, place: dict[tuple[bool, int], int]
) -> list[int]:
    """Returns for the transfers over one cut the action of `stage` after which it sends them, or
    before which it asks for them."""

    def action_of(transfer: Transfer) -> int:
        return place[transfer.is_forward, transfer.micro_batch]

    positions = [0] * len(over)
    latest = len(place)
    for n in range(len(over) - 1, -1, -1):
        if over[n].source == stage:
            latest = positions[n] = action_of(over[n])
        else:
            latest = positions[n] = min(max(action_of(over[n]) - 1, 0), latest)
    earliest = 0
    for n, transfer in enumerate(over):
        if transfer.source == stage:
            earliest = positions[n] + 1
        else:
            positions[n] = max(positions[n], earliest)
    return positions


def require_end(lists: Sequence[Sequence[Item]]) -> None:
    """Walks the lists of all stages together; raises `ShardwiseError` where they never end.

    It is stricter than any transport: transfers over a cut happen one after another, each once both
    sides have begun it, in the order in which each side begins them.
    """
    walks = [_Walk(stage, items) for stage, items in enumerate(lists)]
    come: set[Transfer] = set()
    moved = True
    while moved:
        moved = sum(walk.advance(come) for walk in walks) > 0
        for cut, (here, there) in enumerate(pairwise(walks)):
            ours, theirs = here.begun[cut], there.begun[cut]
            while ours and theirs:
                first, other = ours.popleft(), theirs.popleft()
                if first != other:
                    raise ShardwiseError(
                        f"stage {cut} begins {first} where stage {cut + 1} begins {other}"
                    )
                come.add(first)
                moved = True
    for walk in walks:
        if walk.rest:
            raise ShardwiseError(f"stage {walk.stage} waits for ever: {walk.rest[0]} comes next")
        for transfer in (t for queue in walk.begun.values() for t in queue):
            raise ShardwiseError(f"stage {walk.stage} alone begins {transfer}")


class _Walk:
    """How far a stage has come in its list, and the transfers that it has begun, by cut."""

    def __init__(self, stage: int, items: Sequence[Item]) -> None:
        self.stage = stage
        self.rest = deque(items)
        self.begun: defaultdict[int, deque[Transfer]] = defaultdict(deque)
        self._needed: dict[tuple[bool, int], Transfer] = {}

    def advance(self, come: set[Transfer]) -> bool:
        """Goes on until something has not come; returns whether it went on at all."""
        before = len(self.rest)
        while self.rest:
            action, transfer = self.rest[0].action, self.rest[0].transfer
            if transfer is not None:
                self.begun[transfer.cut].append(transfer)
                if transfer.target == self.stage:
                    self._needed[transfer.is_forward, transfer.micro_batch] = transfer
            elif action is not None:
                key = (action.kind is Kind.FORWARD, action.micro_batch)
                if key in self._needed and self._needed[key] not in come:
                    break
            self.rest.popleft()
        return len(self.rest) < before
