"""What a caller may pass. Everything is checked here, before anything moves; messages name the
values and the cure.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import torch

from deep_ll import _native
from deep_ll.errors import ArgumentError
from deep_ll.runtime.paths import P2P

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deep_ll._native import Shape
    from deep_ll.runtime.paths import Path

GROUP = 128  # channels that share a scale
INDEX_DTYPES = (torch.int64, torch.int32)
_ALIGN = 16  # bytes
_MAX_HIDDEN = 1 << 16


def exchange_sizes(
    max_tokens: int, hidden: int, num_experts: int, num_ranks: int, num_topk: int, fp8: bool
) -> None:
    """The numbers of an exchange."""
    for name, value, top in (
        ("num_max_dispatch_tokens_per_rank", max_tokens, _native.MAX_TOKENS),
        ("top-k", num_topk, _native.MAX_TOPK),
        ("the number of ranks", num_ranks, _native.MAX_RANKS),
        ("num_experts", num_experts, _native.MAX_EXPERTS),
        ("hidden", hidden, _MAX_HIDDEN),
    ):
        if not 1 <= value <= top:
            raise ArgumentError(f"{name} is {value}: it must be from 1 to {top}")
    if num_topk > num_experts:
        raise ArgumentError(
            f"top-k is {num_topk}, but there are only {num_experts} experts: a token chooses "
            f"each once"
        )
    unit, kind = (GROUP, "FP8 dispatch") if fp8 else (8, "BF16 dispatch")
    if hidden % unit != 0:
        cure = "pad it, or use_fp8=False (any multiple of 8)" if fp8 else "pad it"
        raise ArgumentError(
            f"hidden is {hidden}: {kind} needs a positive multiple of {unit}; {cure}"
        )


class Tokens(NamedTuple):
    """The tensors of a dispatch, checked: their numbers and addresses."""

    tensors: tuple[torch.Tensor, torch.Tensor]
    num_tokens: int
    hidden: int
    num_topk: int
    x: int
    indices: int
    wide: bool


def dispatched(
    x: torch.Tensor, topk_idx: torch.Tensor, max_tokens: int, device: torch.device
) -> Tokens:
    """The tensors of a dispatch, on the buffer's device.

    The good case is one expression: between two calls of a layer caches are filled with other
    things, and every function called here costs more than it seems to.
    """
    try:
        num_tokens, hidden = x.shape
        num_rows, num_topk = topk_idx.shape
        dtype, at, indices_at = topk_idx.dtype, x.data_ptr(), topk_idx.data_ptr()
        good = (
            x.dtype is torch.bfloat16
            and dtype in INDEX_DTYPES
            and x.device == topk_idx.device == device
            and x.is_contiguous()
            and topk_idx.is_contiguous()
            and at % _ALIGN == 0
            and num_rows == num_tokens <= max_tokens
        )
    except (AttributeError, ValueError, RuntimeError):
        good = False
    if not good:
        tensor("x", x, (torch.bfloat16,), (None, None), device)
        tensor("topk_idx", topk_idx, INDEX_DTYPES, (x.shape[0], None), device)
        num_tokens_fit(x.shape[0], max_tokens)
    wide = dtype is torch.int64
    return Tokens((x, topk_idx), num_tokens, hidden, num_topk, at, indices_at, wide)


def combined(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    choices_shape: tuple[int, int],
    x_shape: tuple[int, int, int],
    device: torch.device,
) -> None:
    """The tensors of a combine: x, topk_idx, topk_weights, out. Good ones cost one expression."""
    x, topk_idx, weights, out = tensors
    out_shape = (choices_shape[0], x_shape[2])
    try:
        good = (
            x.dtype is out.dtype is torch.bfloat16
            and weights.dtype is torch.float32
            and topk_idx.dtype in INDEX_DTYPES
            and x.shape == x_shape
            and topk_idx.shape == weights.shape == choices_shape
            and out.shape == out_shape
            and (x.device == topk_idx.device == weights.device == out.device == device)
            and (x.is_contiguous() and topk_idx.is_contiguous())
            and (weights.is_contiguous() and out.is_contiguous())
            and (x.data_ptr() | out.data_ptr()) % _ALIGN == 0
        )
    except AttributeError:
        good = False
    if good:
        return
    tensor("topk_idx", topk_idx, INDEX_DTYPES, choices_shape, device)
    tensor("topk_weights", weights, (torch.float32,), choices_shape, device)
    tensor("x", x, (torch.bfloat16,), x_shape, device)
    tensor("out", out, (torch.bfloat16,), out_shape, device)


def tensor(
    name: str,
    value: object,
    dtypes: tuple[torch.dtype, ...],
    sizes: tuple[int | None, ...],
    device: torch.device,
) -> None:
    """A contiguous, aligned tensor of one of `dtypes` and of `sizes` (None: any)."""
    good = (
        isinstance(value, torch.Tensor)
        and value.device == device
        and value.dtype in dtypes
        and _fits(value.shape, sizes)
        and value.is_contiguous()
        and value.data_ptr() % _ALIGN == 0
    )
    if not good:
        _refuse_tensor(name, value, dtypes, sizes, device)


def _fits(shape: torch.Size, sizes: tuple[int | None, ...]) -> bool:
    if len(shape) != len(sizes):
        return False
    for have, want in zip(shape, sizes, strict=True):
        if want is not None and have != want:
            return False
    return True


def _refuse_tensor(
    name: str,
    value: object,
    dtypes: tuple[torch.dtype, ...],
    sizes: tuple[int | None, ...],
    device: torch.device,
) -> None:
    if not isinstance(value, torch.Tensor):
        raise ArgumentError(f"{name} is a {type(value).__name__}: it must be a torch.Tensor")
    if value.device != device:
        place, cure = ("the CPU", "cpu()") if device.type == "cpu" else (device, f"to('{device}')")
        raise ArgumentError(
            f"{name} is on {value.device}: this buffer is on {place}, pass {name}.{cure}"
        )
    if value.dtype not in dtypes:
        raise ArgumentError(f"{name} is {value.dtype}: it must be {' or '.join(map(str, dtypes))}")
    if not _fits(value.shape, sizes):
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        raise ArgumentError(f"{name} has shape {tuple(value.shape)}: it must be [{wanted}]")
    if not value.is_contiguous():
        raise ArgumentError(
            f"{name} has strides {value.stride()} and is not contiguous: pass {name}.contiguous()"
        )
    if value.dtype == torch.bfloat16:
        raise ArgumentError(
            f"{name} starts at an address that is not a multiple of {_ALIGN}: pass {name}.clone()"
        )


def num_tokens_fit(num_tokens: int, max_tokens: int) -> None:
    """This rank's tokens against the agreed bound."""
    if num_tokens > max_tokens:
        raise ArgumentError(
            f"{num_tokens} tokens given, but num_max_dispatch_tokens_per_rank is {max_tokens}: "
            f"raise it to {num_tokens} "
            "or more on all ranks, with a buffer sized for it"
        )


def choices(bad: tuple[int, int, int, int], shape: Shape, epoch: int) -> None:
    """The verdict of the native scan over top-k indices."""
    what, token, choice, value = bad
    where = f"topk_idx[{token}, {choice}] is {value}"
    if what == 1:
        raise ArgumentError(
            f"{where}: experts are 0 to {shape.num_experts - 1}, and -1 is no choice"
        )
    if what == 2:
        raise ArgumentError(
            f"{where}, which token {token} chose before: a token chooses an expert once; use -1 "
            f"for the repetition"
        )
    raise ArgumentError(
        f"{where}, which is not what dispatch #{epoch} sent: pass the same topk_idx (entries may "
        f"become -1)"
    )


def formats(use_fp8: bool, round_scale: bool, use_ue8m0: bool) -> int:
    """The number of the wire format (csrc/core/numeric.hpp)."""
    if (round_scale or use_ue8m0) and not use_fp8:
        raise ArgumentError(
            f"use_fp8=False with round_scale={round_scale}, use_ue8m0={use_ue8m0}: BF16 rows "
            f"have no scales"
        )
    if use_ue8m0 and not round_scale:
        raise ArgumentError(
            "use_ue8m0=True keeps only exponents of the scales: it needs round_scale=True"
        )
    return use_fp8 + round_scale + use_ue8m0


def logfmt(hidden: int, zero_copy: bool) -> None:
    """Whether outputs of this size can travel in LogFMT."""
    if zero_copy:
        raise ArgumentError(
            "use_logfmt=True with zero_copy=True: peers read outputs in place, in BF16; choose one"
        )
    if hidden % GROUP != 0:
        raise ArgumentError(
            f"hidden is {hidden}: use_logfmt=True needs a multiple of {GROUP}; pad it, or combine "
            "in BF16"
        )


def hooks(paths: Sequence[Path], allow_p2p: bool | None) -> None:
    """Hooks beside peers whose memory is written by this rank's own cores or multiprocessors: such
    a copy is work, it does not go on behind the caller's back.
    """
    mapped = [path.peer for path in paths if path.kind == P2P]
    if not mapped or allow_p2p is False:
        return
    if allow_p2p:
        raise ArgumentError(
            f"return_recv_hook=True with allow_nvlink_traffic=True: ranks {mapped} are reached by "
            "load and store, which this rank's own cores or multiprocessors do, so a hook leaves "
            "nothing to overlap. Make the buffer with allow_nvlink_traffic=False, or call without "
            "return_recv_hook"
        )
    warnings.warn(
        f"return_recv_hook=True: ranks {mapped} are reached by load and store, which is done "
        "before the call returns; only what goes to other hosts overlaps. "
        "allow_nvlink_traffic=False sends all over the network",
        stacklevel=4,
    )


def timeout(timeout_s: float) -> None:
    """A deadline."""
    if not 0 <= timeout_s < 1e9:
        raise ArgumentError(
            f"timeout_s is {timeout_s}: it must be a number of seconds, 0 for no limit"
        )


def modes(async_finish: bool, return_recv_hook: bool) -> None:
    """Ways to finish an operation."""
    if async_finish and return_recv_hook:
        raise ArgumentError(
            "async_finish=True and return_recv_hook=True: choose one way to finish the operation"
        )
