"""torchrun that exits as its first failed rank did: that rank has already said why.

torch's own command prints the launcher's traceback after what the ranks said.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.run import parse_args, run


def main(arguments: Sequence[str]) -> int:
    """Runs torchrun with these arguments; returns the exit status of the first failed rank, or 0.

    Returns 1 if launchers cannot reach their rendezvous store; a line on stderr says why.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        run(parse_args(list(arguments)))
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        code = int(first.exitcode)
        # A negative code is the signal that ended the rank.
        return code if code > 0 else 128 - code
    except RendezvousError as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        print(f"shardwise: error: torchrun lost its store: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
