"""What the ranks of the twin's tests do: exchanges and orders that ranks on CPUs do too."""

from collections.abc import Callable
from typing import Any

import bad_calls
import exchange
import orders
import test_bad_input
from cases import Case
from fake_cuda.driver import Launch

import deep_ll
from deep_ll import kernels
from deep_ll.testing import run_ranks
from twin import world


def make_buffer(group: Any, case: Case, **options: Any) -> deep_ll.Buffer:
    return deep_ll.Buffer(
        group,
        max_tokens_per_rank=case.max_tokens,
        hidden=case.hidden,
        num_experts=case.experts,
        device="cuda",
        **options,
    )


def on_ranks(world_size: int, work: Callable[..., Any], *args: Any) -> list[Any]:
    """Runs `work(group, *args)` on so many ranks of the fake GPU."""
    world.enter().forget_launches()
    for module in (exchange, orders, bad_calls, test_bad_input):
        module.make_buffer = make_buffer
    return run_ranks(world_size, work, *args, timeout_s=20)


def own_launches() -> list[Launch]:
    """Those on this thread's streams, and what its streams have waited for."""
    own = world.own_stream()
    streams = (own, own + world.SIDE, own + world.OTHER)
    return [launch for launch in world.enter().launches() if launch.stream in streams]


def kernel_of(launch: Launch) -> tuple[str, str]:
    """Tier and kernel of a launch."""
    for tier, facts in kernels.description()["tiers"].items():
        for kernel, names in facts["kernels"].items():
            if names["name"] == launch.name:
                return tier, kernel
    return "", launch.name


def run_exchange(case: Case) -> int:
    """All rounds of a case, compared with the oracle; how many launches there were."""
    on_ranks(case.world, exchange.exchange, case)
    return len(world.enter().launches())


def run_order(name: str, world_size: int, *args: Any) -> None:
    """A function of orders.py."""
    on_ranks(world_size, getattr(orders, name), *args)


def run_rule(name: str) -> None:
    """A function of test_bad_input.py."""
    on_ranks(2, getattr(test_bad_input, name))


def run_bad_calls(method: str, names: list[str]) -> None:
    """Calls of bad_calls.py."""
    for bad in {"dispatch": bad_calls.DISPATCH, "combine": bad_calls.COMBINE}[method]:
        if bad.name in names:
            on_ranks(2, test_bad_input.bad_call, method, bad)
