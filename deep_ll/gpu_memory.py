"""Memory of a GPU session: what it has, until when.

Kernels run on after calls have returned, and those of peers write into this rank's heap. So nothing
is given back because Python forgets it, only by `close()`, which all ranks call.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from deep_ll import _native
from deep_ll.errors import ArgumentError, OrderError
from deep_ll.gpu_streams import is_captured
from deep_ll.kinds import Kinds
from deep_ll.members import Members, mask_bytes
from deep_ll.runtime.cuda.host_memory import HostMemory, host_memory

if TYPE_CHECKING:
    from deep_ll._native import Shape
    from deep_ll.kernels import Kernels
    from deep_ll.kinds import Kind, Sizes
    from deep_ll.runtime.cuda.device import Device
    from deep_ll.runtime.cuda.heap import GpuHeap


class KindMemory(NamedTuple):
    """Device memory of one kind of exchange, by slot. A recorded graph knows these addresses."""

    ledgers: tuple[torch.Tensor, torch.Tensor]
    choices: tuple[torch.Tensor, torch.Tensor]


@dataclass(eq=False)
class GpuMemory:
    """The heap, and what kernels of this rank have beside it.

    Attributes:
        heap: of all ranks.
        state: what kernels remember from one launch to the next.
        words: what they tell the host.
        members: who is left out; None: nobody ever is.
        kinds: memory by kind of exchange.
    """

    heap: GpuHeap
    state: torch.Tensor
    words: HostMemory
    members: Members | None = None
    kinds: dict[Sizes, KindMemory] = field(default_factory=dict)
    closed: bool = False

    @classmethod
    def beside(cls, heap: GpuHeap, device: Device, enable_shrink: bool = False) -> GpuMemory:
        """Zeroed memory for a session on a heap."""
        state = device.zeros(_native.Launches.DEVICE_STATE_BYTES, torch.uint8)
        words = host_memory(_native.Launches.HOST_STATE_BYTES, device.index)
        mask = device.zeros(mask_bytes(heap.num_ranks), torch.uint8) if enable_shrink else None
        members = None if mask is None else Members(heap.num_ranks, heap.rank, mask)
        memory = cls(heap, state, words, members)
        device.synchronize()
        return memory

    def as_heap(self) -> GpuHeap:
        """The heap, which closes all of this; kept alive from now on."""
        _open.add(self)
        return replace(self.heap, _release=self.close)

    def close(self) -> None:
        """Gives all of it back after its kernels are through. Collective."""
        self.heap.close()
        self.closed = True
        self.words.close()
        self.kinds.clear()
        _open.discard(self)


_open: set[GpuMemory] = set()


class GpuKinds(Kinds):
    """Kinds with their kernels and the memory of these. Made outside of captures: what is allocated
    in one belongs to its graph."""

    def __init__(
        self, memory: GpuMemory, row_major_scales: bool, device: Device, kernels: Kernels
    ) -> None:
        heap = self._gpu_heap = memory.heap
        window = _native.Window.carve(heap.num_bytes, heap.num_ranks)
        super().__init__(heap, window, None, row_major_scales)
        self._memory, self._device, self._kernels = memory.kinds, device, kernels

    def memory_of(self, kind: Kind) -> KindMemory:
        """The memory of a kind, whose kernels are loaded from then on."""
        memory = self._memory.get(kind.sizes)
        if memory is None:
            self._refuse_in_capture(kind.sizes)
            self._kernels.load(kind)
            ledgers = self._pair(kind.ledger_bytes, torch.uint8)
            choices = self._pair(kind.sizes.max_tokens * kind.sizes.num_topk, torch.int32)
            memory = self._memory[kind.sizes] = KindMemory(ledgers, choices)
        return memory

    def _make(self, sizes: Sizes) -> Kind:
        self._refuse_in_capture(sizes)
        kind = super()._make(sizes)
        if self._gpu_heap.network is None:
            return kind
        return kind._replace(combine=(self._outputs_of(kind, 0), self._outputs_of(kind, 1)))

    def _outputs_of(self, kind: Kind, slot: int) -> torch.Tensor:
        """Where experts write that outputs wait for a network: as `combine_view`."""
        sizes = (kind.num_local, kind.max_rows, kind.sizes.hidden)
        return self._gpu_heap.view(self._window.outputs(slot), torch.bfloat16, *sizes)

    def _check_room(self, shape: Shape) -> None:
        super()._check_room(shape)
        heap = self._gpu_heap
        if heap.network is None:
            return
        heap.network.check_depth(shape)
        needed, slot = shape.network_slot_bytes, self._window.combine.slot_bytes
        if needed > slot:
            # A 128th of what is added goes to counts, in steps of lines.
            more = 4 * (needed - slot) * 64 // 63 + (2 * heap.num_ranks + 64) * 128
            raise ArgumentError(
                f"num_max_dispatch_tokens_per_rank={shape.max_tokens}, top-k {shape.num_topk}, "
                f"hidden={shape.hidden}: rows on their way over a network need {needed} bytes of "
                f"each of four parts of the heap, which have {slot}: make the buffer with "
                f"num_rdma_bytes={heap.num_bytes + more}"
            )

    def _pair(self, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return self._device.empty(count, dtype), self._device.empty(count, dtype)

    def _refuse_in_capture(self, sizes: Sizes) -> None:
        if is_captured(self._device.current_stream()):
            raise OrderError(
                f"the first call with {sizes} needs memory and kernels, which cannot be got while "
                "a CUDA graph is captured: run it once before"
            )
