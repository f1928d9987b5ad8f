"""What can go wrong between ranks, on simulated GPUs: who is missing, who disagrees, choices that
cannot be, and that nothing is written where nothing belongs."""

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
SOON_NS = 10**7  # in steps of the simulation: longer than a round, shorter than what is a hang
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


def check_does_nothing(world: World, rank: int) -> None:
    before = memory(world)
    world.launch(rank, "dispatch", world.dispatch(rank, 0))
    world.launch(rank, "combine", world.combine(rank, (0, 0)))
    world.launch(rank, "credit", world.combine(rank, (0, 0)))
    warps = world.layout.warps * (2 * world.layout.blocks + 1)
    assert world.machine.run().steps < 200 * warps
    assert is_same(before, memory(world))


def send_to(world: World, ranks: list[int], halves: int, kernel: str = "dispatch") -> None:
    for rank in ranks:
        one = world.dispatch(rank, 0, halves) if kernel == "dispatch" else None
        world.launch(rank, kernel, one or world.combine(rank, (0, 0), halves))


@pytest.mark.parametrize("epoch", [0, 0xFFFFFFFF])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_counts(layout: Layout, epoch: int) -> None:
    world = make_world(layout=layout)
    world.set_epochs(epoch)
    Batch(world, 0, 0).fill()
    send_to(world, [0, 1], BOTH)
    world.machine.run()
    assert not world.ranks[MISSING].launches.failed()
    for rank in (0, 1):
        report = (TIMED_OUT, COUNTS, (epoch + 1) % 2**32, [(MISSING, epoch)])
        check_gave_up(world, rank, report)


def test_several_missing() -> None:
    world = make_world(dataclasses.replace(THREE, world=3))
    Batch(world, 0, 0).fill()
    send_to(world, [1], BOTH)
    world.machine.run()
    check_gave_up(world, 1, (TIMED_OUT, COUNTS, 1, [(0, 0), (2, 0)]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_rows(layout: Layout) -> None:
    """A rank has announced what it will send, and gave up before it did."""
    world = make_world(layout=layout)
    Batch(world, 0, 0).fill()
    send_to(world, [LATE], SEND)
    world.machine.run()
    assert world.ranks[LATE].launches.report() == (TIMED_OUT, COUNTS, 1, [(0, 0), (2, 0)])
    send_to(world, [0, 2], SEND)
    send_to(world, [0, 2], RECEIVE)
    world.machine.run()
    for rank in (0, 2):
        check_gave_up(world, rank, (TIMED_OUT, ROWS, 1, [(LATE, 0)]))


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
    send_to(world, [0, 2], RECEIVE, "combine")
    send_to(world, [0, 2], BOTH, kernel)
    world.machine.run()
    for rank in (0, 2):
        check_gave_up(world, rank, (TIMED_OUT, CREDIT, 1, [(LATE, 0)]))


@pytest.mark.parametrize("zero_copy", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_outputs(layout: Layout, zero_copy: bool) -> None:
    world, _batch = exchanged(layout, dataclasses.replace(THREE, zero_copy=zero_copy))
    out = [rank.out.tensor.clone() for rank in world.ranks]
    send_to(world, [0, 1], BOTH, "combine")
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
    "experts": (3, THREE.max_tokens, THREE.hidden, 2, "fp8", 0),
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
        found = (0, COUNTS, ours, theirs, 0, 0) if rank == LATE else (LATE, COUNTS, theirs, ours, 0, 0)
        assert mine.launches.failed()
        assert mine.launches.report()[0] == DONE
        assert mine.launches.disagreement() == found
        check_does_nothing(world, rank)


def combine_value(recv_epoch: int, slot: int, pulled: bool) -> int:
    return recv_epoch << 2 | slot << 1 | pulled


@pytest.mark.parametrize("other", [(0, True), (1, False), (1, True)], ids=["way", "slot", "both"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_disagreement_about_a_combine(layout: Layout, other: tuple[int, bool]) -> None:
    world, batch = exchanged(layout)
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
    del batch


OUT_OF_RANGE, REPEATED, NOT_DISPATCHED = 1, 2, 3  # csrc/ep/choices.hpp: BadChoice
# token, choice, value; what is told of it.
BAD = {
    "int64-too_large": [(3, 1, 8, OUT_OF_RANGE), (4, 0, 2**31 - 1, OUT_OF_RANGE)],
    "int64-negative": [(1, 3, -2, OUT_OF_RANGE), (2, 0, -(2**63), OUT_OF_RANGE)],
    "int64-beyond_32_bits": [(0, 0, 2**32 + 1, OUT_OF_RANGE), (0, 1, -(2**32), OUT_OF_RANGE)],
    "int32-too_large": [(2, 2, 8, OUT_OF_RANGE), (2, 3, 2**31 - 1, OUT_OF_RANGE)],
    "int32-negative": [(4, 3, -(2**31), OUT_OF_RANGE)],
    "int64-repeated": [(2, 3, None, REPEATED), (4, 1, None, REPEATED)],
    "int32-many": [(t, k, 1000, OUT_OF_RANGE) for t in range(1, 5) for k in range(4)],
}


def spoil(batch: Batch, rank: int, bad: list[tuple]) -> tuple[int, int, int, int]:
    """Puts bad choices where good ones are; the oracle finds none there. Gives the first."""
    inputs, told = batch.inputs[rank], []
    given = inputs.topk_idx.clone()
    for token, choice, value, what in bad:
        given[token, choice] = given[token, 0] if value is None else value
        told.append((what, token, choice, int(given[token, choice])))
        inputs.topk_idx[token, choice] = -1
    batch.expected = batch.world.expected(batch.inputs)
    batch.fill()
    batch.world.ranks[rank].indices.put(given)
    return min(told, key=lambda entry: entry[1:3])


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bad_choices(layout: Layout, name: str) -> None:
    """They count as none, in dispatch and combine, and the first is told once."""
    world = make_world(Case(world=2, tokens=5, max_tokens=8, idx=name.split("-")[0]), layout)
    batch = Batch(world, 0, 0)
    first = spoil(batch, 1, BAD[name])
    batch.outputs = [[torch.ones(len(e.src_info), 256).bfloat16() for e in rank] for rank in batch.expected]
    launches = world.ranks[1].launches
    batch.dispatch()
    world.machine.run()
    batch.check_received()
    batch.check_stats()
    assert launches.take_bad_choice() == first
    assert launches.take_bad_choice() is None
    batch.write_outputs(0)
    batch.combine(0)
    world.machine.run()
    batch.check_combined()
    # What was refused was not dispatched either; out of range comes first.
    assert launches.take_bad_choice() == first
    assert world.ranks[0].launches.take_bad_choice() is None
    assert not launches.failed()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_combine_of_what_was_not_dispatched(layout: Layout) -> None:
    world, batch = exchanged(layout, Case(world=2, tokens=5, max_tokens=8))
    chosen = batch.inputs[0].topk_idx
    others = [(expert, 3, 2) for expert in range(8) if expert not in chosen[3].tolist()]
    given = chosen.clone()
    for expert, token, choice in others[:1]:
        given[token, choice] = expert
    given[4, 0] = -1  # may be left out
    world.ranks[0].indices.put(given)
    batch.inputs[0].topk_idx[3, 2] = batch.inputs[0].topk_idx[4, 0] = -1
    batch.combine(0)
    world.machine.run()
    batch.check_combined()
    assert world.ranks[0].launches.take_bad_choice() == (NOT_DISPATCHED, 3, 2, others[0][0])


def mark_received(world: World, mask: Tensor, rank: int, slot: int, counts: list[int]) -> None:
    """Rows, what is used of labels, scales and origins."""
    shape, start = world.shapes[rank], world.window.recv.offset + slot * world.window.recv.slot_bytes
    x, labels, scales, src_info = (start + offset for offset in shape.recv_offsets)
    origin = (shape.scale_words * 4 + 7) // 8 * 8

    def part(at: int, *sizes: int) -> Tensor:
        num_bytes = int(torch.tensor((shape.num_local, *sizes)).prod())
        return mask[at : at + num_bytes].view(shape.num_local, *sizes)

    for local, count in enumerate(counts):
        part(x, shape.max_rows, shape.row_bytes)[local, :count] = True
        part(labels, shape.max_rows, shape.label_bytes)[local, :count, : origin // 16 * 16 + 16] = True
        part(scales, shape.scale_words, shape.max_rows * 4)[local, :, : count * 4] = True
        part(src_info, shape.max_rows, 4)[local, :count] = True


def mark_counts(world: World, mask: Tensor, epoch: int) -> None:
    counts, stride = world.window.counts, world.window.max_experts * 2
    for source in range(world.case.world):
        at = counts.offset + epoch % 2 * counts.slot_bytes + source * stride
        mask[at : at + 2 * world.case.experts] = True
        at = world.window.desks.offset + 128 * source
        mask[at : at + 5 * 8] = True  # csrc/ep/window.hpp: Desk
        at += 5 * 8 + epoch % 2 * 24
        mask[at : at + 24] = True


def mark_returned(world: World, mask: Tensor, slot: int, topk_idx: Tensor) -> None:
    combine, row = world.window.combine, world.case.hidden * 2
    for token, choice in (topk_idx >= 0).nonzero().tolist():
        at = combine.offset + slot * combine.slot_bytes
        at += (choice * world.case.max_tokens + token) * row
        mask[at : at + row] = True


CASES = [
    THREE,
    dataclasses.replace(THREE, cast="bf16", hidden=200),
    dataclasses.replace(THREE, cast="ue8m0", hidden=640, routing="holes"),
    dataclasses.replace(THREE, cast="rounded", hidden=384, zero_copy=True),
]


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_else_is_written(layout: Layout, case: Case, slot: int) -> None:
    world = make_world(case, layout)
    for rank in world.ranks:
        rank.heap.area.tensor.fill_(PATTERN)
        rank.out.tensor.fill_(PATTERN)
    world.set_epochs(0)
    before = [rank.heap.area.tensor.clone() for rank in world.ranks]
    batch = Batch(world, 0, slot)
    batch.fill()
    batch.dispatch()
    world.machine.run()
    batch.check_received()
    masks = [torch.zeros(len(heap), dtype=torch.bool) for heap in before]
    for rank, mask in enumerate(masks):
        mark_counts(world, mask, epoch=1)
        counts = [len(rows.src_info) for rows in batch.expected[rank]]
        mark_received(world, mask, rank, slot, counts)
    check_outside(world, masks, before)
    batch.write_outputs(slot)
    if case.zero_copy:
        before = [rank.heap.area.tensor.clone() for rank in world.ranks]
    batch.combine(slot)
    world.machine.run()
    batch.check_combined()
    for rank, mask in enumerate(masks):
        if not case.zero_copy:
            mark_returned(world, mask, slot, batch.inputs[rank].topk_idx)
        used = case.num_tokens(rank) * case.hidden * 2
        assert bool((world.ranks[rank].out.tensor[used:] == PATTERN).all())
    check_outside(world, masks, before)


def check_outside(world: World, masks: list[Tensor], before: list[Tensor]) -> None:
    for rank, (mask, heap) in enumerate(zip(masks, before, strict=True)):
        changed = (world.ranks[rank].heap.area.tensor != heap) & ~mask
        assert not changed.any(), f"rank {rank}: bytes {changed.nonzero().view(-1)[:8].tolist()}"


