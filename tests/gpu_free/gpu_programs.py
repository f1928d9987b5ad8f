"""Programs of launches for ranks on simulated GPUs; every byte is compared with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from cases import Inputs, make_inputs, make_outputs
from gpu_world import BOTH, RECEIVE, SEND, SLOTS, World
from torch import Tensor

from deep_ll import reference
from deep_ll.testing.compare import assert_received, assert_same_bits


class Batch:
    """One dispatch of all ranks and the combines that answer it."""

    def __init__(self, world: World, index: int, slot: int) -> None:
        self.world, self.index, self.slot = world, index, slot
        self.inputs: list[Inputs] = make_inputs(world.case, index)
        self.expected = world.expected(self.inputs)
        self.outputs: list[list[Tensor]] = make_outputs(world.case, index, self.expected)

    def fill(self) -> None:
        """All ranks get their tokens. Nothing may be under way that reads the last ones."""
        for rank in self._ranks():
            self.world.fill(rank, self.inputs[rank])
            self.world.ranks[rank].stats.tensor.zero_()

    def dispatch(self, halves: int = BOTH) -> None:
        """Launches it on all ranks."""
        for rank in self._ranks():
            self.world.launch(rank, "dispatch", self.world.dispatch(rank, self.slot, halves))

    def check_received(self) -> None:
        """Every byte of what arrived."""
        for rank in self._ranks():
            views, counts = self.world.received(rank, self.slot)
            handle = (views.src_info, counts.layout_range)
            assert_received(views.x, counts.recv_count, handle, self.expected[rank])

    def check_stats(self) -> None:
        """The counters grew by what arrived."""
        for rank in self._ranks():
            stats = self.world.ranks[rank].stats.tensor.view(torch.int32)
            assert stats.tolist() == [len(rows.src_info) for rows in self.expected[rank]]

    def write_outputs(self, combine_slot: int) -> None:
        """The experts answer; in place once the memory is free, if the case says so."""
        if self.world.case.zero_copy:
            for rank in self._ranks():
                slots = (self.slot, combine_slot)
                self.world.launch(rank, "credit", self.world.combine(rank, slots))
            self.world.machine.run()
        for rank in self._ranks():
            self.world.put_outputs(rank, combine_slot, self.outputs[rank])

    def combine(self, combine_slot: int, halves: int = BOTH) -> None:
        """Launches the answer on all ranks."""
        for rank in self._ranks():
            params = self.world.combine(rank, (self.slot, combine_slot), halves)
            self.world.launch(rank, "combine", params)

    def check_combined(self) -> None:
        """Every bit of the sums."""
        for rank, mine in enumerate(self.inputs):
            expected = reference.combine(
                rank,
                self.outputs,
                self.expected,
                mine.topk_idx,
                mine.topk_weights,
                use_logfmt=self.world.case.logfmt,
            )
            assert_same_bits(self.world.combined(rank), expected, f"combined of rank {rank}")

    def _ranks(self) -> Iterable[int]:
        return range(self.world.case.world)


def plain(world: World, slots: Callable[[int], int] = lambda index: index % SLOTS) -> None:
    """Rounds of dispatch and combine, a launch each. With the same slot each time it is what a
    recorded graph does: the very same launches again."""
    for index in range(world.case.rounds):
        batch = Batch(world, index, slots(index))
        batch.fill()
        batch.dispatch()
        world.machine.run()
        batch.check_received()
        batch.check_stats()
        batch.write_outputs(slots(index))
        batch.combine(slots(index))
        world.machine.run()
        batch.check_combined()


def hooks(world: World) -> None:
    """Two launches each, all put on the streams at once: dispatches receive after the next one
    was sent, combines as well. Ranks run as far ahead as their signals let them."""
    first, second = Batch(world, 0, 0), Batch(world, 0, 1)
    second.inputs, second.expected = first.inputs, first.expected
    second.outputs = first.outputs
    first.fill()
    for _ in range(world.case.rounds):
        first.dispatch(SEND)
        second.dispatch(SEND)
        first.dispatch(RECEIVE)
        second.dispatch(RECEIVE)
        world.machine.run()
        first.check_received()
        second.check_received()
        first.write_outputs(0)
        first.combine(0, SEND)
        if world.case.zero_copy:
            second.write_outputs(1)
        second.combine(1, SEND)
        first.combine(0, RECEIVE)
        world.machine.run()
        first.check_combined()
        second.combine(1, RECEIVE)
        world.machine.run()
        second.check_combined()


def free_running(world: World) -> None:
    """All rounds are put on the streams before anything runs: nobody waits for anybody but where
    signals say so. The contents are the same in each round."""
    batches = [Batch(world, 0, slot) for slot in range(SLOTS)]
    batches[0].fill()
    batches[0].write_outputs(0)
    for index in range(world.case.rounds):
        batches[index % SLOTS].dispatch()
        if not world.case.zero_copy:
            batches[index % SLOTS].combine(index % SLOTS)
    world.machine.run()
    for batch in batches:
        batch.check_received()
    if not world.case.zero_copy:
        batches[0].check_combined()


PROGRAMS: dict[str, Callable[[World], None]] = {
    "plain": plain,
    "replayed": lambda world: plain(world, lambda _index: 1),
    "hooks": hooks,
    "free_running": free_running,
}
