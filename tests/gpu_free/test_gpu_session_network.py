"""Buffers on a GPU with peers behind a network: what the host does, against the oracle. The network
itself is in test_gpu_network.py."""

from collections.abc import Callable
from typing import Any

import pytest
from cases import Case
from twin import network_work, shared

from deep_ll import kernels
from deep_ll.runtime.cuda import network

pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")
if not kernels.description() or not network.built():
    pytest.skip("built without nvcc or NVSHMEM: no kernels to launch", allow_module_level=True)

SMALL = {"world": 3, "experts": 6, "tokens": 4, "max_tokens": 4, "topk": 3}
CASES = [
    Case(**SMALL),
    Case(**SMALL, cast="bf16", mode="hook", hidden=200),
    Case(**SMALL, zero_copy=True, mode="event", out=True),
    Case(**SMALL, zero_copy=True, mode="hook", rounds=5, cast="ue8m0", hidden=640),
    Case(**SMALL, logfmt=True),
]


@pytest.fixture
def run() -> Callable[..., Any]:
    return lambda *args: shared.process()(network_work.run, *args)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_exchange(run: Callable[..., Any], case: Case) -> None:
    _, launches = run("exchanges", case)
    names = {launch.name for launch in launches if launch.name != "wait"}
    # Kernels for networks serve rows of any size.
    assert names <= {
        facts["name"] for facts in kernels.description()["tiers"]["any"]["kernels"].values()
    }
    assert len(names) >= 2


def test_plan_and_paths(run: Callable[..., Any]) -> None:
    found, _ = run("plan", CASES[0])
    for rank, (kinds, reasons, whole) in enumerate(found):
        assert kinds == ["self" if peer == rank else "link" for peer in range(3)]
        assert all(reason == network_work.FAR for reason in reasons if reason != "own")
        assert whole


def test_refused(run: Callable[..., Any]) -> None:
    found, launches = run("refused", CASES[0], 8)
    for shrinking, deep in found:
        assert "enable_shrink=True: ranks cannot be left out yet where GPUs" in shrinking
        assert "NVSHMEM_QP_DEPTH is 8: set it to 16" in deep
    assert not launches


def test_heap_of_as_many_choices_as_experts(run: Callable[..., Any]) -> None:
    """Their rows need more than is free; with the bytes that the error says they fit."""
    case = Case(world=2, experts=2, topk=2, tokens=8, max_tokens=8, hidden=7168)
    found, _ = run("with_bytes_of_the_error", case)
    for text in found:
        assert "rows on their way over a network need" in text


def test_taken_buffer_is_no_tensor_of_the_caller(run: Callable[..., Any]) -> None:
    found, _ = run("pushes_a_taken_buffer", CASES[0])
    for text in found:
        assert "OrderError" in text
        assert "zero_copy=True" in text
