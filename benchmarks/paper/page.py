"""The page docs/paper.md, from the results."""

from __future__ import annotations

import sys
from pathlib import Path

from paper.result import Result

PAGE = Path("docs/paper.md")

HEAD = """# The papers' results, and ours

Written by `make paper`, which makes every table and figure anew (about ten minutes on two cores; tables as Markdown and JSON under `out/paper/`). Nothing is tuned for a row: models, options and hardware are the same throughout, and where the paper leaves a size open, what was taken is said. **Times are modelled** from data sheets and published single-device measurements (`shardwise hardware show dgx-v100-16gb` names every source); no GPU has run here.

The setting is TensorOpt's (§5): machines of 8 V100 with 16 GB on NVLink, one EDR InfiniBand card each, 16 GPUs unless said; float32, batch 256, plain SGD, 14.5 GB of 16 usable. Memory leaves gradients out, as the paper's does (Table 1 below). Partial sums are ended by all-reduce, as TensorOpt's are. ZeRO, recomputation and micro-batches are off.

"""


def write_page(results: list[Result]) -> None:
    """All results, with a list of what does not agree in front."""
    claims = [(result, claim) for result in results for claim in result.claims]
    failed = [(result, claim) for result, claim in claims if not claim.holds]
    lines = [f"{len(claims) - len(failed)} of {len(claims)} statements hold here."]
    if failed:
        lines[0] += " Those that do not, with why further down:"
        lines.append("")
        lines += [
            f"- {result.title.partition(':')[0]}: {claim.statement}; ours: {claim.ours}."
            for result, claim in failed
        ]
    body = "\n".join(result.markdown() for result in results)
    PAGE.write_text(HEAD + "\n".join(lines) + "\n\n" + body)
    print(f"wrote {PAGE}", file=sys.stderr)
