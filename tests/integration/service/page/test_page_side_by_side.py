"""Two answers side by side: what differs in the questions and in what was found."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from harness.page.page_steps import answered as ended
from harness.page.page_steps import ask, too_wide
from harness.service.answered import Answered
from harness.service.service_harness import Service


def _cells(page: Page, region: str, row: str) -> list[str]:
    table = page.get_by_role("region", name=region, exact=True)
    head = page.get_by_role("rowheader", name=row, exact=True)
    return table.get_by_role("row").filter(has=head).get_by_role("cell").all_inner_texts()


def test_two_plans_are_compared(page: Page, service: Service) -> None:
    jobs = []
    for gpus, batches in ((2, "1"), (4, "1,2")):
        jobs.append(ask(page, "plan", gpus=gpus, micro_batches=batches))
        ended(page)
    page.get_by_role("link", name="Compare with another answer").click()
    expect(page.get_by_label("First")).to_have_value(jobs[1])
    page.get_by_label("First").select_option(jobs[0])
    page.get_by_label("Second").select_option(jobs[1])
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url(re.compile("b=plan_"))
    predicted = [
        service.client.get(f"/v1/plans/{job}").json()["result"]["predicted"] for job in jobs
    ]
    change = predicted[1]["replayed_time_s"] / predicted[0]["replayed_time_s"] - 1
    assert _cells(page, "Side by side", "Time of a step")[2] == f"{100 * change:+.1f} %"
    assert _cells(page, "Side by side", "Parallelism")[:2] == [one["label"] for one in predicted]
    assert _cells(page, "What was asked differently", "gpus") == ["2", "4"]
    assert _cells(page, "What was asked differently", "micro batches") == ["1", "1, 2"]
    expect(page.get_by_role("rowheader", name="optimizer")).to_have_count(0)
    expect(page.get_by_role("region", name=re.compile("Gantt chart"))).to_have_count(2)
    page.set_viewport_size({"width": 360, "height": 800})
    assert not too_wide(page)


def test_answers_of_other_kinds_and_none_that_fits(page: Page, answered: Answered) -> None:
    curve, nothing = answered.jobs["curve"], answered.jobs["infeasible"]
    page.goto(f"/compare?a={curve}&b={nothing}")
    cells = _cells(page, "Side by side", "Answer")
    assert "the fastest number of GPUs" in cells[0]
    assert "nothing fits: " in cells[1]
    assert _cells(page, "Side by side", "Time of a step")[1:] == ["–", "–"]
