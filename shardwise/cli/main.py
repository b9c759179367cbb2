"""The `shardwise` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import TracebackType

import click

from shardwise import __version__
from shardwise.cli.commands import Commands
from shardwise.errors import ShardwiseError, defect_text

EXIT_CODES: Mapping[int, str] = {
    0: "done",
    1: "infeasible or not found, with the reason; a launch, a run or a measurement that failed",
    2: "bad input: one line with file, field and what was expected; also an agent whose key or "
    "token is refused",
    3: "the service, its database or its Redis cannot be reached or does not serve just now",
    70: "an internal error: a defect in Shardwise itself, in one line; please report it",
    130: "interrupted by Ctrl-C or cancelled; a search that was ended gives what it has found",
}


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="shardwise")
def cli() -> None:
    """Advice on parallelism for training neural networks."""


def main() -> None:
    """Runs a command; an error is one line on standard error."""
    if os.environ.get("SHARDWISE_DEBUG") != "1":
        sys.excepthook = _internal_error
    try:
        # Without click's own handling a command that exits early returns its code.
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.Abort:
        _fail("interrupted", 130)
    except click.ClickException as error:
        _fail(" ".join(error.format_message().split()), 2)
    except ShardwiseError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader closed the pipe (`| head`); not an error, but Python would report it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except MemoryError:
        _fail("out of memory", 2)
    except TimeoutError as error:
        _fail(str(error) or "the time limit passed", 1)
    except OSError as error:
        _fail(f"{error.filename or 'file'}: {error.strerror or error}", 2)


def _internal_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Reports a defect of Shardwise itself, and exits with its own code, not Python's 1."""
    print(
        f"shardwise: {defect_text(error)} (SHARDWISE_DEBUG=1 shows where)",
        file=sys.stderr,
        flush=True,
    )
    os._exit(70)


def _fail(text: str, code: int) -> None:
    if os.environ.get("SHARDWISE_DEBUG") == "1" and sys.exc_info()[0] is not None:
        raise
    print(f"shardwise: error: {text}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
