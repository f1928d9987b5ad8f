"""Results against the oracle, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deep_ll.reference import Received

SHOWN = 4  # differences a message lists


def assert_same_bits(actual: Tensor, expected: Tensor, what: str) -> None:
    """Raises AssertionError unless dtype, shape and every bit agree."""
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        raise AssertionError(
            f"{what}: {actual.dtype} {tuple(actual.shape)}, "
            f"expected {expected.dtype} {tuple(expected.shape)}"
        )
    differs = _bits(actual) != _bits(expected)
    if not differs.any():
        return
    places = differs.nonzero()
    shown = [
        f"[{', '.join(map(str, place))}] {_word(actual, place)} instead of {_word(expected, place)}"
        for place in places[:SHOWN].tolist()
    ]
    raise AssertionError(f"{what}: {len(places)} of {differs.numel()} differ: {'; '.join(shown)}")


def assert_received(
    recv_x: Tensor | tuple[Tensor, Tensor],
    recv_count: Tensor,
    handle: Sequence[Any],
    expected: Received,
) -> None:
    """Checks what dispatch returned to one rank; the rows behind each count may hold anything."""
    rows, scales = recv_x if isinstance(recv_x, tuple) else (recv_x, None)
    counts = torch.tensor([e.src_info.numel() for e in expected], dtype=torch.int32)
    assert_same_bits(recv_count, counts, "recv_count")
    for local_expert, want in enumerate(expected):
        where = f"of local expert {local_expert}"
        count = want.src_info.numel()
        assert_same_bits(handle[1][local_expert], want.layout_range, f"layout_range {where}")
        assert_same_bits(handle[0][local_expert, :count], want.src_info, f"src_info {where}")
        if (scales is None) != (want.scales is None):
            raise AssertionError(f"scales {where}: {scales is not None}, expected the other")
        if scales is not None and want.scales is not None:
            assert_same_bits(scales[local_expert, :count], want.scales, f"scales {where}")
        assert_same_bits(rows[local_expert, :count], want.rows, f"rows {where}")


def _bits(x: Tensor) -> Tensor:
    by_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.view(by_size[x.element_size()])


def _word(x: Tensor, place: list[int]) -> str:
    value = x[tuple(place)]
    digits = 2 * x.element_size()
    return f"{value.item()} (0x{int(_bits(value)) & ((1 << 4 * digits) - 1):0{digits}x})"
