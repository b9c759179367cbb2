"""docs/paper.md is what `make paper` wrote: consistent with itself, with nothing left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from paper.__main__ import PARTS
from paper.page import count_by_paper, update_page, write_page
from paper.result import Claim, Result, Table, against

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "paper.md").read_text()


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
    counts = count_by_paper(PAGE)
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
        assert 1_000 < (ROOT / "docs" / picture).stat().st_size < 200_000


def test_a_part_is_replaced_and_statements_counted_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr("paper.page.PAGE", page)
    titles = ["Paper Table 1", "Paper Table 2", "Other Fig. 3"]
    one = Result("x", "Paper Table 1: x", claims=[Claim("a", True, "b")])
    write_page([one, Result("z", "Other Fig. 3: z", claims=[Claim("e", False, "f")])])
    before = page.read_text()
    update_page([], titles)
    assert page.read_text() == before
    update_page([Result("y", "Paper Table 2: y", claims=[Claim("c", False, "d")])], titles)
    text = page.read_text()
    assert re.findall(r"^## (.+):", text, re.MULTILINE) == titles
    assert "1 of 3 statements hold here." in text
    assert "- Paper Table 2: c; ours: d.\n- Other Fig. 3: e; ours: f.\n" in text
    update_page([Result("x", "Paper Table 1: x", claims=[Claim("a", False, "g")])], titles)
    assert "0 of 3 statements hold here." in page.read_text()
    assert count_by_paper(page.read_text()) == {"Paper": (0, 2), "Other": (0, 1)}


def test_a_page_names_what_does_not_hold(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("paper.page.PAGE", tmp_path / "page.md")
    claims = [Claim("grass is green", True, "green"), Claim("the sea is red", False, "blue")]
    table = Table(("a", "b"), [("1", "2")])
    write_page([Result("x", "Paper: x", [table], claims)])
    page = (tmp_path / "page.md").read_text()
    assert "1 of 2 statements hold here." in page
    assert "- Paper: the sea is red; ours: blue." in page
    assert "| 1 | 2 |" in page
    assert against(1.1, 1.0) == "+10%"
