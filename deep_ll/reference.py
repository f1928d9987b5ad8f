"""The oracle: what dispatch and combine mean, in plain torch.

Written from the meaning, not from the kernels, and exact to the bit: a kernel that differs from
this file is wrong. It sees the inputs of all ranks at once, so there is no communication in it.
Rows are kept compact: an expert's tensor has as many rows as it received, without the padding of
the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 128  # channels that share one FP8 scale
FP8_MAX = 448.0  # largest finite e4m3fn
MIN_AMAX = 1e-4  # a smaller group is scaled as if its largest value were this
FP8_NAN = 0x7F
SCALE_NAN = 0x7FFFFFFF  # as float32 bits; its exponent byte is ue8m0's NaN
BF16_NAN = 0x7FFF
EXPONENTS_PER_WORD = 4


class ExpertRows(NamedTuple):
    """What one expert received, sorted by (source rank, token)."""

    rows: Tensor  # [count, hidden], bfloat16 or float8_e4m3fn
    scales: Tensor | None  # FP8: as quantize() returns them; BF16: None
    src_info: Tensor  # int32 [count]: the token's row in its source rank's x
    layout_range: Tensor  # int64 [num_ranks]: first row << 32 | number of rows, per source rank


Received = tuple[ExpertRows, ...]  # of one rank: one entry per local expert


def quantize(
    x: Tensor, round_scale: bool = False, use_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    """Casts bfloat16 [n, hidden] to FP8, a scale for every 128 channels.

    Returns float8_e4m3fn [n, hidden] and the dequantization factors: float32 [n, hidden/128], or
    with ``use_ue8m0`` int32 [n, ceil(hidden/512)], four exponents a word. ``round_scale`` makes
    the factors powers of two. A group with a NaN or an infinity becomes NaN as a whole.
    """
    if use_ue8m0 and not round_scale:
        raise ValueError("use_ue8m0 stores exponents only: it needs round_scale=True")
    num_rows, hidden = x.shape
    groups = x.float().reshape(num_rows, hidden // GROUP, GROUP)
    amax = groups.abs().amax(dim=-1).clamp(min=MIN_AMAX)
    # A tensor, since torch turns number / tensor into a reciprocal and a product: two roundings.
    fp8_max = torch.full_like(amax, FP8_MAX)
    scale_inv = amax / fp8_max
    scale = fp8_max / amax
    if round_scale:
        scale_inv = _power_of_two_at_least(scale_inv)
        scale = torch.ones_like(scale_inv) / scale_inv
    # torch's own cast does not saturate: beyond the largest value it gives NaN.
    q = (groups * scale[..., None]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    broken = ~amax.isfinite()
    q.view(torch.uint8)[broken] = FP8_NAN
    scale_inv.view(torch.int32)[broken] = SCALE_NAN
    return q.reshape(num_rows, hidden), _pack_exponents(scale_inv) if use_ue8m0 else scale_inv


def dequantize(q: Tensor, scales: Tensor) -> Tensor:
    """Undoes ``quantize`` up to rounding: q [..., hidden] to float32 [..., hidden]."""
    num_groups = q.shape[-1] // GROUP
    factors = _unpack_exponents(scales)[..., :num_groups] if scales.dtype == torch.int32 else scales
    groups = q.float().reshape(*q.shape[:-1], num_groups, GROUP)
    return (groups * factors[..., None]).reshape(q.shape)


# LogFMT: 2^x = 1 + x r(x) and log2(1 + f) = f q(f), exact coefficients of float32, lowest first.
LOG2_Q = (
    float.fromhex("0x1.7153cap+0"),
    float.fromhex("-0x1.70e7f8p-1"),
    float.fromhex("0x1.e132eap-2"),
    float.fromhex("-0x1.387204p-2"),
    float.fromhex("0x1.2ff356p-3"),
    float.fromhex("-0x1.21e3c4p-5"),
)
EXP2_R = (
    float.fromhex("0x1.62e2d2p-1"),
    float.fromhex("0x1.ebf958p-3"),
    float.fromhex("0x1.c96d78p-5"),
    float.fromhex("0x1.3d1088p-7"),
)
LOG_STEPS = 510.0  # between the smallest and the largest magnitude of a group
LOG_RANGE = 16.0  # smaller magnitudes than 2^-16 of the largest one count as that
SMALLEST_NORMAL = 2.0**-126  # what is smaller counts as zero


class LogGroups(NamedTuple):
    """Rows in LogFMT: 10 bits a value, a sign and a code for its magnitude."""

    codes: Tensor  # int32 [n, groups, 128], 0: zero, else low * 2^(step * (code - 1))
    negative: Tensor  # bool [n, groups, 128]
    low: Tensor  # float32 [n, groups]: log2 of the magnitude of code 1; NaN: the group is NaN
    step: Tensor  # float32 [n, groups]


def logfmt_encode(x: Tensor) -> LogGroups:
    """Casts bfloat16 [n, hidden] to LogFMT, group by group of 128 channels.

    The logarithms of a group's magnitudes are rounded to 511 even steps from its smallest to its
    largest one, but at most 16 powers of two. Every group is cast, whatever its values; one with a
    NaN or an infinity becomes NaN as a whole, as in FP8.
    """
    num_rows, hidden = x.shape
    values = x.float().reshape(num_rows, hidden // GROUP, GROUP)
    magnitude = values.abs()
    is_zero = magnitude < SMALLEST_NORMAL
    top = magnitude.amax(dim=-1)
    least = magnitude.masked_fill(is_zero, torch.inf).amin(dim=-1)
    broken, empty = ~top.isfinite(), top < SMALLEST_NORMAL
    # Whatever is finite serves where there is nothing to cast.
    top, least = top.masked_fill(broken | empty, 1.0), least.masked_fill(broken | empty, 1.0)
    high = _log2(top)
    low = torch.maximum(_log2(least), high - LOG_RANGE)
    steps = torch.full_like(high, LOG_STEPS)
    inverse = torch.where(high > low, steps / (high - low), 0.0)
    logs = _log2(magnitude.masked_fill(is_zero | broken[..., None], 1.0))
    places = fma(logs - low[..., None], inverse[..., None], torch.ones_like(logs))
    codes = places.clamp(min=1.0).round().to(torch.int32).masked_fill(is_zero, 0)
    step = (high - low) * torch.full_like(high, 1 / LOG_STEPS)
    return LogGroups(codes, values.signbit(), low.masked_fill(broken, torch.nan), step)


def logfmt_decode(groups: LogGroups) -> Tensor:
    """The values that LogFMT stands for: float32 [n, hidden]."""
    codes, negative, low, step = groups
    ordinals = (codes - 1).float()
    logs = fma(ordinals, step[..., None].expand_as(ordinals), low[..., None].expand_as(ordinals))
    values = _exp2(logs.nan_to_num()).masked_fill(codes == 0, 0.0)
    values = torch.where(negative, -values, values)
    return values.masked_fill(low.isnan()[..., None], torch.nan).flatten(-2)


def _through_logfmt(outputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """One rank's outputs as they arrive."""
    if not outputs:
        return outputs
    whole = logfmt_decode(logfmt_encode(torch.cat(list(outputs))))
    return torch.split(whole, [len(rows) for rows in outputs])


def _log2(x: Tensor) -> Tensor:
    """log2 of normal positive bfloat16 values, within 1e-5; the same bits everywhere."""
    bits = x.view(torch.int32)
    fraction = ((bits & 0x7FFFFF) | 0x3F800000).view(torch.float32) - 1.0
    exponent = ((bits >> 23) - 127).float()
    return fma(fraction, _polynomial(LOG2_Q, fraction), exponent)


def _exp2(x: Tensor) -> Tensor:
    """2^x for -126 <= x < 128, within a factor of 1 + 1e-5; the same bits everywhere."""
    whole = x.round()
    rest = x - whole
    mantissa = fma(rest, _polynomial(EXP2_R, rest), torch.ones_like(rest))
    bits = mantissa.view(torch.int32) + (whole.to(torch.int32) << 23)
    return bits.view(torch.float32)


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """By Horner's rule, an FMA a step."""
    *others, total = (torch.full_like(x, c) for c in coefficients)
    for coefficient in reversed(others):
        total = fma(total, x, coefficient)
    return total


def encode(
    x: Tensor, *, use_fp8: bool = True, round_scale: bool = False, use_ue8m0: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The rows dispatch sends for bfloat16 [n, hidden], and their scales; BF16 rows stay as is."""
    return quantize(x, round_scale, use_ue8m0) if use_fp8 else (x, None)


def experts_of(rank: int, num_ranks: int, num_experts: int) -> range:
    """The experts of a rank. Each rank has ceil(experts / ranks), but the last ones, which have
    what is left: fewer, or none.
    """
    most = -(-num_experts // num_ranks)
    return range(min(rank * most, num_experts), min((rank + 1) * most, num_experts))


def receive(
    rank: int,
    sent: Sequence[tuple[Tensor, Tensor | None]],
    topk_idxs: Sequence[Tensor],
    num_experts: int,
) -> Received:
    """What ``rank`` receives, given every rank's encoded rows and its topk_idx [n, num_topk]."""
    experts = experts_of(rank, len(sent), num_experts)
    return tuple(_receive_expert(expert, sent, topk_idxs) for expert in experts)


def dispatch(
    xs: Sequence[Tensor],
    topk_idxs: Sequence[Tensor],
    num_experts: int,
    *,
    use_fp8: bool = True,
    round_scale: bool = False,
    use_ue8m0: bool = False,
) -> list[Received]:
    """Dispatches every rank's bfloat16 x [n, hidden] by its topk_idx [n, num_topk].

    One result per rank. -1 in topk_idx chooses nothing. ``experts_of`` says where experts live.
    """
    sent = [encode(x, use_fp8=use_fp8, round_scale=round_scale, use_ue8m0=use_ue8m0) for x in xs]
    return [receive(rank, sent, topk_idxs, num_experts) for rank in range(len(xs))]


def combine(
    rank: int,
    outputs: Sequence[Sequence[Tensor]],
    received: Sequence[Received],
    topk_idx: Tensor,
    topk_weights: Tensor,
    *,
    use_logfmt: bool = False,
) -> Tensor:
    """The weighted sum of the experts' outputs for the tokens of ``rank``: bfloat16 [n, hidden].

    ``outputs[r][i]`` is bfloat16 [at least count, hidden]: row by row, the answer of local expert
    ``i`` of rank ``r`` to what it received. ``received`` is dispatch's result; topk_idx and
    topk_weights (float32), both [n, num_topk], are those of ``rank``. With ``use_logfmt`` the
    answers travel in LogFMT. Every sum is a chain of single-rounded float32 FMAs in the order of
    the choices, starting at +0.
    """
    if use_logfmt:
        outputs = [_through_logfmt(of_rank) for of_rank in outputs]
    num_local = len(received[0])  # rank 0 has as many as any
    total = torch.zeros(topk_idx.shape[0], outputs[0][0].shape[-1], dtype=torch.float32)
    for k in range(topk_idx.shape[1]):
        for expert in set(topk_idx[:, k].tolist()) - {-1}:
            owner, local_expert = divmod(expert, num_local)
            tokens = (topk_idx[:, k] == expert).nonzero().flatten()
            rows = _rows_of(received[owner][local_expert], rank, tokens)
            answer = outputs[owner][local_expert][rows].float()
            total[tokens] = fma(topk_weights[tokens, k, None], answer, total[tokens])
    return round_to_bf16(total)


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c of float32 tensors with a single rounding."""
    product = a.double() * b.double()  # exact: 24 + 24 bits fit float64's 53
    addend = c.double()
    total = product + addend
    # float64 then float32 would round twice. Knuth's two-sum finds what the first rounding lost,
    # and rounding the float64 to odd instead of to nearest keeps it visible to the second.
    addend_part = total - product
    lost = (product - (total - addend_part)) + (addend - addend_part)
    bits = total.view(torch.int64)
    step = torch.where((lost > 0) == (total > 0), 1, -1)
    inexact = (lost != 0) & total.isfinite() & (bits & 1 == 0)
    return torch.where(inexact, bits + step, bits).view(torch.float64).float()


def round_to_bf16(x: Tensor) -> Tensor:
    """float32 to bfloat16, nearest even; every NaN becomes the same bits."""
    rounded = x.bfloat16()
    rounded.view(torch.int16)[x.isnan()] = BF16_NAN
    return rounded


def split_layout(layout_range: Tensor) -> tuple[Tensor, Tensor]:
    """The first rows and the numbers of rows in int64 layout_range words."""
    return layout_range >> 32, layout_range & 0xFFFFFFFF


def _receive_expert(
    expert: int, sent: Sequence[tuple[Tensor, Tensor | None]], topk_idxs: Sequence[Tensor]
) -> ExpertRows:
    tokens = [(topk_idx == expert).any(dim=1).nonzero().flatten() for topk_idx in topk_idxs]
    counts = torch.tensor([t.numel() for t in tokens], dtype=torch.int64)
    begins = counts.cumsum(0) - counts
    scales = [s[t] for (_, s), t in zip(sent, tokens, strict=True) if s is not None]
    return ExpertRows(
        rows=torch.cat([rows[t] for (rows, _), t in zip(sent, tokens, strict=True)]),
        scales=torch.cat(scales) if scales else None,
        src_info=torch.cat(tokens).to(torch.int32),
        layout_range=begins << 32 | counts,
    )


def _rows_of(expert_rows: ExpertRows, source: int, tokens: Tensor) -> Tensor:
    begins, counts = split_layout(expert_rows.layout_range)
    begin, count = int(begins[source]), int(counts[source])
    # src_info ascends within a source, so a token's place in it can be searched.
    found = torch.searchsorted(expert_rows.src_info[begin : begin + count], tokens.to(torch.int32))
    return begin + found


def _power_of_two_at_least(x: Tensor) -> Tensor:
    bits = x.view(torch.int32)
    exponent = (bits >> 23) + (bits & 0x7FFFFF != 0)
    return (exponent << 23).to(torch.int32).view(torch.float32)


def _pack_exponents(scale_inv: Tensor) -> Tensor:
    *leading, num_groups = scale_inv.shape
    num_words = -(-num_groups // EXPONENTS_PER_WORD)
    missing = num_words * EXPONENTS_PER_WORD - num_groups
    exponents = torch.nn.functional.pad(scale_inv.view(torch.int32).long() >> 23, (0, missing))
    places = exponents.reshape(*leading, num_words, EXPONENTS_PER_WORD) << torch.arange(0, 32, 8)
    return places.sum(dim=-1).to(torch.int32)


def _unpack_exponents(words: Tensor) -> Tensor:
    exponents = (words.long()[..., None] >> torch.arange(0, 32, 8)) & 0xFF
    return (exponents << 23).to(torch.int32).view(torch.float32).flatten(-2)
