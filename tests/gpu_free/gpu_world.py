"""Ranks on simulated GPUs: their memory, their launches, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import ptx
import torch
from cases import CASTS, Case, Inputs
from torch import Tensor

from deep_ll import _native, reference
from deep_ll.kinds import Counts
from deep_ll.members import mask_bytes
from deep_ll.views import RecvViews, recv_views

FORMATS = {name: index for index, name in enumerate(CASTS)}
SEND, RECEIVE = 1, 2
BOTH = SEND | RECEIVE
SLOTS = 2
WARP_LANES = 32
TIMEOUT_NS = 10**12


class Layout(NamedTuple):
    """How large launches are, and which arrangement of time."""

    blocks: int = 2
    warps: int = 4
    seed: int = 1


_ORDINARY = Layout()


class Network(NamedTuple):
    """Peers that kernels reach by NVSHMEM: those of other nodes."""

    ranks_per_node: int = 1
    num_queues: int = 3
    first_queue: int = 5  # the number of a queue pair is not its index

    def links(self, rank: int, peer: int) -> bool:
        return rank // self.ranks_per_node != peer // self.ranks_per_node


class Area(NamedTuple):
    """An allocation of a simulated GPU."""

    address: int
    tensor: Tensor  # uint8, over the same memory

    def put(self, values: Tensor) -> int:
        """Copies a tensor to its start."""
        if values.numel():
            flat = values.contiguous().view(-1).view(torch.uint8)
            self.tensor[: flat.numel()] = flat
        return self.address


class Heap:
    """One rank's heap as deep_ll.views sees it."""

    def __init__(self, area: Area, rank: int, num_ranks: int) -> None:
        self.area, self.rank, self.num_ranks = area, rank, num_ranks
        self.num_local_ranks, self.num_bytes = num_ranks, area.tensor.numel()
        self.device = torch.device("cpu")

    def view(self, offset: int, dtype: torch.dtype, *sizes: int) -> Tensor:
        count = int(np.prod(sizes, dtype=np.int64))
        part = self.area.tensor[offset : offset + count * dtype.itemsize]
        return part.view(dtype).view(*sizes)

    def close(self) -> None:
        pass


@dataclass
class Rank:
    """The memory of one rank."""

    heap: Heap
    launches: _native.Launches
    state: Area
    told: Area
    x: Area
    indices: Area
    weights: Area
    out: Area
    outputs: Area
    stats: Area
    costs: Area
    ledgers: list[Area]
    choices: list[Area]
    counts: list[Area]
    layouts: list[Area]
    mask: Area | None = None


class World:
    """`case.world` ranks, one on each GPU of a machine, and the launches of a Buffer's calls."""

    def __init__(
        self,
        program: ptx.Program,
        case: Case,
        layout: Layout = _ORDINARY,
        timeout_ns: int = TIMEOUT_NS,
        shrink: bool = False,
        network: Network | None = None,
    ) -> None:
        self.case, self.layout, self.program, self.shrink = case, layout, program, shrink
        self.network = network
        self.timeout_ns = timeout_ns
        self.shapes = [self._shape(rank) for rank in range(case.world)]
        heap_bytes = self.shapes[0].heap_bytes
        if network is not None:
            slot = max(shape.network_slot_bytes for shape in self.shapes)
            heap_bytes += max(0, 4 * (slot - self.shapes[0].combine_bytes)) + 4096
        self.window = _native.Window.carve(heap_bytes, case.world)
        whole = (
            heap_bytes
            if network is None
            else self.window.outputs(2) + 2 * self.window.combine.slot_bytes
        )
        self.machine = ptx.Machine(program, case.world, layout.seed, self._memory(whole))
        heaps = [self._alloc(rank, whole, "heap") for rank in range(case.world)]
        if network is not None:
            queues = range(network.first_queue, network.first_queue + network.num_queues)
            self.machine.join([heap.address for heap in heaps], whole, queues)
        self.ranks = [self._rank(rank, heaps) for rank in range(case.world)]

    def _shape(self, rank: int) -> _native.Shape:
        c = self.case
        return _native.Shape(
            c.world, rank, c.experts, c.max_tokens, c.hidden, c.topk, FORMATS[c.cast]
        )

    def _memory(self, heap_bytes: int) -> int:
        rows = self.shapes[0].max_rows * self.shapes[0].num_local + 4 * self.case.max_tokens
        return self.case.world * (heap_bytes + rows * self.case.hidden * 2 + (1 << 18)) + (1 << 22)

    def _alloc(self, rank: int | None, num_bytes: int, name: str) -> Area:
        address = self.machine.alloc(rank, max(num_bytes, 16), f"{name}@{rank}")
        if num_bytes == 0:
            return Area(address, torch.empty(0, dtype=torch.uint8))
        return Area(address, torch.from_numpy(self.machine.array(address, np.uint8, num_bytes)))

    def _rank(self, rank: int, heaps: list[Area]) -> Rank:
        c, shape = self.case, self.shapes[rank]
        table = self._alloc(rank, 8 * c.world, "bases")
        bases = [heap.address for heap in heaps]
        network, linked = 0, 0
        if self.network is not None:
            links = [self.network.links(rank, peer) for peer in range(c.world)]
            bases = [bases[rank if link else peer] for peer, link in enumerate(links)]
            network, linked = self._network(rank, links)
        table.put(torch.tensor(bases))
        state = self._alloc(rank, _native.Launches.DEVICE_STATE_BYTES, "state")
        told = self._alloc(None, _native.Launches.HOST_STATE_BYTES, f"told{rank}")
        mask = self._alloc(rank, mask_bytes(c.world), "mask") if self.shrink else None
        launches = _native.Launches(
            bases=table.address,
            rank=rank,
            num_ranks=c.world,
            heap_bytes=self.window.num_bytes,
            device_state=state.address,
            host_state=told.address,
            host_view=told.tensor.data_ptr(),
            timeout_ns=self.timeout_ns,
            mask=0 if mask is None else mask.address,
            network=network,
            linked=linked,
        )
        chosen = c.max_tokens * c.topk
        row_bytes = c.hidden * 2

        def area(name: str, num_bytes: int) -> Area:
            return self._alloc(rank, num_bytes, name)

        def pair(name: str, num_bytes: int) -> list[Area]:
            return [area(f"{name}{slot}", num_bytes) for slot in range(SLOTS)]

        return Rank(
            heap=Heap(heaps[rank], rank, c.world),
            launches=launches,
            state=state,
            told=told,
            x=area("x", c.max_tokens * row_bytes),
            indices=area("topk_idx", chosen * 8),
            weights=area("topk_weights", chosen * 4),
            out=area("combined", c.max_tokens * row_bytes),
            outputs=area("outputs", shape.num_local * shape.max_rows * row_bytes),
            stats=area("stats", shape.num_local * 4),
            costs=area("costs", c.world * 8),
            ledgers=pair("ledger", shape.ledger_bytes),
            choices=pair("choices", chosen * 4),
            counts=pair("recv_count", shape.num_local * 4),
            layouts=pair("layout_range", shape.num_local * c.world * 8),
            mask=mask,
        )

    def _network(self, rank: int, links: list[bool]) -> tuple[int, int]:
        """What a rank's kernels know of the network: addresses of it, and of who is behind it."""
        assert self.network is not None
        numbers = range(
            self.network.first_queue, self.network.first_queue + self.network.num_queues
        )
        queues = self._alloc(rank, 4 * len(numbers), "queues")
        queues.put(torch.tensor(numbers, dtype=torch.int32))
        sent = self._alloc(rank, 4 * self.case.world, "sent")
        mail = self.window.mail.offset
        content = _native.Launches.network(queues.address, len(numbers), sent.address, mail)
        network = self._alloc(rank, len(content), "network")
        network.put(torch.frombuffer(content, dtype=torch.uint8))
        linked = self._alloc(rank, self.case.world, "linked")
        linked.put(torch.tensor(links))
        return network.address, linked.address

    def set_epochs(self, epoch: int) -> None:
        """Lets the buffers begin as if they had been used for long."""
        own = torch.tensor(np.array([epoch], np.uint32).view(np.int32))
        desks, words = self.window.desks.offset, 6  # csrc/ep/window.hpp: Desk
        for rank in self.ranks:
            rank.state.tensor.view(torch.int32)[:8] = own
            desk = rank.heap.view(desks, torch.int32, self.case.world, 32)
            desk[:, 1 : 2 * words : 2] = own  # epochs are the high halves
            if self.network is not None:
                mail = self.window.mail.offset
                rank.heap.view(mail, torch.int32, self.case.world, 16)[:, 1::2] = own

    def fill(self, rank: int, inputs: Inputs) -> None:
        """A rank's tensors get new contents."""
        mine = self.ranks[rank]
        mine.x.put(inputs.x)
        mine.indices.put(inputs.topk_idx)
        mine.weights.put(inputs.topk_weights)

    def dispatch(self, rank: int, slot: int, halves: int = BOTH) -> bytearray:
        """The parameters of a dispatch."""
        mine, c = self.ranks[rank], self.case
        batch = _native.Batch(
            mine.x.address,
            c.num_tokens(rank),
            mine.counts[slot].address,
            mine.layouts[slot].address,
            slot,
            mine.indices.address,
            c.idx == "int64",
        )
        ledger, stats = mine.ledgers[slot].address, mine.stats.address
        costs = mine.costs.address
        return mine.launches.dispatch(self.shapes[rank], ledger, batch, True, stats, halves, costs)

    def combine(self, rank: int, slots: tuple[int, int], halves: int = BOTH) -> bytearray:
        """The parameters of a combine in slots (recv, combine)."""
        mine, c = self.ranks[rank], self.case
        recv_slot, combine_slot = slots
        layout = mine.layouts[recv_slot].address
        pulled = c.zero_copy and self.network is None
        answer = _native.Answer(recv_slot, combine_slot, pulled, c.logfmt, layout)
        total = _native.Sum(
            mine.choices[combine_slot].address,
            mine.weights.address,
            mine.out.address,
            c.num_tokens(rank),
            mine.indices.address,
            c.idx == "int64",
        )
        source = 0 if pulled else mine.outputs.address
        if c.zero_copy and not pulled:
            source = mine.heap.area.address + self.window.outputs(combine_slot)
        ledger = mine.ledgers[recv_slot].address
        costs = mine.costs.address
        return mine.launches.combine(
            self.shapes[rank], ledger, answer, source, total, halves, costs
        )

    def costs(self, rank: int) -> list[int]:
        """For how many ns a rank has waited for each rank."""
        return self.ranks[rank].costs.tensor.view(torch.int64)[: self.case.world].tolist()

    def launch(self, rank: int, kernel: str, params: bytearray) -> None:
        """Puts a kernel on a rank's stream."""
        (name,) = [name for name in self.program.entries if f"{len(kernel)}{kernel}E" in name]
        blocks = 1 if kernel == "credit" else self.layout.blocks
        shared = _native.Launches.shared_bytes(self.shapes[rank], self.layout.warps)
        threads = self.layout.warps * WARP_LANES
        self.machine.launch(rank, name, blocks, threads, shared, bytes(params))

    def received(self, rank: int, slot: int) -> tuple[RecvViews, Counts]:
        """What a rank's dispatch into `slot` has given."""
        mine, shape = self.ranks[rank], self.shapes[rank]
        views = recv_views(mine.heap, self.window, shape, slot, False)
        count = mine.counts[slot].tensor.view(torch.int32)
        layout = mine.layouts[slot].tensor.view(torch.int64).view(shape.num_local, self.case.world)
        return views, Counts(count, layout, (0, 0))

    def combined(self, rank: int) -> Tensor:
        """What a rank's combine has given."""
        size = self.case.num_tokens(rank) * self.case.hidden
        return self.ranks[rank].out.tensor.view(torch.bfloat16)[:size].view(-1, self.case.hidden)

    def put_outputs(self, rank: int, slot: int, outputs: list[Tensor]) -> None:
        """The experts write their outputs, into the heap if they are read in place."""
        shape, mine = self.shapes[rank], self.ranks[rank]
        sizes = (shape.num_local, shape.max_rows, self.case.hidden)
        if self.case.zero_copy:
            start = self.window.combine.offset + slot * self.window.combine.slot_bytes
            if self.network is not None:
                start = self.window.outputs(slot)
            into = mine.heap.view(start, torch.bfloat16, *sizes)
        else:
            into = mine.outputs.tensor.view(torch.bfloat16).view(*sizes)
        for rows, output in zip(into, outputs, strict=True):
            rows[: len(output)] = output
            rows[len(output) :][:4] = torch.nan

    def expected(self, inputs: list[Inputs]) -> list[reference.Received]:
        """The oracle's view of a dispatch."""
        c = self.case
        xs, choices = [i.x for i in inputs], [i.topk_idx for i in inputs]
        return reference.dispatch(xs, choices, c.experts, **CASTS[c.cast])
