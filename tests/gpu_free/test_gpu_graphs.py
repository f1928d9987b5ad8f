"""Calls recorded into CUDA graphs: the same bytes, replayed, do the right thing every time."""

from collections.abc import Callable
from typing import Any

import pytest
from cases import Case
from twin import graph_work, shared

from deep_ll import kernels

pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")
if not kernels.description():
    pytest.skip("built without nvcc: there are no kernels to launch", allow_module_level=True)

PAIR = {"world": 2, "experts": 4, "topk": 2, "tokens": 6, "max_tokens": 8}
PLAIN = Case(**PAIR)
HOOK = Case(**PAIR, mode="hook", cast="bf16")
EVENT = Case(**PAIR, mode="event")
ZERO_COPY = Case(**PAIR, zero_copy=True, routing="holes")
THREE = Case(world=3, experts=6, tokens=(8, 0, 3), max_tokens=8, mode="hook", zero_copy=True)
REPLAYS = [
    (PLAIN, 1, False),
    (PLAIN, 2, False),
    (PLAIN, 3, False),
    (ZERO_COPY, 1, False),
    (ZERO_COPY, 3, False),
    (EVENT, 3, False),
    (EVENT, 4, True),
    (HOOK, 1, False),
    (HOOK, 3, False),
    (HOOK, 2, True),
    (HOOK, 6, True),
    (THREE, 2, True),
    (THREE, 5, False),
]


@pytest.fixture
def process() -> Callable[..., Any]:
    return shared.process()


@pytest.mark.parametrize(("case", "num_layers", "two_batches"), REPLAYS, ids=str)
def test_replays(
    process: Callable[..., Any], case: Case, num_layers: int, two_batches: bool
) -> None:
    process(graph_work.run, "replays", case, num_layers, two_batches)


@pytest.mark.parametrize("case", [PLAIN, ZERO_COPY], ids=str)
def test_two_graphs(process: Callable[..., Any], case: Case) -> None:
    process(graph_work.run, "two_graphs", case)


def test_what_cannot_be_captured(process: Callable[..., Any]) -> None:
    for buffer, call in process(graph_work.run, "refused", PLAIN):
        assert buffer.startswith("OrderError: a buffer cannot be made while")
        assert call.startswith("OrderError: the first call with Sizes(max_tokens=8, hidden=256")
        assert "run it once before" in call


@pytest.mark.parametrize(("case", "what"), [(HOOK, "hook"), (EVENT, "event")], ids=str)
def test_halves_must_be_captured_together(
    process: Callable[..., Any], case: Case, what: str
) -> None:
    for eager, captured in process(graph_work.run, "split", case):
        for text in (eager, captured):
            assert text.startswith("OrderError")
            assert what in text


@pytest.mark.parametrize("mode", ["plain", "hook", "event"])
def test_capture_after_work_on_the_default_stream(process: Callable[..., Any], mode: str) -> None:
    case = Case(world=1, experts=2, topk=2, tokens=4, max_tokens=4, mode=mode)
    process(graph_work.run, "after_the_default_stream", case)
