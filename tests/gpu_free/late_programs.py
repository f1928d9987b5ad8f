"""Programs in which ranks run as far apart as signals let them, with kernels that stand in for the
caller's: experts that write into the heap, and a host that reads what it was told."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from gpu_programs import Batch
from gpu_world import BOTH, RECEIVE, SEND, SLOTS, WARP_LANES, World

from deep_ll import _native

NUM_COMBINES = 6
# copy_rows(to, from, vectors) copies vectors of 16 bytes. watch(word, data, words) waits for a word
# that is not zero, as the host does, then reads what it speaks of.
HELPERS = """
.visible .entry copy_rows(.param .u64 to, .param .u64 from, .param .u32 count) {
    .reg .pred %p<1>; .reg .b32 %r<7>; .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [to]; ld.param.u64 %rd2, [from]; ld.param.u32 %r1, [count];
    mov.u32 %r2, %tid.x;
MORE:
    setp.ge.u32 %p0, %r2, %r1;
    @%p0 bra DONE;
    mul.wide.u32 %rd0, %r2, 16;
    add.u64 %rd3, %rd1, %rd0;
    add.u64 %rd4, %rd2, %rd0;
    ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd4];
    st.global.v4.u32 [%rd3], {%r3, %r4, %r5, %r6};
    add.u32 %r2, %r2, 32;
    bra MORE;
DONE:
    ret;
}
.visible .entry watch(.param .u64 word, .param .u64 data, .param .u32 count) {
    .reg .pred %p<1>; .reg .b32 %r<3>; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [word]; ld.param.u64 %rd1, [data]; ld.param.u32 %r1, [count];
LOOK:
    ld.acquire.sys.global.u32 %r0, [%rd0];
    setp.eq.u32 %p0, %r0, 0;
    @%p0 bra LOOK;
READ:
    ld.global.u32 %r2, [%rd1];
    add.u64 %rd1, %rd1, 4;
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p0, %r1, 0;
    @%p0 bra READ;
    ret;
}
"""
# The end of bindings/launches.hpp: HostState, from its last byte; NONSENSE ends the disagreement.
FAILED, HAS_BAD_CHOICE, BAD_CHOICE, NONSENSE = 8, 16, 40, 72
THEIR_VALUE = NONSENSE + 8


def call(
    world: World, gpu: int, kernel: str, to: int, source: int, count: int, stream: int
) -> None:
    """Launches a helper."""
    params = np.array([to, source, count], np.uint64).tobytes()[:20]
    world.machine.launch(gpu, kernel, 1, WARP_LANES, 0, params, stream)


def watch(world: World, rank: int, word: int, begin: int, end: int) -> None:
    """A host waits for a word of what a rank tells it, then reads. Another GPU stands in for it:
    of what the kernels know nothing but the system's scope reaches there. Counted from the end."""
    told = world.ranks[rank].told
    last = told.address + _native.Launches.HOST_STATE_BYTES
    gpu = (rank + 1) % world.case.world
    call(world, gpu, "watch", last - word, last - begin, (begin - end) // 4, stream=1)


def rows_are_read(world: World) -> None:
    """Dispatches one after the other, and a kernel behind each that reads what arrived, as experts
    do: while peers send what is next."""
    batches = [Batch(world, 0, slot) for slot in range(SLOTS)]
    batches[0].fill()
    for index in range(world.case.rounds):
        batches[index % SLOTS].dispatch()
        for rank, mine in enumerate(world.ranks):
            shape, recv = world.shapes[rank], world.window.recv
            rows = mine.heap.area.address + recv.offset + index % SLOTS * recv.slot_bytes
            rows += shape.recv_offsets[0]
            count = shape.num_local * shape.max_rows * shape.row_bytes // 16
            call(world, rank, "copy_rows", mine.outputs.address, rows, count, stream=0)
    world.machine.run()
    for batch in batches:
        batch.check_received()


def far_hooks(world: World) -> None:
    """Dispatches received after the next was sent, over and over: whoever has sent the one after
    that may be two ahead of who receives."""
    batches = [Batch(world, 0, slot) for slot in range(SLOTS)]
    batches[0].fill()
    for _ in range(world.case.rounds):
        for halves in (SEND, RECEIVE):
            for batch in batches:
                batch.dispatch(halves)
    world.machine.run()
    for batch in batches:
        batch.check_received()


def deferred(world: World) -> None:
    """Two dispatches of different tokens are under way, and are answered in turn."""
    batches = [Batch(world, index, index % SLOTS) for index in range(2 * SLOTS)]
    for pair in (batches[:SLOTS], batches[SLOTS:]):
        for batch in pair:
            batch.fill()
            batch.dispatch(SEND)
            world.machine.run()
        for batch in pair:
            batch.dispatch(RECEIVE)
        world.machine.run()
        for batch in pair:
            batch.check_received()
            batch.fill()
            batch.write_outputs(batch.slot)
            batch.combine(batch.slot)
            world.machine.run()
            batch.check_combined()


class Late:
    """Combines of one dispatch, all on the streams at once."""

    def __init__(self, world: World) -> None:
        self.world, self.batch = world, Batch(world, 0, 0)
        self.batch.fill()
        self.batch.dispatch()
        world.machine.run()
        for rank in world.ranks:
            shape = world.shapes[rank.heap.rank]
            sizes = (shape.num_local, shape.max_rows, world.case.hidden)
            into = rank.outputs.tensor.view(torch.bfloat16).view(*sizes)
            for rows, output in zip(into, self.batch.outputs[rank.heap.rank], strict=True):
                rows[: len(output)] = output

    def combine(self, slot: int, halves: int, pulled: bool = False) -> None:
        """The launches of a combine. If it is pulled, experts write where the credit lets them."""
        world = self.world
        world.case = dataclasses.replace(world.case, zero_copy=pulled)
        if pulled and halves & SEND:
            for rank, mine in enumerate(world.ranks):
                world.launch(rank, "credit", world.combine(rank, (0, slot)))
                to = mine.heap.area.address + world.window.combine.offset
                to += slot * world.window.combine.slot_bytes
                count = mine.outputs.tensor.numel() // 16
                call(world, rank, "copy_rows", to, mine.outputs.address, count, stream=0)
        self.batch.combine(slot, halves)

    def finish(self) -> None:
        """The last of them is what remains."""
        self.world.machine.run()
        self.batch.check_combined()


def late_combines(world: World, ways: str = "push") -> None:
    """Each is finished after the next was sent: both slots, and the words of both parities. `ways`:
    push, pull, or one after the other in each slot."""
    late = Late(world)
    pulled = [ways == "pull" or (ways == "mixed" and i // SLOTS % 2 == 0) for i in range(99)]
    late.combine(0, SEND, pulled[0])
    for index in range(1, NUM_COMBINES):
        late.combine(index % SLOTS, SEND, pulled[index])
        late.combine((index - 1) % SLOTS, RECEIVE, pulled[index - 1])
    late.combine((NUM_COMBINES - 1) % SLOTS, RECEIVE, pulled[NUM_COMBINES - 1])
    late.finish()


def one_slot_again(world: World, pulled: bool = False) -> None:
    """Combines that follow each other in one slot."""
    late = Late(world)
    for _ in range(NUM_COMBINES):
        late.combine(1, BOTH, pulled)
    late.finish()


def announced_before_heard(world: World) -> None:
    """A rank sends its next dispatch while another still wants its word on an older combine, and
    finds the one that was told with the dispatch. It is slow: many of its blocks only wait."""
    late, following = Late(world), Batch(world, 0, 1)
    late.combine(0, SEND)
    late.combine(1, SEND)
    late.combine(0, RECEIVE)
    ordinary = world.layout
    for rank in range(world.case.world):
        world.layout = ordinary._replace(blocks=12) if rank == 0 else ordinary
        world.launch(rank, "combine", world.combine(rank, (0, 0), SEND))
    world.layout = ordinary
    following.dispatch(SEND)
    late.combine(1, RECEIVE)
    late.combine(0, RECEIVE)
    following.dispatch(RECEIVE)
    late.finish()
    following.check_received()
