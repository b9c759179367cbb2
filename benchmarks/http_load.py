"""A small load generator over raw sockets: as little work as it can, for it shares the cores."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from time import perf_counter

import numpy as np

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Load:
    """What one load met: answers a second, milliseconds, answers of another status."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    count: int
    others: int


class _Connection(asyncio.Protocol):
    """One keep-alive connection that asks again as soon as it is answered."""

    def __init__(self, request: bytes, status: bytes, until: float) -> None:
        self._request, self._status, self._until = request, status, until
        self._buffer = b""
        self._sent_at = 0.0
        self.seconds: list[float] = []
        self.others = 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._sent_at = perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        length = _LENGTH.search(self._buffer, 0, head)
        if len(self._buffer) < head + 4 + (int(length[1]) if length else 0):
            return
        answered_at = perf_counter()
        self.seconds.append(answered_at - self._sent_at)
        self.others += self._buffer[9:12] != self._status
        self._buffer = b""
        if answered_at < self._until:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def load(
    port: int,
    path: str,
    *,
    connections: int,
    seconds: float,
    status: int = 200,
    headers: str = "",
) -> Load:
    """Requests `path` over keep-alive connections for the given seconds."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode()

    async def run() -> tuple[list[_Connection], float]:
        started = perf_counter()
        connected = [
            await asyncio.get_running_loop().create_connection(
                lambda: _Connection(request, str(status).encode(), started + seconds),
                "127.0.0.1",
                port,
            )
            for _ in range(connections)
        ]
        everyone = [protocol for _, protocol in connected]
        await asyncio.wait_for(asyncio.gather(*(c.closed for c in everyone)), seconds + 30)
        return everyone, perf_counter() - started

    everyone, took = asyncio.run(run())
    times = np.concatenate([np.asarray(c.seconds) for c in everyone]) * 1e3
    return Load(
        len(times) / took,
        float(np.percentile(times, 50)),
        float(np.percentile(times, 99)),
        len(times),
        sum(c.others for c in everyone),
    )


def watchers(
    port: int, path: str, number: int, within_s: float, opened: list[float]
) -> list[bytes]:
    """Opens event streams and returns their last events; appends the seconds until all are open."""

    async def watch(
        all_open: asyncio.Semaphore,
    ) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
        )
        last, first = b"", True
        while line := await reader.readline():
            if line.startswith(b"event: "):
                last = line[7:].strip()
                if first:
                    all_open.release()
                    first = False
        writer.close()
        return last

    async def run() -> list[bytes]:
        started = perf_counter()
        seen = asyncio.Semaphore(0)

        async def count() -> None:
            for _ in range(number):
                await seen.acquire()
            opened.append(perf_counter() - started)

        counting = asyncio.create_task(count())
        every = asyncio.gather(*(watch(seen) for _ in range(number)))
        last = await asyncio.wait_for(every, within_s)
        await counting
        return list(last)

    return asyncio.run(run())
