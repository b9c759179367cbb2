"""The process that reads one graph's digest: canonical JSON in, the digest's JSON out."""

from __future__ import annotations

import sys

import msgspec

from service.base.background import READING, give_way
from service.questions.graph_digest import digest_of
from shardwise.child_process import limit_process
from shardwise.graph import graph_from_json


def main() -> int:
    """Reads a graph, digests it and writes the digest."""
    give_way(READING)
    limit_process(memory_bytes=int(sys.argv[1]))
    graph = graph_from_json(sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.json.encode(digest_of(graph)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
