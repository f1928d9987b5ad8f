"""Programs for simulated GPUs whose ranks may be left out; every byte is compared with the oracle,
in which those are absent."""

from __future__ import annotations

import torch
from cases import make_outputs
from gpu_programs import Batch
from gpu_world import BOTH, RECEIVE, SEND, World

from deep_ll import reference
from deep_ll.testing.compare import assert_received, assert_same_bits

GONE = 1  # the rank that is
MEET = 4
EVICTED = 4  # csrc/team/signal.hpp: WaitOutcome
TRASH = 0xA5
NOTE_BYTES = 16
ROWS_WORD = 1  # of a desk


class Remaining(Batch):
    """A batch of the ranks that remain."""

    def __init__(self, world: World, index: int, slot: int) -> None:
        super().__init__(world, index, slot)
        self.survivors = [rank for rank in range(world.case.world) if rank != GONE]

    def leave_out(self) -> None:
        """From now on nobody expects anything of the rank that is gone."""
        lost = self.inputs[GONE]
        self.inputs[GONE] = lost._replace(topk_idx=torch.full_like(lost.topk_idx, -1))
        self.expected = self.world.expected(self.inputs)
        self.outputs = make_outputs(self.world.case, self.index, self.expected)

    def launch(self, kernel: str, halves: int, combine_slot: int = 0) -> None:
        """On the survivors, to the end."""
        for rank in self.survivors:
            slots = (self.slot, combine_slot)
            if kernel == "dispatch":
                params = self.world.dispatch(rank, self.slot, halves)
            else:
                params = self.world.combine(rank, slots, halves)
            self.world.launch(rank, kernel, params)
        self.world.machine.run()

    def check_masks(self, masked: list[int]) -> None:
        """Whom each survivor has left out."""
        for rank in self.survivors:
            mask = self.world.ranks[rank].mask
            assert mask is not None
            assert mask.tensor.nonzero().flatten().tolist() == masked, f"mask of rank {rank}"
            assert not self.world.ranks[rank].launches.failed(), f"rank {rank} gave up"

    def check_survivors(self) -> None:
        """What they received."""
        for rank in self.survivors:
            views, counts = self.world.received(rank, self.slot)
            handle = (views.src_info, counts.layout_range)
            assert_received(views.x, counts.recv_count, handle, self.expected[rank])

    def answer(self, combine_slot: int) -> None:
        """The survivors' experts answer, and the sums are compared."""
        if self.world.case.zero_copy:
            self.launch("credit", BOTH, combine_slot)
        for rank in self.survivors:
            self.world.put_outputs(rank, combine_slot, self.outputs[rank])
        self.launch("combine", BOTH, combine_slot)
        num_local = self.world.case.experts // self.world.case.world
        for rank in self.survivors:
            mine = self.inputs[rank]
            choices = mine.topk_idx.masked_fill(mine.topk_idx // num_local == GONE, -1)
            wanted = reference.combine(
                rank, self.outputs, self.expected, choices, mine.topk_weights
            )
            assert_same_bits(self.world.combined(rank), wanted, f"combined of rank {rank}")


def whole_round(world: World, index: int, masked: list[int]) -> None:
    """A round of the survivors."""
    batch = Remaining(world, index, index % 2)
    batch.leave_out()
    batch.fill()
    batch.launch("dispatch", BOTH)
    batch.check_masks(masked)
    batch.check_survivors()
    batch.answer(index % 2)


def never_comes(world: World) -> None:
    """A rank makes no call."""
    for index in range(3):
        whole_round(world, index, [GONE])


def rows_are_lost(world: World) -> None:
    """A rank was granted rows, wrote something and said nothing."""
    batch = Remaining(world, 0, 0)
    batch.fill()
    batch.dispatch(SEND)
    world.machine.run()
    for rank in batch.survivors:
        heap, window, shape = world.ranks[rank].heap, world.window, world.shapes[rank]
        heap.view(window.desks.offset, torch.int64, world.case.world, 16)[GONE, ROWS_WORD] = 0
        views, counts = world.received(rank, 0)
        x = views.x[0] if isinstance(views.x, tuple) else views.x
        rows = x.view(torch.uint8).view(shape.num_local, -1, shape.row_bytes)
        for local, ranges in enumerate(counts.layout_range.tolist()):
            begin, count = ranges[GONE] >> 32, ranges[GONE] & 0xFFFFFFFF
            rows[local, begin : begin + count] = TRASH
    batch.leave_out()
    batch.launch("dispatch", RECEIVE)
    batch.check_masks([GONE])
    batch.check_survivors()
    batch.answer(0)
    for index in (1, 2):
        whole_round(world, index, [GONE])


def others_have_heard(world: World) -> None:
    """One rank has left out a rank that the others hear: they do so, too."""
    mask = world.ranks[0].mask
    assert mask is not None
    mask.tensor[GONE] = 1
    batch = Remaining(world, 0, 0)
    batch.fill()
    batch.leave_out()
    world.launch(GONE, "dispatch", world.dispatch(GONE, 0, SEND))
    batch.launch("dispatch", BOTH)
    batch.check_masks([GONE])
    batch.check_survivors()
    batch.answer(0)
    check_left(world, [0])


def check_left(world: World, at_least: list[int]) -> None:
    """The rank that is gone knows it, and has written no rows since."""
    launches = world.ranks[GONE].launches
    outcome, _, _, who = launches.report()
    assert launches.failed()
    assert outcome == EVICTED
    assert {rank for rank, _ in who} >= set(at_least)


def goes_on(world: World) -> None:
    """A rank that was left out before it calls."""
    at = world.window.notes.offset + 2 * NOTE_BYTES
    world.ranks[GONE].heap.view(at, torch.int64, 1)[0] = 1
    for rank in world.ranks:
        rank.heap.area.tensor[world.window.recv.offset :] = TRASH
    Batch(world, 0, 0).fill()
    world.launch(GONE, "dispatch", world.dispatch(GONE, 0, BOTH))
    world.machine.run()
    check_left(world, [2])
    for rank in world.ranks:
        assert bool((rank.heap.area.tensor[world.window.recv.offset :] == TRASH).all())


def meetings(world: World) -> None:
    """All meet, then all but one."""
    everybody = Batch(world, 0, 0)
    for rank in range(world.case.world):
        world.launch(rank, "credit", world.combine(rank, (0, 0), MEET))
    world.machine.run()
    batch = Remaining(world, everybody.index, 0)
    batch.check_masks([])
    batch.launch("credit", MEET)
    batch.check_masks([GONE])
