"""`python -m shardwise.execute.local`: the generated part of docs/execute-operators.md."""

from __future__ import annotations

from pathlib import Path

import click

from shardwise.execute.local.documentation import page


@click.command()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False, exists=True), required=True
)
def main(output: Path) -> None:
    """Make the tables of the page anew; the text before them stays."""
    made = page(output.read_text("utf-8"))
    output.write_text(made, "utf-8")


if __name__ == "__main__":
    main()
