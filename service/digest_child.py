"""The process that reads one graph's digest: canonical JSON in, the digest's JSON out."""

from __future__ import annotations

import resource
import sys

import msgspec

from service.background import READING, give_way
from service.graph_digest import digest_of
from shardwise.graph import graph_from_json


def main() -> int:
    """Read, digest, write."""
    give_way(READING)
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    graph = graph_from_json(sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.json.encode(digest_of(graph)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
