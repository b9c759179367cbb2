"""docs/reference/paper.md is what `make paper` kept: consistent, with nothing left out."""

from __future__ import annotations

import re
from pathlib import Path

from paper.page import PARTS, count_by_paper, kept_results, page
from paper.result import KEPT, Claim, Result, Table, against

ROOT = Path(__file__).parents[2]
PAGE = page(kept_results())


def test_every_part_is_on_the_page() -> None:
    titles = re.findall(r"^## ([^:\n]+)", PAGE, re.MULTILINE)
    assert titles == list(PARTS.values())


def test_the_summary_counts_what_the_tables_say() -> None:
    agreed = len(re.findall(r"\| yes \|", PAGE))
    differing = len(re.findall(r"\| \*\*no\*\* \|", PAGE))
    assert f"{agreed} of {agreed + differing} statements hold here" in PAGE
    listed = re.findall(r"^- .+; ours: .+\.$", PAGE, re.MULTILINE)
    assert len(listed) == differing


def test_what_limits_says_of_the_papers_is_counted() -> None:
    counts = count_by_paper(kept_results())
    limits = (ROOT / "docs" / "limits.md").read_text()
    assert set(counts) == {"TensorOpt", "Tofu", "HeteroG"}
    held, of = (sum(counts[paper][i] for paper in ("TensorOpt", "Tofu")) for i in (0, 1))
    assert f"{held} of {of} statements of TensorOpt and Tofu" in limits
    assert "{} of {} of HeteroG".format(*counts["HeteroG"]) in limits


def test_a_part_with_a_difference_says_why() -> None:
    for part in PAGE.split("\n## ")[1:]:
        if "| **no** |" in part:
            assert re.search(r"^(Why|What stays)|Why ", part, re.MULTILINE), part.splitlines()[0]


def test_table_4_is_within_its_target() -> None:
    for model in ("vgg16", "wide-resnet", "transformer-s"):
        line = re.search(rf"^\| {model}: .*\(target: within 15%\) \| (\S+) \|", PAGE, re.MULTILINE)
        assert line is not None
        assert line[1] == "yes"


def test_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", PAGE)
    assert len(pictures) == 4
    for picture in pictures:
        assert 1_000 < (ROOT / "docs" / "reference" / picture).resolve().stat().st_size < 200_000


def test_a_kept_part_comes_back_as_it_was(tmp_path: Path) -> None:
    table = Table(("a", "b"), [("1", "[2]"), ('"3"', "")])
    claims = [Claim("a", True, "b"), Claim("c", False, "d")]
    made = Result("x", "Paper Fig. 1: x", [table], claims, ["x.svg"], {"left": "out"})
    made.keep(tmp_path)
    again = Result.kept("x", tmp_path)
    assert again.markdown() == made.markdown()
    assert (again.claims, again.pictures, again.data) == (claims, ["x.svg"], {})


def test_every_part_is_kept_and_small() -> None:
    assert {file.stem for file in KEPT.iterdir()} == set(PARTS)
    assert sum(file.stat().st_size for file in KEPT.iterdir()) < 100_000


def test_a_page_names_what_does_not_hold() -> None:
    claims = [Claim("grass is green", True, "green"), Claim("the sea is red", False, "blue")]
    table = Table(("a", "b"), [("1", "2")])
    one = Result("x", "Paper Fig. 1: x", [table], claims)
    other = Result("y", "Other Table 2: y", claims=claims[:1])
    text = page([one, other])
    assert "2 of 3 statements hold here." in text
    assert "- Paper Fig. 1: the sea is red; ours: blue." in text
    assert "| 1 | 2 |" in text
    assert count_by_paper([one, other]) == {"Paper": (1, 2), "Other": (1, 1)}
    assert against(1.1, 1.0) == "+10%"
