"""A process that keeps families of models, and ranks that were forked from it and so have them.

All tests of a test process share one. Capturing families and starting ranks takes longer than most
of what is run on them; so families are captured once, and the same ranks run what any test asks
for. Nothing is differentiated in the keeper: torch forbids to fork what has done that.
"""

from __future__ import annotations

import atexit
import pickle
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from harness.commands import warm_context

_SHARED: dict[int, Any] = {}
"""In the keeper: ranks by their number."""
_FORKED_WITH: dict[int, set[Any]] = {}
"""In the keeper: families that these ranks have, and on which parts of the batch."""


class Keeper:
    """The keeper, as the test process that started it sees it."""

    def __init__(self) -> None:
        self._pipe, there = warm_context().Pipe()
        # Not a daemon, which may have no processes of its own. It ends when the pipe does.
        self._process = warm_context().Process(target=_keep, args=(there,))
        self._process.start()
        there.close()
        # Before multiprocessing's own, which waits for it.
        atexit.register(self.stop)

    def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Returns `work(*arguments)`, run by the keeper. Raises AssertionError if that raises."""
        return self._asked(None, work, arguments)

    def on_ranks(self, world: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Returns `work(rank, *arguments)` by rank. Raises AssertionError as `Ranks` do."""
        return [pickle.loads(answer) for answer in self._asked(world, work, arguments)]

    def _asked(self, world: int | None, work: Callable[..., Any], arguments: Any) -> Any:
        self._pipe.send((world, pickle.dumps((work, arguments))))
        well, answer = self._pipe.recv()
        if not well:
            raise AssertionError(answer)
        return answer

    def stop(self) -> None:
        """Ends it and its ranks."""
        self._pipe.close()
        self._process.join()


class SharedRanks:
    """`world` ranks of the keeper, for whoever asks; called as `Ranks` are."""

    def __init__(self, keeper: Keeper, world: int) -> None:
        self._keeper, self.world = keeper, world

    def __call__(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Returns `work(rank, *arguments)` by rank."""
        return self._keeper.on_ranks(self.world, work, *arguments)

    def stop(self) -> None:
        """Ends these ranks; the next call starts others."""
        self._keeper.run(_stop, self.world)


def shared_ranks(world: int, families: Iterable[Any] = ()) -> Any:
    """Returns ranks, in the keeper, that were forked when it had these families."""
    from harness.execute.equality import case_of
    from harness.execute.ranks import Ranks

    if world not in _SHARED:
        # The first capture of a process takes seconds more, on each rank if not here.
        case_of("MLP")
        _SHARED[world] = Ranks(world, inherit=True, busy=True)
        _FORKED_WITH[world] = set()
    if new := set(families) - _FORKED_WITH[world]:
        _SHARED[world].stop()
        _FORKED_WITH[world] |= new
    return _SHARED[world]


def graph_of_source(world: int, source: tuple[Any, ...], parts: tuple[int, ...] = ()) -> Any:
    """Returns the graph of a source's model, in the keeper, of which ranks then have the capture,
    also on these parts of the batch."""
    from harness.execute.sources import captured_source
    from shardwise.execute.captured import smaller

    captured = captured_source(*source)
    for count in parts:
        smaller(captured, count)
    shared_ranks(world, [(source, parts)])
    return captured.graph


def graph_of_family(world: int, name: str) -> Any:
    """Returns the graph of a family, in the keeper, which ranks then have."""
    from harness.execute.equality import case_of

    graph = case_of(name).captured.graph
    shared_ranks(world, [name])
    return graph


def _stop(world: int) -> None:
    shared_ranks(world).stop()


def _keep(pipe: Any) -> None:
    """Answers until the other end is closed."""
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            world, asked = pipe.recv()
        except EOFError:
            break
        try:
            if world is None:
                work, arguments = pickle.loads(asked)
                answer = work(*arguments)
            else:
                answer = shared_ranks(world).forward(asked)
            pipe.send((True, answer))
        except AssertionError as error:
            pipe.send((False, str(error)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    for ranks in _SHARED.values():
        ranks.stop(kill=True)


@cache
def keeper() -> Keeper:
    """Returns the keeper of this process."""
    return Keeper()
