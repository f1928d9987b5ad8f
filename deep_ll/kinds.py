"""Kinds of exchanges: what distinguishes one from another, and the tensors each uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from deep_ll import _native, checks
from deep_ll.errors import ArgumentError
from deep_ll.plan import expected_bytes
from deep_ll.runtime import memory
from deep_ll.runtime.paths import count_linked
from deep_ll.views import combine_view, recv_views

if TYPE_CHECKING:
    from deep_ll._native import Shape, Window
    from deep_ll.runtime.heap import AnyHeap
    from deep_ll.views import RecvViews


class Sizes(NamedTuple):
    """The numbers of a call; `format` as in csrc/core/numeric.hpp."""

    max_tokens: int
    hidden: int
    num_experts: int
    num_topk: int
    format: int


class Kind(NamedTuple):
    """A kind of exchange with its views of the heap, by slot.

    What every call asks for is kept as plain numbers beside the native shape.
    """

    sizes: Sizes
    shape: Shape
    num_local: int
    max_rows: int
    row_bytes: int
    ledger_bytes: int
    counts: tuple[Counts, Counts]
    recv: tuple[RecvViews, RecvViews]
    combine: tuple[torch.Tensor, torch.Tensor]


class Counts(NamedTuple):
    """The small results of a dispatch, with their addresses.

    Made once like the views: a new tensor costs more than a call's counting and announcing.
    """

    recv_count: torch.Tensor  # int32 [E_local]
    layout_range: torch.Tensor  # int64 [E_local, R]
    addresses: tuple[int, int]

    @classmethod
    def of(cls, shape: Shape, device: torch.device) -> Counts:
        """Counts of one slot."""
        count = torch.zeros(shape.num_local, dtype=torch.int32, device=device)
        layout_shape = (shape.num_local, shape.num_ranks)
        layout = torch.zeros(layout_shape, dtype=torch.int64, device=device)
        return cls(count, layout, (count.data_ptr(), layout.data_ptr()))


class Kinds:
    """All kinds that a buffer has met. A new one is checked against the buffer, then remembered."""

    def __init__(
        self, heap: AnyHeap, window: Window, expected: int | None, row_major_scales: bool
    ) -> None:
        self.expected = expected  # bytes a rank will touch; None: no kind known yet
        self._heap, self._window = heap, window
        self._row_major_scales = row_major_scales
        self._known: dict[tuple[int, int, int, int, int], Kind] = {}

    def of(self, sizes: tuple[int, int, int, int, int]) -> Kind:
        """The kind with these sizes, in the order of Sizes.

        Raises:
            ArgumentError: no exchange can have them, or this buffer is too small for it.
            HeapMemoryError: the ranks of this host would touch more than is free.
        """
        kind = self._known.get(sizes)
        if kind is None:
            kind = self._known[sizes] = self._make(Sizes(*sizes))
        return kind

    def _make(self, sizes: Sizes) -> Kind:
        max_tokens, hidden, num_experts, num_topk, fmt = sizes
        rank, num_ranks = self._heap.rank, self._heap.num_ranks
        checks.exchange_sizes(max_tokens, hidden, num_experts, num_ranks, num_topk, fp8=fmt != 0)
        shape = _native.Shape(num_ranks, rank, num_experts, max_tokens, hidden, num_topk, fmt)
        self._check_room(shape)
        self._check_memory(shape)
        in_rows = self._row_major_scales
        recv = [recv_views(self._heap, self._window, shape, slot, in_rows) for slot in (0, 1)]
        combine = [combine_view(self._heap, self._window, shape, slot) for slot in (0, 1)]
        numbers = (shape.num_local, shape.max_rows, shape.row_bytes, shape.ledger_bytes)
        device = self._heap.device
        counts = (Counts.of(shape, device), Counts.of(shape, device))
        return Kind(sizes, shape, *numbers, counts, (recv[0], recv[1]), (combine[0], combine[1]))

    def _check_room(self, shape: Shape) -> None:
        needed = max(shape.recv_bytes, shape.combine_bytes)
        has_room = needed <= self._window.recv.slot_bytes
        if has_room and shape.num_experts <= self._window.max_experts:
            return
        raise ArgumentError(
            f"num_max_dispatch_tokens_per_rank={shape.max_tokens}, hidden={shape.hidden}, "
            f"num_experts={shape.num_experts} need a heap of {shape.heap_bytes} bytes a rank, this "
            f"buffer has {self._heap.num_bytes}: make it with num_rdma_bytes="
            "Buffer.get_low_latency_rdma_size_hint(...) of these numbers, or with the sizes"
        )

    def _check_memory(self, shape: Shape) -> None:
        """A buffer that was given bytes learns from its calls what will be touched; so does one
        whose calls are larger than it was made for. The verdict is this rank's own."""
        known, heap = self.expected or 0, self._heap
        expected = expected_bytes(shape, count_linked(heap.paths))
        if expected <= known or heap.device.type != "cpu":
            return
        available = memory.available_bytes()
        memory.check_fits(heap.num_local_ranks, expected - known, available, heap.num_bytes)
        self.expected = expected
