"""What is under way to another rank: each tensor is kept until it has come, and no longer.

Torch does not say of a message of gloo whether it has come, other than by waiting for it, so a
thread does that. Those of other transports are asked.
"""

from __future__ import annotations

from collections import deque
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

import torch
import torch.distributed as dist

Message = tuple[Any, torch.Tensor]
"""Torch's handle of what is under way, and its memory."""


class Sends(Protocol):
    """Messages to one rank."""

    def add(self, message: Message) -> None:
        """Keeps a message until it has come."""

    def finish(self) -> None:
        """Waits until all have come; raises what the transport raised."""

    def forget(self) -> None:
        """Drops all that have not come, after an error."""


def new_sends() -> Sends:
    """Returns messages to a rank by the transport of the process group."""
    return _WaitedFor() if dist.get_backend() == "gloo" else _Asked()


class _WaitedFor:
    """A thread waits for one message after another. There is one while a step runs."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Message | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._error: Exception | None = None

    def add(self, message: Message) -> None:
        if self._thread is None:
            self._queue, self._error = SimpleQueue(), None
            self._thread = Thread(target=self._wait, args=(self._queue,), daemon=True)
            self._thread.start()
        self._queue.put(message)

    def finish(self) -> None:
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join()
        self._thread = None
        if self._error is not None:
            raise self._error

    def forget(self) -> None:
        self._queue.put(None)
        self._thread = None

    def _wait(self, queue: SimpleQueue[Message | None]) -> None:
        while (message := queue.get()) is not None:
            try:
                message[0].wait()
            except Exception as error:
                self._error = error
                return
            # Not kept while the thread waits for the next.
            del message


class _Asked:
    """Whether messages have come is asked when the next one is sent."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def add(self, message: Message) -> None:
        while self._messages and self._messages[0][0].is_completed():
            self._messages.popleft()[0].wait()
        self._messages.append(message)

    def finish(self) -> None:
        while self._messages:
            self._messages.popleft()[0].wait()

    def forget(self) -> None:
        self._messages.clear()
