"""Dispatch and combine as operators of torch: for torch.compile and torch.export.

See docs/compile.md. A graph holds a buffer's number and a round's number instead of Python objects.
Both operators are marked as having ordered effects: no pass may drop, merge or reorder them.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from deep_ll import numbers
from deep_ll.buffer import Buffer
from deep_ll.errors import OrderError
from deep_ll.rounds import NUM_SLOTS

if TYPE_CHECKING:
    from deep_ll.handle import Handle

_GROUP = 128  # channels that share a scale
_EXPONENTS_PER_WORD = 4

# What tickets stand for: the handles of the last dispatches that were operators.
_handles: weakref.WeakKeyDictionary[Buffer, deque[Handle]] = weakref.WeakKeyDictionary()


def dispatch(
    buffer: Buffer,
    x: Tensor,
    topk_idx: Tensor,
    num_max_dispatch_tokens_per_rank: int,
    num_experts: int,
    *,
    use_fp8: bool = True,
    round_scale: bool = False,
    use_ue8m0: bool = False,
) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor, Tensor]:
    """`Buffer.low_latency_dispatch` for compiled graphs; works outside of them as well. Collective.

    Args:
        buffer: its number in this process becomes a constant of the graph.
        x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, use_fp8, round_scale, use_ue8m0:
            as in `Buffer.low_latency_dispatch`. The number of tokens may be dynamic.

    Returns:
        recv_x: bfloat16 [E_local, R*M, hidden] or (float8_e4m3fn, scales), shaped as those of
            `Buffer.low_latency_dispatch`, but a new tensor that belongs to the caller. Rows of an
            expert beyond its count are undefined.
        recv_count: int32 [E_local].
        ticket: int64 [1] on the CPU, for `combine`. The two last dispatches of a buffer can be
            combined.

    Raises:
        ArgumentError, OrderError, PeerError, PeerTimeout: as in `Buffer.low_latency_dispatch`, when
            the graph runs.
    """
    num_rows = buffer.group_size * num_max_dispatch_tokens_per_rank
    num_local = _local_experts(buffer, num_experts)
    sizes = [num_max_dispatch_tokens_per_rank, num_experts, num_local, num_rows]
    flags = [use_fp8, round_scale, use_ue8m0, buffer.row_major_scales]
    rows, scales, count, ticket = torch.ops.deep_ll.dispatch(
        buffer.number, x, topk_idx, sizes, flags
    )
    return (rows, scales) if use_fp8 else rows, count, ticket


def combine(
    buffer: Buffer, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, ticket: Tensor
) -> Tensor:
    """`Buffer.low_latency_combine` for compiled graphs; works outside of them as well. Collective.

    Args:
        buffer: that of the dispatch.
        x: bfloat16 [E_local, R*M, hidden], the experts' output for each received row; other rows
            are not read.
        topk_idx: as it was dispatched; entries may have become -1.
        topk_weights: float32 [num_tokens, num_topk].
        ticket: of the dispatch that is answered.

    Returns:
        bfloat16 [num_tokens, hidden], a new tensor.

    Raises:
        ArgumentError, OrderError, PeerError, PeerTimeout: as in `Buffer.low_latency_combine`, when
            the graph runs.
    """
    out: Tensor = torch.ops.deep_ll.combine(buffer.number, x, topk_idx, topk_weights, ticket)
    return out


class _Layout(NamedTuple):
    """What the plain lists of a dispatch's arguments mean."""

    max_tokens: int
    num_experts: int
    num_local: int  # experts of this rank
    num_rows: int  # of one expert
    use_fp8: bool
    round_scale: bool
    use_ue8m0: bool
    row_major_scales: bool

    @classmethod
    def of(cls, sizes: list[int], flags: list[bool]) -> _Layout:
        """Names them."""
        max_tokens, num_experts, num_local, num_rows = sizes
        return cls(max_tokens, num_experts, num_local, num_rows, *flags)

    def new_received(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and scales without content; without FP8 there are no scales."""
        hidden, num_local, num_rows = x.shape[1], self.num_local, self.num_rows
        dtype = torch.float8_e4m3fn if self.use_fp8 else torch.bfloat16
        rows = x.new_empty((num_local, num_rows, hidden), dtype=dtype)
        if not self.use_fp8:
            return rows, x.new_empty(0, dtype=torch.float32)
        words, dtype = hidden // _GROUP, torch.float32
        if self.use_ue8m0:
            words, dtype = -(-words // _EXPONENTS_PER_WORD), torch.int32
        if self.row_major_scales:
            return rows, x.new_empty((num_local, num_rows, words), dtype=dtype)
        return rows, x.new_empty((num_local, words, num_rows), dtype=dtype).transpose(1, 2)


@torch.library.custom_op("deep_ll::dispatch", mutates_args=())
def _dispatch(
    buffer: int, x: Tensor, topk_idx: Tensor, sizes: list[int], flags: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    layout, owner = _Layout.of(sizes, flags), _buffer(buffer)
    handles = _handles.setdefault(owner, deque())
    while len(handles) >= NUM_SLOTS:
        handles.popleft()
    received, count, handle, _, _ = owner.low_latency_dispatch(
        x.contiguous(),
        topk_idx.contiguous(),
        layout.max_tokens,
        layout.num_experts,
        use_fp8=layout.use_fp8,
        round_scale=layout.round_scale,
        use_ue8m0=layout.use_ue8m0,
    )
    handles.append(handle)
    rows, scales = layout.new_received(x)
    if isinstance(received, tuple):
        _copy_rows(received[1], scales, count)
        received = received[0]
    _copy_rows(received, rows, count)
    return rows, scales, count.clone(), torch.tensor([handle.round.epoch], device="cpu")


@_dispatch.register_fake
def _(
    buffer: int, x: Tensor, topk_idx: Tensor, sizes: list[int], flags: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    layout = _Layout.of(sizes, flags)
    count = x.new_empty(layout.num_local, dtype=torch.int32)
    ticket = torch.empty(1, dtype=torch.int64, device="cpu")
    return *layout.new_received(x), count, ticket


@torch.library.custom_op("deep_ll::combine", mutates_args=())
def _combine(
    buffer: int, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, ticket: Tensor
) -> Tensor:
    owner = _buffer(buffer)
    handle = _handle_of(owner, int(ticket))
    choice = topk_idx.contiguous(), topk_weights.contiguous()
    return owner.low_latency_combine(x.contiguous(), *choice, handle)[0]


@_combine.register_fake
def _(buffer: int, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, ticket: Tensor) -> Tensor:
    return x.new_empty((topk_idx.shape[0], x.shape[2]))


for _name in ("dispatch", "combine"):
    _register_effectful_op(getattr(torch.ops.deep_ll, _name).default, _EffectType.ORDERED)


def _local_experts(buffer: Buffer, num_experts: int) -> int:
    """How many experts this rank has; where ranks do not divide them, the last have fewer."""
    most = -(-num_experts // buffer.group_size)
    return max(0, min(most, num_experts - buffer.rank * most))


def _buffer(number: int) -> Buffer:
    buffer = numbers.buffer_of(number)
    if not isinstance(buffer, Buffer):
        raise OrderError(
            f"this graph uses buffer #{number} of its process, which is gone: keep the Buffer as "
            "long as the graph, and load a graph where buffers were made in the same order"
        )
    return buffer


def _handle_of(buffer: Buffer, epoch: int) -> Handle:
    known = _handles.get(buffer, deque())
    for handle in known:
        if handle.round.epoch == epoch:
            return handle
    epochs = ", ".join(f"#{handle.round.epoch}" for handle in known) or "none"
    raise OrderError(
        f"the ticket is of dispatch #{epoch}, but only the last {NUM_SLOTS} of buffer "
        f"#{buffer.number} can be combined ({epochs}): combine before the second next dispatch, "
        "with the buffer that was dispatched with"
    )


def _copy_rows(source: Tensor, target: Tensor, count: Tensor) -> None:
    """Copies the rows that arrived. On a GPU all of them: the host does not know how many."""
    if count.device.type != "cpu":
        target.copy_(source)
        return
    for local, num_rows in enumerate(count.tolist()):
        if num_rows:
            target[local, :num_rows].copy_(source[local, :num_rows])
