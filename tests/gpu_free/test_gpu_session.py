"""Buffers on a GPU, with the CPU's kernels behind a fake driver: every case against the oracle."""

from collections.abc import Callable
from typing import Any

import pytest
from cases import Case
from twin import cases, shared

from deep_ll import kernels

pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")
if not kernels.description():
    pytest.skip("built without nvcc: there are no kernels to launch", allow_module_level=True)

CASES = [
    Case(),
    Case(cast="bf16", mode="hook"),
    Case(cast="ue8m0", mode="event", hidden=640),
    Case(cast="rounded", zero_copy=True, idx="int32"),
    Case(world=2, zero_copy=True, mode="hook", rounds=5),
    Case(world=3, experts=9, tokens=(0, 7, 16), routing="holes", out=True),
    Case(world=1, routing="none", mode="event", zero_copy=True),
    Case(world=8, experts=64, topk=8, routing="hot", values="wild"),
    Case(hidden=7168, world=2, tokens=3),
]


@pytest.fixture
def process() -> Callable[..., Any]:
    return shared.process()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_exchange(process: Callable[..., Any], case: Case) -> None:
    launches = process(cases.run_exchange, case)
    assert launches
