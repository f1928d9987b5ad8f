"""What calls on a GPU launch: which kernel, how large, on which stream, with which bytes."""

from collections.abc import Callable
from typing import Any

import pytest
from cases import Case
from twin import launch_work, shared

from deep_ll import kernels

pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")
if not kernels.description():
    pytest.skip("built without nvcc: there are no kernels to launch", allow_module_level=True)

SMALL = Case(world=2, experts=4, topk=2, tokens=5, max_tokens=8)
CHECKS = {
    "slots_take_turns": SMALL,
    "hook": Case(**{**SMALL.__dict__, "mode": "hook"}),
    "event": Case(**{**SMALL.__dict__, "mode": "event"}),
    "streams": Case(**{**SMALL.__dict__, "mode": "event"}),
    "credit": Case(**{**SMALL.__dict__, "zero_copy": True}),
    "waits": Case(**{**SMALL.__dict__, "mode": "event"}),
    "other_current_device": Case(**{**SMALL.__dict__, "mode": "event"}),
}


@pytest.fixture
def process() -> Callable[..., Any]:
    return shared.process()


@pytest.mark.parametrize("check", CHECKS)
def test_launches(process: Callable[..., Any], check: str) -> None:
    process(launch_work.run, check, CHECKS[check])


@pytest.mark.parametrize("idx", ["int64", "int32"])
@pytest.mark.parametrize(("hidden", "tier"), [(7168, "h7168"), (640, "any")])
def test_bytes(process: Callable[..., Any], hidden: int, tier: str, idx: str) -> None:
    case = Case(**{**SMALL.__dict__, "hidden": hidden, "idx": idx})
    process(launch_work.run, "plain", case, tier)
