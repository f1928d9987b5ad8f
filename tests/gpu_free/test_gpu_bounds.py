"""Choices that cannot be, and bytes of the heap that are nobody's, on simulated GPUs."""

from __future__ import annotations

import dataclasses

import gpu_kernels
import pytest
import torch
from cases import Case, make_outputs
from gpu_programs import Batch
from gpu_world import Layout, World
from torch import Tensor

pytestmark = pytest.mark.skipif(gpu_kernels.NVCC is None, reason=gpu_kernels.WHY_NOT)

THREE = Case(world=3, experts=6, tokens=(5, 0, 7), max_tokens=8)
LAYOUTS = [Layout(1, 4, 1), Layout(3, 8, 2)]
PATTERN = 0xA5
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
    case = Case(world=2, tokens=5, max_tokens=8, idx=name.split("-")[0])
    world = World(gpu_kernels.program(), case, layout)
    batch = Batch(world, 0, 0)
    first = spoil(batch, 1, BAD[name])
    batch.outputs = make_outputs(world.case, 0, batch.expected)
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
    world = World(gpu_kernels.program(), Case(world=2, tokens=5, max_tokens=8), layout)
    batch = Batch(world, 0, 0)
    batch.fill()
    batch.dispatch()
    world.machine.run()
    batch.write_outputs(0)
    chosen = batch.inputs[0].topk_idx
    another = next(expert for expert in range(8) if expert not in chosen[3].tolist())
    given = chosen.clone()
    given[3, 2] = another
    given[4, 0] = -1  # may be left out
    world.ranks[0].indices.put(given)
    batch.inputs[0].topk_idx[3, 2] = batch.inputs[0].topk_idx[4, 0] = -1
    batch.combine(0)
    world.machine.run()
    batch.check_combined()
    assert world.ranks[0].launches.take_bad_choice() == (NOT_DISPATCHED, 3, 2, another)


def mark_received(world: World, mask: Tensor, rank: int, slot: int, counts: list[int]) -> None:
    """Rows, what is used of labels, scales and origins."""
    shape, start = (
        world.shapes[rank],
        world.window.recv.offset + slot * world.window.recv.slot_bytes,
    )
    x, labels, scales, src_info = (start + offset for offset in shape.recv_offsets)
    origin = (shape.scale_words * 4 + 7) // 8 * 8

    def part(at: int, *sizes: int) -> Tensor:
        num_bytes = int(torch.tensor((shape.num_local, *sizes)).prod())
        return mask[at : at + num_bytes].view(shape.num_local, *sizes)

    for local, count in enumerate(counts):
        part(x, shape.max_rows, shape.row_bytes)[local, :count] = True
        part(labels, shape.max_rows, shape.label_bytes)[local, :count, : origin // 16 * 16 + 16] = (
            True
        )
        part(scales, shape.scale_words, shape.max_rows * 4)[local, :, : count * 4] = True
        part(src_info, shape.max_rows, 4)[local, :count] = True


def mark_counts(world: World, mask: Tensor, epoch: int) -> None:
    counts, stride = world.window.counts, world.window.max_experts * 2
    for source in range(world.case.world):
        at = counts.offset + epoch % 2 * counts.slot_bytes + source * stride
        mask[at : at + 2 * world.case.experts] = True
        at = world.window.desks.offset + 128 * source
        mask[at : at + 5 * 8] = True  # csrc/ep/window.hpp: Desk; two of shrinking buffers follow
        at += 7 * 8 + epoch % 2 * 24
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
    world = World(gpu_kernels.program(), case, layout)
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
