"""What torchrun starts for each rank: joins the rank's output to its pipes, then becomes it.

    python -I -S agent/rank_entry.py FOLDER COMMAND…

FOLDER holds a named pipe for each local rank and stream, which the agent reads; torchrun by itself
would write files without bound. Nothing of this process is left in the training process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Join, then become the command; exits with 127 where that is impossible."""
    folder, command = sys.argv[1], sys.argv[2:]
    # torchelastic sets none: without it a killed torchrun would leave its ranks behind.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    rank = int(os.environ["LOCAL_RANK"])
    for number, stream in ((1, "stdout"), (2, "stderr")):
        handle = os.open(os.path.join(folder, f"{rank}.{stream}"), os.O_WRONLY)  # noqa: PTH118
        os.dup2(handle, number)
        os.close(handle)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
