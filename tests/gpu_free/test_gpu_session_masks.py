"""Buffers on a GPU with masks: by hand, and without a rank that does not come."""

from collections.abc import Callable
from typing import Any

import pytest
from cases import Case
from twin import mask_work, shared

from deep_ll import kernels

pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")
if not kernels.description():
    pytest.skip("built without nvcc: there are no kernels to launch", allow_module_level=True)

THREE = Case(world=3, experts=6, tokens=4, max_tokens=4, hidden=128, topk=3)
VICTIM = 1


@pytest.fixture
def run() -> Callable[..., Any]:
    return lambda *args: shared.process()(mask_work.run, *args)


def test_masks_by_hand(run: Callable[..., Any]) -> None:
    (first, status), (second, other), (third, _) = run("by_hand", THREE)
    assert first == second == "nothing raised"
    assert status == other == [0, 0, 1]
    assert "masked by ranks [0" in third


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("mode", ["plain", "hook", "event"])
def test_goes_on_without_a_rank(run: Callable[..., Any], mode: str, zero_copy: bool) -> None:
    case = Case(**{**THREE.__dict__, "mode": mode, "zero_copy": zero_copy})
    for rank, (history, longest_s) in enumerate(run("leaves", case, VICTIM)):
        if rank == VICTIM:
            continue
        assert history == [[[VICTIM]] * 3] * case.rounds
        assert 0.4 < longest_s < 5


def test_refused(run: Callable[..., Any]) -> None:
    for rank, texts in enumerate(run("refused", THREE)):
        words = ("enable_shrink=True", "0 to 2", f"is {rank}, this rank", "shape (1,)", "int64")
        for word, text in zip(words, texts, strict=True):
            assert word in text
