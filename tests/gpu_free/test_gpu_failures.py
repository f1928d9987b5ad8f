"""What can go wrong between ranks, on simulated GPUs: who is missing, and who disagrees."""

from __future__ import annotations

import dataclasses

import gpu_kernels
import pytest
import torch
from cases import Case
from gpu_programs import Batch
from gpu_world import BOTH, FORMATS, RECEIVE, SEND, Area, Layout, World
from torch import Tensor

from deep_ll import _native

pytestmark = pytest.mark.skipif(gpu_kernels.NVCC is None, reason=gpu_kernels.WHY_NOT)

COUNTS, ROWS, CREDIT, OUTPUTS = 1, 2, 3, 4  # csrc/ep/args.hpp: Phase
DONE, TIMED_OUT = 0, 1
NOTHING = (0, 0, 0, 0, 0, 0)
THREE = Case(world=3, experts=6, tokens=(5, 0, 7), max_tokens=8)
LAYOUTS = [Layout(1, 4, 1), Layout(3, 8, 2)]
# In steps of the simulation: longer than a round, shorter than what is taken for a hang.
SOON_NS = 10**7
PATTERN = 0xA5
LATE, MISSING = 1, 2  # ranks


def make_world(case: Case = THREE, layout: Layout = LAYOUTS[1]) -> World:
    return World(gpu_kernels.program(), case, layout, SOON_NS)


def memory(world: World) -> list[Tensor]:
    """A copy of all that ranks have, but for what is only read."""
    areas: list[Area] = []
    for rank in world.ranks:
        areas += [rank.heap.area, rank.state, rank.told, rank.out, rank.stats]
        areas += [*rank.ledgers, *rank.choices, *rank.counts, *rank.layouts]
    return [area.tensor.clone() for area in areas]


def is_same(before: list[Tensor], after: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def check_gave_up(world: World, rank: int, report: tuple) -> None:
    """A rank has said whom it waits for, and does nothing any more."""
    launches = world.ranks[rank].launches
    assert launches.failed()
    assert launches.report() == report
    assert launches.disagreement() is None
    check_does_nothing(world, rank)


def check_cost(world: World, rank: int, missing: list[int]) -> None:
    """A rank has waited for those who are missing as long as it could, and not for the others."""
    for peer, cost_ns in enumerate(world.costs(rank)):
        assert (cost_ns > SOON_NS) == (peer in missing), (peer, cost_ns)
        assert 0 <= cost_ns < 2 * SOON_NS


def check_does_nothing(world: World, rank: int) -> None:
    before = memory(world)
    world.launch(rank, "dispatch", world.dispatch(rank, 0))
    world.launch(rank, "combine", world.combine(rank, (0, 0)))
    world.launch(rank, "credit", world.combine(rank, (0, 0)))
    warps = world.layout.warps * (2 * world.layout.blocks + 1)
    assert world.machine.run().steps < 200 * warps
    assert is_same(before, memory(world))


def launch_on(world: World, ranks: list[int], halves: int, kernel: str = "dispatch") -> None:
    """Some ranks call, in slot 0; the others do not."""
    for rank in ranks:
        if kernel == "dispatch":
            world.launch(rank, kernel, world.dispatch(rank, 0, halves))
        else:
            world.launch(rank, kernel, world.combine(rank, (0, 0), halves))


@pytest.mark.parametrize("epoch", [0, 0xFFFFFFFF])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_counts(layout: Layout, epoch: int) -> None:
    world = make_world(layout=layout)
    world.set_epochs(epoch)
    Batch(world, 0, 0).fill()
    launch_on(world, [0, 1], BOTH)
    world.machine.run()
    assert not world.ranks[MISSING].launches.failed()
    for rank in (0, 1):
        report = (TIMED_OUT, COUNTS, (epoch + 1) % 2**32, [(MISSING, epoch)])
        check_gave_up(world, rank, report)
        check_cost(world, rank, [MISSING])


def test_several_missing() -> None:
    world = make_world(dataclasses.replace(THREE, world=3))
    Batch(world, 0, 0).fill()
    launch_on(world, [1], BOTH)
    world.machine.run()
    check_gave_up(world, 1, (TIMED_OUT, COUNTS, 1, [(0, 0), (2, 0)]))
    check_cost(world, 1, [0, 2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_rows(layout: Layout) -> None:
    """A rank has announced what it will send, and gave up before it did."""
    world = make_world(layout=layout)
    Batch(world, 0, 0).fill()
    launch_on(world, [LATE], SEND)
    world.machine.run()
    assert world.ranks[LATE].launches.report() == (TIMED_OUT, COUNTS, 1, [(0, 0), (2, 0)])
    launch_on(world, [0, 2], SEND)
    launch_on(world, [0, 2], RECEIVE)
    world.machine.run()
    for rank in (0, 2):
        check_gave_up(world, rank, (TIMED_OUT, ROWS, 1, [(LATE, 0)]))
        check_cost(world, rank, [LATE])


def exchanged(layout: Layout, case: Case = THREE) -> tuple[World, Batch]:
    """A dispatch that all ranks have received, and outputs."""
    world = make_world(case, layout)
    batch = Batch(world, 0, 0)
    batch.fill()
    batch.dispatch()
    world.machine.run()
    batch.check_received()
    batch.write_outputs(0)
    return world, batch


@pytest.mark.parametrize("kernel", ["combine", "credit"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_credit(layout: Layout, kernel: str) -> None:
    """A rank never reads a combine, and others want its slot again."""
    world, batch = exchanged(layout)
    batch.combine(0, SEND)
    batch.combine(1, SEND)
    launch_on(world, [0, 2], RECEIVE, "combine")
    launch_on(world, [0, 2], BOTH, kernel)
    world.machine.run()
    for rank in (0, 2):
        check_gave_up(world, rank, (TIMED_OUT, CREDIT, 1, [(LATE, 0)]))


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_outputs(layout: Layout, zero_copy: bool) -> None:
    world, _batch = exchanged(layout, dataclasses.replace(THREE, zero_copy=zero_copy))
    out = [rank.out.tensor.clone() for rank in world.ranks]
    launch_on(world, [0, 1], BOTH, "combine")
    world.machine.run()
    assert is_same(out, [rank.out.tensor for rank in world.ranks])
    for rank in (0, 1):
        check_gave_up(world, rank, (TIMED_OUT, OUTPUTS, 1, [(MISSING, 0)]))


def greeting(world: World, rank: int, slot: int) -> tuple[int, ...]:
    shape = world.shapes[rank]
    return (
        *(shape.num_experts, shape.max_tokens, shape.hidden, shape.num_topk),
        *(shape.format, slot),
    )


def untouched(world: World, part: _native.Object, before: list[Tensor]) -> bool:
    """Nobody wrote into a part of the heaps."""
    end = part.offset + part.slots * part.slot_bytes
    heaps = [rank.heap.area.tensor[part.offset : end] for rank in world.ranks]
    return is_same([heap[part.offset : end] for heap in before], heaps)


OTHERS = {
    "hidden": (THREE.experts, THREE.max_tokens, 128, THREE.topk, "fp8", 0),
    "topk": (THREE.experts, THREE.max_tokens, THREE.hidden, 2, "fp8", 0),
    "format": (THREE.experts, THREE.max_tokens, THREE.hidden, THREE.topk, "ue8m0", 0),
    "experts": (3, THREE.max_tokens, THREE.hidden, THREE.topk, "fp8", 0),
    "tokens": (THREE.experts, 7, THREE.hidden, THREE.topk, "fp8", 0),
    "slot": (THREE.experts, THREE.max_tokens, THREE.hidden, THREE.topk, "fp8", 1),
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_disagreement_about_a_dispatch(layout: Layout, what: str) -> None:
    *sizes, cast, slot = OTHERS[what]
    world = make_world(layout=layout)
    Batch(world, 0, 0).fill()
    for rank in world.ranks:
        rank.heap.area.tensor[world.window.counts.offset :] = PATTERN
    before = [rank.heap.area.tensor.clone() for rank in world.ranks]
    world.shapes[LATE] = _native.Shape(THREE.world, LATE, *sizes, FORMATS[cast])
    for rank in range(THREE.world):
        params = world.dispatch(rank, slot if rank == LATE else 0)
        world.launch(rank, "dispatch", params)
    world.machine.run()
    theirs, ours = greeting(world, LATE, slot), greeting(world, 0, 0)
    assert untouched(world, world.window.recv, before)
    assert untouched(world, world.window.combine, before)
    for rank, mine in enumerate(world.ranks):
        found = (
            (0, COUNTS, ours, theirs, 0, 0) if rank == LATE else (LATE, COUNTS, theirs, ours, 0, 0)
        )
        assert mine.launches.failed()
        assert mine.launches.report()[0] == DONE
        assert mine.launches.disagreement() == found
        check_does_nothing(world, rank)


def combine_value(recv_epoch: int, slot: int, pulled: bool) -> int:
    return recv_epoch << 3 | slot << 2 | pulled


@pytest.mark.parametrize("other", [(0, True), (1, False), (1, True)], ids=["way", "slot", "both"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_disagreement_about_a_combine(layout: Layout, other: tuple[int, bool]) -> None:
    world, _batch = exchanged(layout)
    for rank in world.ranks:
        rank.out.tensor.fill_(PATTERN)
    before = [rank.heap.area.tensor.clone() for rank in world.ranks]
    for rank in range(THREE.world):
        slot, pulled = other if rank == LATE else (0, False)
        world.case = dataclasses.replace(THREE, zero_copy=pulled)
        world.launch(rank, "combine", world.combine(rank, (0, slot)))
    world.machine.run()
    ours, theirs = combine_value(1, 0, False), combine_value(1, *other)
    assert untouched(world, world.window.recv, before)
    assert untouched(world, world.window.counts, before)
    for rank, mine in enumerate(world.ranks):
        found = (0, ours, theirs) if rank == LATE else (LATE, theirs, ours)
        assert mine.launches.failed()
        assert mine.launches.disagreement() == (found[0], OUTPUTS, NOTHING, NOTHING, *found[1:])
        assert bool((mine.out.tensor == PATTERN).all())
        check_does_nothing(world, rank)
