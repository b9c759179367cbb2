"""Half the bandwidth between two hosts changes the advice: the new plan against the old one.

Two containers, two ranks each, measured at a bandwidth and at half of it. Of some batch sizes of a
model, the first is taken whose plan differs between the two profiles; both plans then run at half
the bandwidth, in turn.

    python benchmarks/hosts_advice.py [--card MBIT] [-o FILE]

Needs root, a Docker engine and tc.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

CARD = 40.0
BATCHES = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144)
MODEL = "zoo:mlp:layers=3,inputs=256,hidden=256,classes=16,batch={batch}"
TURNS = 3
RESULTS = Path("out/bench/hosts-advice.json")


def run(card: float = CARD, output: Path = RESULTS) -> dict[str, Any]:
    """Returns both plans' predicted and measured steps, printed and written to `output`."""
    from harness.containers.host_runs import measured_profile, plan_times
    from harness.containers.shaped import Bandwidths, shaped_hosts
    from harness.execute.sources import captured_source
    from shardwise.advise import Options, plan
    from shardwise.hardware import hardware_from_document

    options = Options(micro_batches=(1,), zero=(0,), recompute="never", time_limit_s=5.0)
    with tempfile.TemporaryDirectory() as name, shaped_hosts(Path(name), ("a", "b")) as hosts:
        profiles = []
        for megabits in (card, card / 2):
            hosts.shape(Bandwidths(megabits))
            document = measured_profile(
                hosts, Path(name), per_host=2, time_limit_s=70.0, max_size="256KiB",
                arguments=["--step", "4"],
            )  # fmt: skip
            profiles.append(hardware_from_document(document))
        for batch in BATCHES:
            source = (MODEL.format(batch=batch),)
            graph = captured_source(*source).graph
            before, after = (plan(graph, profile, 4, options=options) for profile in profiles)
            if [g.split for g in before.groups] != [g.split for g in after.groups]:
                break
        else:
            raise AssertionError(f"no batch of {BATCHES} has another plan at half the bandwidth")
        times = plan_times(
            hosts, Path(name), source, [before, after] * TURNS,
            per_host=2, warm_up=1, steps=3, alone=2,
        )  # fmt: skip
    table = {
        "card_mbit": [card, card / 2],
        "source": source[0],
        "splits": [[list(g.split.values()) for g in p.groups] for p in (before, after)],
        "predicted_s": [p.predicted.replayed_time_s for p in (before, after)],
        "measured_s": [[t["iteration"] for t in times[n::2]] for n in (0, 1)],
        "communication_s": [[t["communication"] for t in times[n::2]] for n in (0, 1)],
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(table, indent=1) + "\n")
    old, new = (median(steps) for steps in table["measured_s"])
    print(f"{source[0]}: at half the bandwidth the old plan takes {old:.3f} s, the new {new:.3f} s")
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--card", type=float, default=CARD, help="megabits per second")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    run(given.card, given.output)
