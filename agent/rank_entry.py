"""What torchrun starts for each rank: joins the rank's output to its pipes, then becomes it.

    python -I -S agent/rank_entry.py FOLDER COMMAND…

FOLDER holds a named pipe for each local rank and stream, which the agent reads; torchrun by itself
would write files without bound. Nothing of this process is left in the training process.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Run by path with -I -S: neither the working directory nor PYTHONPATH is believed.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))  # noqa: PTH120

from shardwise.child_process import die_with_parent


def main() -> None:
    """Joins the pipes, then becomes the command; exits with an error if that is impossible."""
    folder, command = sys.argv[1], sys.argv[2:]
    # torchelastic does not do this: a killed torchrun would leave its ranks behind.
    die_with_parent()
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
