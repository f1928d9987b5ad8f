"""Conversions, exhaustively: oracle against numpy and ml_dtypes, kernels against the oracle."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

import deep_ll
from deep_ll import reference
from deep_ll.testing import run_ranks
from deep_ll.testing.compare import assert_same_bits

GROUP = 128
ANCHORS = [0.0, 1e-5, 2.0**-13, 0.3, 1.0, 447.0, 448.0, 450.0, 12345.0, 1e20, 3.3895314e38]


def all_bf16() -> torch.Tensor:
    """Every bfloat16, ordered by magnitude: a group of neighbours has one scale."""
    bits = torch.arange(2**16).to(torch.int16)
    order = (bits.int() & 0x7FFF).argsort(stable=True)
    return bits[order].view(torch.bfloat16)


def arrangements() -> dict[str, torch.Tensor]:
    """All values in groups of 128 of several kinds: [n, 128]."""
    values = all_bf16()
    finite = values[values.isfinite()]
    found = {
        "neighbours": values.reshape(-1, GROUP),  # every value near its group's largest
        "spread": values.reshape(GROUP, -1).t().contiguous(),  # every group has NaN or infinity
        "finite_spread": finite.reshape(GROUP, -1).t().contiguous(),
    }
    for anchor in ANCHORS:  # all that fit below the anchor, which sets the scale
        largest = torch.tensor([anchor]).bfloat16()
        below = finite[finite.abs() <= largest]
        below = torch.nn.functional.pad(below, (0, -len(below) % (GROUP - 1)))
        rows = below.reshape(-1, GROUP - 1)
        found[f"below_{anchor:g}"] = torch.cat([rows, largest.expand(len(rows), 1)], dim=1)
    return found


GROUPS = arrangements()


def numpy_quantize(x: torch.Tensor, round_scale: bool) -> tuple[np.ndarray, np.ndarray]:
    """The same meaning in numpy: float32 throughout, ml_dtypes for the cast."""
    values = x.float().numpy()
    with np.errstate(all="ignore"):
        amax = np.maximum(np.abs(values).max(axis=1, keepdims=True), np.float32(1e-4))
        scale_inv = amax / np.float32(448)
        scale = np.float32(448) / amax
        if round_scale:
            mantissa, exponent = np.frexp(scale_inv)
            exponent -= mantissa == 0.5
            scale_inv = np.ldexp(np.float32(1), exponent)
            scale = np.float32(1) / scale_inv
        assert scale.dtype == np.float32
        scaled = np.clip(values * scale, np.float32(-448), np.float32(448))
        q = scaled.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    broken = ~np.isfinite(amax[:, 0])
    q[broken] = 0x7F
    scale_bits = scale_inv.astype(np.float32).view(np.uint32)
    scale_bits[broken] = 0x7FFFFFFF
    return q, scale_bits


@pytest.mark.parametrize("round_scale", [False, True])
@pytest.mark.parametrize("name", GROUPS)
def test_oracle_equals_numpy(name: str, round_scale: bool) -> None:
    x = GROUPS[name]
    q, scales = reference.quantize(x, round_scale)
    expected_q, expected_scales = numpy_quantize(x, round_scale)
    assert np.array_equal(q.view(torch.uint8).numpy(), expected_q)
    assert np.array_equal(scales.view(torch.int32).numpy().view(np.uint32), expected_scales)


def dispatch_alone(group, x, options):
    """One rank, one expert: what comes back is the cast of x, row by row."""
    hidden = x.shape[1]
    shape = {"max_tokens_per_rank": 4096, "hidden": hidden, "num_experts": 1, "max_topk": 1}
    found = []
    with deep_ll.Buffer(group, **shape) as buf:
        for rows in x.split(4096):
            topk_idx = torch.zeros(len(rows), 1, dtype=torch.int64)
            (q, scales), _, _, _, _ = buf.low_latency_dispatch(rows, topk_idx, 4096, 1, **options)
            found.append((q[0, : len(rows)].clone(), scales[0, : len(rows)].clone()))
    q, scales = zip(*found, strict=True)
    return torch.cat(q), torch.cat(scales)


@pytest.mark.parametrize("round_scale", [False, True])
def test_kernel_equals_oracle(round_scale: bool) -> None:
    x = torch.cat(list(GROUPS.values()))
    options = {"round_scale": round_scale}
    [(q, scales)] = run_ranks(1, dispatch_alone, x, options)
    expected_q, expected_scales = reference.quantize(x, round_scale)
    assert_same_bits(q, expected_q, "q")
    assert_same_bits(scales, expected_scales, "scales")


@pytest.mark.parametrize("num_groups", [1, 3, 4, 5, 6, 8])
def test_kernel_packs_exponents(num_groups: int) -> None:
    x = torch.cat(list(GROUPS.values()))
    x = x[: len(x) // num_groups * num_groups].reshape(-1, num_groups * GROUP)
    [(q, words)] = run_ranks(1, dispatch_alone, x, {"round_scale": True, "use_ue8m0": True})
    expected_q, expected_words = reference.quantize(x, True, True)
    assert_same_bits(q, expected_q, "q")
    assert_same_bits(words, expected_words, "words")


def combine_alone(group, answers, weights):
    """One rank; choice k of token t is expert k, which answers answers[k][t]."""
    num_experts, num_tokens, hidden = answers.shape
    shape = {"max_tokens_per_rank": num_tokens, "hidden": hidden, "num_experts": num_experts}
    with deep_ll.Buffer(group, max_topk=num_experts, **shape) as buf:
        x = torch.zeros(num_tokens, hidden, dtype=torch.bfloat16)
        topk_idx = torch.arange(num_experts).expand(num_tokens, -1).contiguous()
        _, _, handle, _, _ = buf.low_latency_dispatch(
            x, topk_idx, num_tokens, num_experts, use_fp8=False
        )
        return buf.low_latency_combine(answers, topk_idx, weights, handle)[0].clone()


def test_combine_returns_every_bf16() -> None:
    answers = all_bf16().reshape(1, 512, 128)
    [combined] = run_ranks(1, combine_alone, answers, torch.ones(512, 1))
    expected = answers[0].clone()
    expected.view(torch.int16)[expected == 0] = 0  # +0 + -0 is +0
    expected.view(torch.int16)[expected.isnan()] = 0x7FFF
    assert_same_bits(combined, expected, "combined")


@pytest.mark.parametrize("exponent", [-133, -126, -30, -9, -8, -7, 0, 100])
def test_combine_rounds_to_nearest_even(exponent: int) -> None:
    # Every bf16 plus a second term that makes ties, near-ties and carries.
    values = all_bf16()
    second = torch.tensor([1.0, 1.5, -1.0, 1.0078125]).bfloat16().repeat(len(values) // 4)
    answers = torch.stack([values, second]).reshape(2, 512, 128)
    weights = torch.tensor([[1.0, 2.0**exponent]]).expand(512, 2).contiguous()
    [combined] = run_ranks(1, combine_alone, answers, weights)
    total = reference.fma(weights[:, 1:], answers[1].float(), answers[0].float())
    expected = reference.round_to_bf16(total)
    same_as_numpy = total.numpy().astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(expected.float().numpy(), same_as_numpy)
    assert_same_bits(combined, expected, "combined")


def test_combine_fuses() -> None:
    gen = torch.Generator().manual_seed(0)
    answers = torch.randn(8, 256, 128, generator=gen).bfloat16()
    answers[1::2] = -answers[::2]  # pairs that cancel: only the rounding errors remain
    weights = torch.rand(256, 8, generator=gen) + 1
    weights[:, 1::2] = weights[:, ::2] * (1 + 2.0**-20)
    [combined] = run_ranks(1, combine_alone, answers, weights)
    total = torch.zeros(256, 128)
    for k in range(8):
        total = reference.fma(weights[:, k : k + 1], answers[k].float(), total)
    assert_same_bits(combined, reference.round_to_bf16(total), "combined")
    assert not math.isclose(float(total.abs().max()), 0.0)
