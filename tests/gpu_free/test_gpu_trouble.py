"""Buffers on a GPU when something is wrong: who hears what, when, and what still works."""

from collections.abc import Callable
from typing import Any

import pytest
from cases import Case
from twin import shared, trouble_work

from deep_ll import kernels

pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")
if not kernels.description():
    pytest.skip("built without nvcc: there are no kernels to launch", allow_module_level=True)

PAIR = {"world": 2, "experts": 4, "topk": 2, "tokens": 5, "max_tokens": 8}
PLAIN = Case(**PAIR)
HOOK = Case(**PAIR, mode="hook")
EVENT = Case(**PAIR, mode="event")
MODES = pytest.mark.parametrize("case", [PLAIN, HOOK, EVENT], ids=str)


@pytest.fixture
def run() -> Callable[..., Any]:
    return lambda *args: shared.process()(trouble_work.run, *args)


@MODES
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("too large", "no expert has this number"),
        ("negative", "no expert has this number"),
        ("repeated", "the token chose this expert before"),
    ],
)
def test_bad_choices_count_as_none(
    run: Callable[..., Any], case: Case, what: str, reason: str
) -> None:
    texts, others = run("bad_dispatch", case, what)
    assert others == []
    assert len(texts) == 3
    for text in texts:
        assert text.startswith("ArgumentError: topk_idx[1, 1] of an earlier dispatch or combine")
        assert f"is VALUE: {reason}; it counted as -1" in text


@MODES
def test_choices_that_were_not_dispatched(run: Callable[..., Any], case: Case) -> None:
    (text,), _ = run("not_dispatched", case)
    assert text.startswith("ArgumentError: topk_idx[2, 0]")
    assert "not what was dispatched" in text


@pytest.mark.parametrize("phase", ["counts", "outputs"])
@MODES
def test_a_rank_that_does_not_come(run: Callable[..., Any], case: Case, phase: str) -> None:
    texts, others = run("nobody_comes", case, phase)
    if case.mode == "hook" and phase == "counts":
        # The sending half waits for those; what became of it is known when the hook is called.
        assert texts.pop(1).startswith("OrderError")
    else:
        assert texts.pop(0) == "nothing raised"
    timeout, broken, clean, destroyed = texts
    assert timeout.startswith("PeerTimeout: rank 0")
    for words in (f"phase {phase}", "nothing from ranks [1] after", "only be destroyed"):
        assert words in timeout
    for text in (broken, clean):
        assert text.startswith("OrderError: this buffer cannot be used any more, destroy it")
        assert "nothing from ranks [1]" in text
    assert [destroyed] == others
    assert "this buffer was destroyed" in destroyed


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ("hidden", ("hidden is 128 there and 256 here", "hidden is 256 there and 128 here")),
        ("top-k", ("top-k is 1 there and 2 here", "top-k is 2 there and 1 here")),
        ("slot", ("slot is 1 there and 0 here", "slot is 0 there and 1 here")),
        ("zero_copy", ("with zero_copy, this rank plainly", "plainly, this rank with zero_copy")),
    ],
)
def test_ranks_that_disagree(run: Callable[..., Any], about: str, words: tuple[str, str]) -> None:
    for (first, second), expected in zip(run("disagree", PLAIN, about), words, strict=True):
        assert first.startswith("PeerError")
        assert expected in first
        assert second.startswith("OrderError: this buffer cannot be used any more")


def test_refused(run: Callable[..., Any]) -> None:
    for num_sms, stream, x, topk_idx in run("refused", PLAIN):
        assert num_sms == "ArgumentError: num_sms is 0: it must be 1 or more"
        assert stream.startswith("OrderError: ranks that share a GPU")
        assert x.startswith("ArgumentError: x is on meta")
        assert topk_idx.startswith("ArgumentError: topk_idx is on meta")
