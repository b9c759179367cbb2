"""The step of a cluster of several kinds: the step of one place, written for every place.

    computing        once for each place, on the place's own stream, in program order
    communication    once for each place, on the place's links, by rank

Flags of the strategy say which communication joins places. Its parts start when all places are
ready (`gathers`), and places continue when all parts have ended (`ends`). Otherwise each place
communicates separately.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise import _core
from shardwise.replay.kit import Kit
from shardwise.replay.record import ALWAYS, Order
from shardwise.replay.tape import COMPUTE


@dataclass(frozen=True)
class MixedProgram:
    """A program of all places.

    `task` and `place` are, for each of its tasks, the corresponding task of one place and the place
    (-1 if places are joined). `communicating` are one place's tasks with a flag that says whether
    they join places; these flags come after those of all places.
    """

    program: _core.Program
    task: NDArray[np.int64]
    place: NDArray[np.int64]
    communicating: NDArray[np.int64]


def mixed_program(kit: Kit, places: int) -> MixedProgram:
    """Returns the program of all places, from that of one."""
    writer = _Writer(kit, places)
    for task in range(kit.program.tasks):
        writer.write(task)
    return writer.program()


class _Writer:
    def __init__(self, kit: Kit, places: int) -> None:
        self._tape, self._places, self._kit = kit.tape, places, kit
        self._streams = kit.tape.streams.tolist()
        self._before: list[list[int]] = [[] for _ in range(kit.program.tasks)]
        for before, after in kit.tape.dependencies.tolist():
            self._before[after].append(before)
        self._of: list[tuple[int, int]] = []
        self._holds: list[tuple[int, int]] = []
        self._dependencies: list[tuple[int, int]] = []
        self._conditions: list[tuple[int, int]] = []
        # By task of one place: its task at every place, and the one with which its parts end.
        self._at: list[list[int]] = []
        self._ends: list[int | None] = []
        self._communicating: list[int] = []
        self._joint = 2 * places

    def write(self, task: int) -> None:
        """Writes one task for all places."""
        computes = self._streams[task] == COMPUTE
        gathers = None
        if not computes:
            flag = len(self._communicating)
            self._communicating.append(task)
            waited = [one for before in self._before[task] for one in self._parts(before)]
            gathers = self._add(task, -1, self._joint, waited, flag)
        at = []
        for place in range(self._places):
            before = [] if gathers is None else [gathers]
            for other in self._before[task]:
                before.append(self._at[other][place])
                end = self._ends[other]
                if end is not None:
                    before.append(end)
            resource = 2 * place + (0 if computes else 1)
            at.append(self._add(task, place, resource, before))
        self._at.append(at)
        self._ends.append(None if computes else self._add(task, -1, self._joint, at, flag))

    def _parts(self, task: int) -> list[int]:
        end = self._ends[task]
        return [*self._at[task], *([] if end is None else [end])]

    def _add(
        self, task: int, place: int, resource: int, before: list[int], flag: int | None = None
    ) -> int:
        number = len(self._of)
        self._of.append((task, place))
        self._holds.append((number, resource))
        self._dependencies += [(one, number) for one in sorted(set(before))]
        if flag is not None:
            self._conditions.append((number, flag))
        return number

    def program(self) -> MixedProgram:
        """Returns what has been written."""
        tape, places = self._tape, self._places
        own = len(tape.flags)
        given = own * places + len(self._communicating)
        pairs, own_uses = tape.pairs.tolist(), tape.uses.tolist()

        def flag(number: int, place: int) -> int:
            if number == ALWAYS:
                return ALWAYS
            if number >= 0:
                return place * own + number
            return given + place * len(pairs) + (-2 - number)

        makers, classes, uses, keeps = [], [], [], []
        count = len(tape.makers)
        for place in range(places):
            makers += [-1 if m < 0 else self._at[m][place] for m in tape.makers.tolist()]
            classes += [place] * count
            for buffer, task, number in own_uses:
                uses.append((place * count + buffer, self._at[task][place], flag(number, place)))
            for name, kept in tape.keeps.items():
                first = place * count
                keeps += [(first + name, first + b, flag(number, place)) for b, number in kept]
        marks = [] if self._kit.repeat is None else self._kit.repeat.marks
        orders: list[Order] = tape.resources
        program = _core.Program(
            tasks=len(self._of),
            resources=[*(orders * places), "rank"],
            holds=_pairs(self._holds),
            dependencies=_pairs(self._dependencies),
            makers=np.array(makers, dtype=np.int32),
            lasting=np.tile(tape.lasting, places),
            uses=np.array(uses, dtype=np.int32).reshape(-1, 3),
            given_flags=given,
            both=_pairs([(flag(a, p), flag(b, p)) for p in range(places) for a, b in pairs]),
            marks=np.array([self._at[m][p] for m in marks for p in range(places)], dtype=np.uint32),
            device_classes=places,
            buffer_classes=np.array(classes, dtype=np.uint16),
            conditions=np.array(
                [(task, own * places + number) for task, number in self._conditions],
                dtype=np.int32,
            ).reshape(-1, 2),
            keeps=np.array(keeps, dtype=np.int32).reshape(-1, 3),
        )
        of = np.array(self._of, dtype=np.int64).reshape(-1, 2)
        communicating = np.array(self._communicating, dtype=np.int64)
        return MixedProgram(program, of[:, 0], of[:, 1], communicating)


def _pairs(pairs: list[tuple[int, int]]) -> NDArray[np.uint32]:
    return np.array(pairs, dtype=np.uint32).reshape(-1, 2)
