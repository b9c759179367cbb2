"""policy train|evaluate: the learned strategy maker for devices of several kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardwise.cli.arguments import json_option, quiet_option
from shardwise.cli.output import emit, progress, say, table
from shardwise.errors import BadInput
from shardwise.outfiles import check_output
from shardwise.texts import seconds

if TYPE_CHECKING:
    from shardwise.policy.evaluation import Case, Evaluation

seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of what is drawn."
)

TRAINED_SCHEMA = "shardwise.policy-training-report/1"


@click.group()
def policy() -> None:
    """The learned strategy maker for devices of several kinds."""


@policy.command()
@click.option("-o", "--output", required=True, help="The file of weights: .npz.")
@click.option("--checkpoint", help="A file from which --resume goes on, written every minute.")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint.")
@seed_option
@click.option("--time-limit", type=click.FloatRange(0, min_open=True), help="Seconds.")
@click.option(
    "--rounds", type=click.IntRange(1), default=20000, show_default=True, help="Rounds in all."
)
@click.option(
    "--imitation",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="How many of the rounds, the first, imitate what the search has found.",
)
@click.option(
    "--tasks",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Graphs on random clusters, the families in turns.",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Strategies that are replayed in a round of REINFORCE.",
)
@click.option(
    "--policy-size",
    type=click.Choice(["standard", "paper"]),
    default="standard",
    show_default=True,
    help="paper: HeteroG's 12 attention layers of 8 heads and 8 Transformer layers.",
)
@click.option("--family", "names", multiple=True, help="Train on these families alone.")
@click.option("--held-out", multiple=True, help="Families that are left out, for `evaluate`.")
@quiet_option
@json_option
def train(
    output: str,
    checkpoint: str | None,
    resume: bool,
    seed: int,
    time_limit: float | None,
    rounds: int,
    imitation: int,
    tasks: int,
    samples: int,
    policy_size: str,
    names: tuple[str, ...],
    held_out: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Train a policy: imitation of the search, then REINFORCE.

    The same seed and rounds give the same file. Ctrl-C ends it with what it has learnt.
    """
    from shardwise.cli.policy_families import HELD_OUT, families, training_names
    from shardwise.policy.architecture import SIZES
    from shardwise.policy.training import Settings, train
    from shardwise.policy.weights import write_policy

    check_output(output)
    check_output(checkpoint, "checkpoint")
    left_out = held_out or HELD_OUT
    settings = Settings(SIZES[policy_size], seed, tasks, imitation, rounds, samples)
    with progress(quiet or as_json) as listener:
        trained = train(
            families(training_names(names, left_out)),
            left_out,
            settings,
            checkpoint=checkpoint,
            resume=resume,
            time_limit_s=time_limit,
            progress=listener,
        )
    write_policy(trained, output)
    done = trained.description
    if as_json:
        emit(
            {
                "schema": TRAINED_SCHEMA,
                "file": output,
                "rounds": done.rounds,
                "families": done.families,
                "held_out": done.held_out,
                "weights": sum(array.size for array in trained.weights.values()),
            }
        )
        return
    say(f"wrote {output} after {done.rounds} rounds on {len(done.families)} families")


@policy.command()
@click.argument("weights")
@click.option(
    "--seconds",
    "time_s",
    type=click.FloatRange(0, min_open=True),
    default=20.0,
    show_default=True,
    help="What each search may take.",
)
@click.option(
    "--clusters",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Random clusters for each graph.",
)
@seed_option
@click.option("--family", "names", multiple=True, help="These families alone.")
@quiet_option
@json_option
def evaluate(
    weights: str,
    time_s: float,
    clusters: int,
    seed: int,
    names: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Compare searches with and without a policy's proposals in equal time.

    Uses model families that the policy was not trained on, each on random clusters.
    """
    from shardwise.cli.policy_families import families
    from shardwise.policy.evaluation import evaluate
    from shardwise.policy.weights import read_policy

    read = read_policy(weights)
    chosen = names or tuple(read.description.held_out)
    if seen := sorted({*chosen} & {*read.description.families}):
        raise BadInput(
            f"{', '.join(seen)}: the policy was trained on it",
            field="family",
            expected=", ".join(read.description.held_out),
        )
    with progress(quiet or as_json) as listener:
        found = evaluate(
            read,
            families(chosen),
            clusters=clusters,
            seconds=time_s,
            seed=seed,
            progress=listener,
        )
    if as_json:
        emit(found)
        return
    _show(found)


def _show(found: Evaluation) -> None:
    columns = (
        "family",
        "devices",
        "incumbent",
        "sampled",
        "tuned",
        "search",
        "with policy",
        "ratio",
    )
    table(
        f"step times, {found.seconds:g} s for each search",
        columns,
        [_row(case) for case in found.cases],
    )
    median = "-" if found.median_ratio is None else f"{found.median_ratio:.4f}"
    say(
        f"median ratio {median}; the policy won {found.policy_wins}, the search alone "
        f"{found.search_wins}, neither {found.ties}; inference "
        f"{seconds(found.median_inference_s)}, at most {seconds(found.longest_inference_s)}"
    )


def _row(case: Case) -> tuple[str, ...]:
    times = (
        case.incumbent_time_s, case.sampled_time_s, case.tuned_time_s, case.search_time_s,
        case.policy_time_s,
    )  # fmt: skip
    ratio = "-" if case.ratio is None else f"{case.ratio:.4f}"
    return (case.family, case.gpus, *map(seconds, times), ratio)
