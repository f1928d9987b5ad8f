"""Tensors over the heap, as DeepEP shapes them. Made once for each shape and slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from deep_ll._native import Shape, Window
    from deep_ll.runtime.heap import AnyHeap

_UE8M0 = 3


@dataclass(frozen=True)
class RecvViews:
    """What one dispatch returns from the heap."""

    x: torch.Tensor | tuple[torch.Tensor, torch.Tensor]
    src_info: torch.Tensor


def recv_views(
    heap: AnyHeap, window: Window, shape: Shape, slot: int, row_major_scales: bool
) -> RecvViews:
    """Received rows of slot `slot`: x [E_local, R*M, hidden], its scales if any, src_info int32
    [E_local, R*M].
    """
    start = window.recv.offset + slot * window.recv.slot_bytes
    x_at, labels_at, scales_at, info_at = (start + offset for offset in shape.recv_offsets)
    num_local, rows = shape.num_local, shape.max_rows
    src_info = heap.view(info_at, torch.int32, num_local, rows)
    if shape.format == 0:
        return RecvViews(heap.view(x_at, torch.bfloat16, num_local, rows, shape.hidden), src_info)
    dtype = torch.int32 if shape.format == _UE8M0 else torch.float32
    if row_major_scales:
        # Where they arrived: at the head of each row's label.
        labels = heap.view(labels_at, dtype, num_local, rows, shape.label_bytes // 4)
        scales = labels[:, :, : shape.scale_words]
    else:
        scales = heap.view(scales_at, dtype, num_local, shape.scale_words, rows).transpose(1, 2)
    x = heap.view(x_at, torch.float8_e4m3fn, num_local, rows, shape.hidden)
    return RecvViews((x, scales), src_info)


def combine_view(heap: AnyHeap, window: Window, shape: Shape, slot: int) -> torch.Tensor:
    """The outputs that peers read in place: bf16 [E_local, R*M, hidden]."""
    start = window.combine.offset + slot * window.combine.slot_bytes
    return heap.view(start, torch.bfloat16, shape.num_local, shape.max_rows, shape.hidden)
