"""`python -m worker`: a worker with the environment's settings."""

from __future__ import annotations

import sys

from service.base.settings import load_settings
from shardwise.errors import ShardwiseError
from worker.app import run_worker

if __name__ == "__main__":
    try:
        sys.exit(run_worker(load_settings()))
    except ShardwiseError as error:
        print(f"shardwise: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
