"""Calls in other orders than one dispatch, one combine: micro-batches, repeats, changing shapes."""

from collections.abc import Callable

import orders
import pytest
from cases import Case

from deep_ll.testing import RankPool, run_ranks

STEPS = {
    "both_in_flight": "dispatch 0, dispatch 1, receive 0, receive 1, "
    "combine 0, combine 1, reduce 0, reduce 1",
    "two_batch_overlap": "dispatch 0, dispatch 1, receive 0, combine 0, receive 1, reduce 0, "
    "combine 1, reduce 1",
    "hooks_at_once": "dispatch 0, receive 0, dispatch 1, combine 0, receive 1, reduce 0, "
    "combine 1, reduce 1",
    "second_answers_first": "dispatch 0, receive 0, dispatch 1, receive 1, combine 1, reduce 1, "
    "combine 0, reduce 0",
    "hooks_crossed": "dispatch 0, dispatch 1, receive 1, receive 0, "
    "combine 0, combine 1, reduce 1, reduce 0",
}
WAYS = {
    "hook": Case(world=3, experts=6, mode="hook", tokens=(16, 3, 0)),
    "hook_zero_copy": Case(world=3, experts=6, mode="hook", zero_copy=True),
    "event": Case(world=3, experts=6, mode="event", cast="bf16"),
}


def parse(steps: str) -> list[tuple[str, int]]:
    return [(step.split()[0], int(step.split()[1])) for step in steps.split(", ")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("steps", STEPS)
def test_two_batches(pools: Callable[[int], RankPool], steps: str, way: str) -> None:
    pools(3).run(orders.run_steps, WAYS[way], parse(STEPS[steps]))


@pytest.mark.parametrize("steps", STEPS)
def test_two_batches_on_threads(steps: str) -> None:
    run_ranks(3, orders.run_steps, WAYS["hook"], parse(STEPS[steps]))


@pytest.mark.parametrize("way", WAYS)
def test_dispatch_without_combine(pools: Callable[[int], RankPool], way: str) -> None:
    pools(3).run(orders.dispatch_only, WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_combine_twice(pools: Callable[[int], RankPool], way: str) -> None:
    pools(3).run(orders.combine_twice, WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_choices_may_be_masked(pools: Callable[[int], RankPool], way: str) -> None:
    pools(3).run(orders.mask_after_dispatch, WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_zero_copy_does_not_read_x(pools: Callable[[int], RankPool], way: str) -> None:
    pools(3).run(orders.zero_copy_ignores_x, WAYS[way])


def test_shapes_may_change(pools: Callable[[int], RankPool]) -> None:
    largest = Case(world=2, experts=16, max_tokens=32, tokens=32, hidden=1024, by_bytes=True)
    smaller = [
        Case(world=2, experts=4, max_tokens=8, tokens=8, hidden=256),
        Case(world=2, experts=16, max_tokens=1, tokens=1, hidden=128, cast="bf16"),
        Case(world=2, experts=2, max_tokens=32, tokens=(32, 0), topk=1, cast="ue8m0"),
    ]
    pools(2).run(orders.change_shapes, largest, smaller)


def test_several_buffers(pools: Callable[[int], RankPool]) -> None:
    cases = [
        Case(world=3, experts=3, topk=2),
        Case(world=3, experts=9, hidden=512, cast="bf16", zero_copy=True),
        Case(world=3, experts=6, mode="hook"),
    ]
    pools(3).run(orders.several_buffers, cases)
    run_ranks(3, orders.several_buffers, cases)


def test_deadlines_of_calls_are_not_kept() -> None:
    for before, after in run_ranks(2, orders.own_deadlines, Case(world=2)):
        assert before == after
