"""Cross entropy of tokens runs on rows of scores, without a copy."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch")

from shardwise.torch_operators import by_rows  # noqa: E402

cross_entropy = torch.nn.functional.cross_entropy


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_rows_have_the_same_loss_and_gradient(reduction: str) -> None:
    torch.manual_seed(0)
    scores = torch.randn(3, 5, 11, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 11, (3, 5))
    labels[0, 2] = -100  # not counted
    losses = [
        cross_entropy(*given, reduction=reduction)
        for given in ((scores.transpose(1, 2), labels), by_rows(scores.transpose(1, 2), labels))
    ]
    torch.testing.assert_close(losses[0], losses[1])
    gradients = [torch.autograd.grad(loss, scores)[0] for loss in losses]
    torch.testing.assert_close(*gradients)


def test_rows_are_a_view() -> None:
    scores = torch.randn(3, 5, 11)
    rows, labels, weight = by_rows(scores.transpose(1, 2), torch.zeros(3, 5), torch.ones(11))
    assert rows.shape == (15, 11)
    assert labels.shape == (15,)
    assert weight.shape == (11,)
    assert rows.data_ptr() == scores.data_ptr()


@pytest.mark.parametrize(
    ("shape", "labels"),
    [((15, 11), (15,)), ((3, 11, 4, 4), (3, 4, 4)), ((3, 11, 5), (3, 11, 5))],
    ids=["rows already", "images", "probabilities"],
)
def test_all_else_stays_as_it_is(shape: tuple[int, ...], labels: tuple[int, ...]) -> None:
    given = torch.randn(shape), torch.zeros(labels)
    assert all(a is b for a, b in zip(by_rows(*given), given, strict=True))
