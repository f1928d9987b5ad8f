"""The orders of test_order.py and the rules of test_bad_input.py, on a GPU that is not there."""

from collections.abc import Callable
from typing import Any

import bad_calls
import pytest
from cases import Case
from test_order import STEPS, WAYS, parse
from twin import cases, shared

from deep_ll import kernels

pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")
if not kernels.description():
    pytest.skip("built without nvcc: there are no kernels to launch", allow_module_level=True)

ORDERS = ["dispatch_only", "combine_twice", "mask_after_dispatch", "zero_copy_ignores_x"]
RULES = [
    "handle_of_another_buffer",
    "handle_too_old",
    "third_dispatch",
    "third_dispatch_before_hook",
    "hook_twice",
    "combine_before_hook",
    "use_after_destroy",
    "rank_padding_is_not_read",
    "push_after_take",
    "taken_with_another_handle",
]
# Only kernels can read these, and say so later: test_gpu_trouble.py.
SEEN_BY_KERNELS = {"expert_too_large", "expert_negative", "expert_twice", "other_choices"}


@pytest.fixture
def process() -> Callable[..., Any]:
    return shared.process()


@pytest.fixture
def run(process: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: process(cases.run_order, *args)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", STEPS)
def test_two_batches(run: Callable[..., Any], steps: str, way: str) -> None:
    run("run_steps", 3, WAYS[way], parse(STEPS[steps]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("order", ORDERS)
def test_order(run: Callable[..., Any], order: str, way: str) -> None:
    run(order, 3, WAYS[way])


def test_shapes_may_change(run: Callable[..., Any]) -> None:
    largest = Case(world=2, experts=16, max_tokens=32, tokens=32, hidden=1024)
    smaller = [
        Case(world=2, experts=4, max_tokens=8, tokens=8, hidden=256),
        Case(world=2, experts=16, max_tokens=1, tokens=1, hidden=128, cast="bf16"),
        Case(world=2, experts=2, max_tokens=32, tokens=(32, 0), topk=1, cast="ue8m0"),
    ]
    run("change_shapes", 2, largest, smaller)


def test_several_buffers(run: Callable[..., Any]) -> None:
    several = [
        Case(world=3, experts=3, topk=2),
        Case(world=3, experts=9, hidden=512, cast="bf16", zero_copy=True),
        Case(world=3, experts=6, mode="hook"),
    ]
    run("several_buffers", 3, several)


@pytest.mark.parametrize("rule", RULES)
def test_rule(process: Callable[..., Any], rule: str) -> None:
    process(cases.run_rule, rule)


@pytest.mark.parametrize("method", ["dispatch", "combine"])
def test_bad_calls(process: Callable[..., Any], method: str) -> None:
    calls = {"dispatch": bad_calls.DISPATCH, "combine": bad_calls.COMBINE}[method]
    names = [bad.name for bad in calls if bad.name not in SEEN_BY_KERNELS]
    process(cases.run_bad_calls, method, names)
