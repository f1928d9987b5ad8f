"""The oracle against small examples by hand, C's fmaf, and arithmetic in exact fractions."""

import ctypes
import math
import random
import struct
from fractions import Fraction

import pytest
import torch

from deep_ll import reference

E4M3 = torch.float8_e4m3fn
INF, NAN = math.inf, math.nan


def float_of(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0]


def nearest_even(value: Fraction, mantissa_bits: int, min_exponent: int) -> Fraction:
    """Rounds to a float format without an upper limit, in exact arithmetic."""
    if value == 0:
        return value
    exponent = math.floor(math.log2(abs(value)))
    while Fraction(2) ** (exponent + 1) <= abs(value):
        exponent += 1
    while Fraction(2) ** exponent > abs(value):
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, min_exponent) - mantissa_bits)
    return round(value / unit) * unit  # round() of a Fraction is half to even


def test_fma_equals_fmaf_of_c() -> None:
    fmaf = ctypes.CDLL("libm.so.6").fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    rng = random.Random(0)
    bits = [[rng.getrandbits(32) for _ in range(3)] for _ in range(20000)]
    # Near-cancellation and halfway cases, where rounding twice goes wrong.
    for _ in range(20000):
        a, b = rng.getrandbits(23) | 0x3F800000, (rng.getrandbits(7) << 16) | 0x3F800000
        exponent = rng.randrange(90, 160)
        c = (exponent << 23) | rng.choice([0, 1, 0x7FFFFF, rng.getrandbits(23)])
        bits.append([a, b, c | rng.choice([0, 0x80000000])])
    values = torch.tensor([[float_of(b) for b in triple] for triple in bits], dtype=torch.float32)
    expected = torch.tensor([fmaf(*triple) for triple in values.tolist()], dtype=torch.float32)
    actual = reference.fma(*values.unbind(1))
    same = (actual.view(torch.int32) == expected.view(torch.int32)) | (
        actual.isnan() & expected.isnan()
    )
    assert same.all(), values[~same][:5]


def test_fma_rounds_once() -> None:
    # a * b is a little below half a unit of c: float64 cannot tell it from the tie.
    a, b = torch.tensor([2.0**23 + 1]), torch.tensor([(2.0**23 - 1) * 2.0**-70])
    c = torch.tensor([1 + 2.0**-23])
    assert (a.double() * b.double() + c.double()).float().item() == 1 + 2.0**-22
    assert reference.fma(a, b, c).item() == 1 + 2.0**-23


@pytest.mark.parametrize("round_scale", [False, True])
def test_quantize_against_fractions(round_scale: bool) -> None:
    torch.manual_seed(1)
    x = (torch.randn(6, 256) * 10.0 ** torch.arange(-6, 6, 2.0)[:, None]).bfloat16()
    q, scales = reference.quantize(x, round_scale)
    assert q.shape == x.shape
    assert q.dtype == E4M3
    assert scales.shape == (6, 2)
    assert scales.dtype == torch.float32
    for row in range(6):
        for group in range(2):
            values = [Fraction(v) for v in x[row, group * 128 : (group + 1) * 128].float().tolist()]
            amax = max(*map(abs, values), Fraction(float(torch.tensor(1e-4))))
            scale_inv = nearest_even(amax / 448, 23, -126)
            scale = nearest_even(448 / amax, 23, -126)
            if round_scale:
                scale_inv = Fraction(2) ** math.ceil(math.log2(scale_inv))
                scale = 1 / scale_inv
            assert Fraction(scales[row, group].item()) == scale_inv
            for i, value in enumerate(values):
                scaled = nearest_even(value * scale, 23, -126)
                expected = min(max(nearest_even(scaled, 3, -6), Fraction(-448)), Fraction(448))
                assert Fraction(q[row, group * 128 + i].float().item()) == expected


def test_quantize_known_bytes() -> None:
    x = torch.zeros(1, 512, dtype=torch.bfloat16)
    x[0, 0], x[0, 1], x[0, 2] = 448.0, -448.0, -0.0  # scale 1
    x[0, 128] = 449.0  # bf16: 448; group 1 has scale 1
    x[0, 256] = 896.0  # scale 1/2
    q, scales = reference.quantize(x)
    assert q.view(torch.uint8)[0, :3].tolist() == [0x7E, 0xFE, 0x80]
    assert scales[0, :3].tolist() == [1.0, 1.0, 2.0]
    assert scales[0, 3] == torch.tensor(1e-4) / torch.tensor(448.0)
    _, words = reference.quantize(x, round_scale=True, use_ue8m0=True)
    assert words.tolist() == [[127 | 127 << 8 | 128 << 16 | (127 - 22) << 24]]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_quantize_not_finite(bad: float) -> None:
    x = torch.ones(2, 640, dtype=torch.bfloat16)
    x[1, 130] = bad
    q, scales = reference.quantize(x)
    assert (q.view(torch.uint8)[1, 128:256] == 0x7F).all()
    assert q[0].float().isfinite().all()
    assert q[1, 256:].float().isfinite().all()
    assert scales.view(torch.int32)[1, 1] == 0x7FFFFFFF
    _, words = reference.quantize(x, round_scale=True, use_ue8m0=True)
    assert words.shape == (2, 2)
    assert words.dtype == torch.int32
    one = 127 - 8  # 1/448 rounded up is 2^-8
    assert words.view(torch.uint8)[0].tolist() == [one] * 5 + [0, 0, 0]
    assert words.view(torch.uint8)[1].tolist() == [one, 255, one, one, one, 0, 0, 0]


def test_quantize_no_rows() -> None:
    q, scales = reference.quantize(torch.empty(0, 256, dtype=torch.bfloat16), True, True)
    assert q.shape == (0, 256)
    assert scales.shape == (0, 1)


@pytest.mark.parametrize("ue8m0", [False, True])
def test_dequantize_is_close(ue8m0: bool) -> None:
    torch.manual_seed(2)
    x = torch.randn(5, 640).bfloat16()
    back = reference.dequantize(*reference.quantize(x, round_scale=ue8m0, use_ue8m0=ue8m0))
    torch.testing.assert_close(back, x.float(), rtol=2**-4, atol=2**-8)


def test_dispatch_by_hand() -> None:
    xs = [torch.tensor([[1.0], [2.0]]).bfloat16(), torch.tensor([[3.0], [4.0], [5.0]]).bfloat16()]
    topk = [
        torch.tensor([[0, 3], [2, 0]]),
        torch.tensor([[0, -1], [-1, -1], [3, 0]]),
    ]
    rank0, rank1 = reference.dispatch(xs, topk, 4, use_fp8=False)
    assert [e.rows.flatten().tolist() for e in rank0] == [[1, 2, 3, 5], []]
    assert [e.rows.flatten().tolist() for e in rank1] == [[2], [1, 5]]
    assert [e.src_info.tolist() for e in rank0] == [[0, 1, 0, 2], []]
    assert [e.src_info.tolist() for e in rank1] == [[1], [0, 2]]
    assert [e.layout_range.tolist() for e in rank0] == [[2, 2 << 32 | 2], [0, 0]]
    assert [e.layout_range.tolist() for e in rank1] == [[1, 1 << 32], [1, 1 << 32 | 1]]


def test_combine_by_hand() -> None:
    topk = [torch.tensor([[0, 1], [1, -1]]), torch.tensor([[1, 0], [-1, -1]])]
    xs = [torch.zeros(2, 1).bfloat16()] * 2
    received = reference.dispatch(xs, topk, 2, use_fp8=False)
    # Expert 0 saw (0,0), (1,0); expert 1 saw (0,0), (0,1), (1,0).
    outputs = [
        [torch.tensor([[1.0], [2.0]]).bfloat16()],
        [torch.tensor([[10.0], [20.0], [30.0]]).bfloat16()],
    ]
    weights = torch.tensor([[0.5, 2.0], [3.0, NAN]])
    first = reference.combine(0, outputs, received, topk[0], weights)
    second = reference.combine(1, outputs, received, topk[1], torch.tensor([[1.0, 4.0], [1, 1]]))
    assert first.tolist() == [[20.5], [60.0]]
    assert second.tolist() == [[38.0], [0.0]]


def test_combine_against_a_loop() -> None:
    torch.manual_seed(3)
    fmaf = ctypes.CDLL("libm.so.6").fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    num_tokens, num_experts, hidden = [3, 0, 5], 6, 4
    xs = [torch.randn(n, hidden).bfloat16() for n in num_tokens]
    topk = [torch.rand(n, num_experts).argsort(1)[:, :4] for n in num_tokens]
    topk[2][1, 2] = -1
    received = reference.dispatch(xs, topk, num_experts, use_fp8=False)
    outputs = [[torch.randn(e.rows.shape).bfloat16() for e in rank] for rank in received]
    # Every row of every expert, found by its (source, token) without the layout words.
    answer = {}
    for expert in range(num_experts):
        rows = iter(outputs[expert // 2][expert % 2].tolist())
        for source in range(3):
            for token in range(num_tokens[source]):
                if expert in topk[source][token].tolist():
                    answer[expert, source, token] = next(rows)
        assert next(rows, None) is None
    for rank in range(3):
        weights = torch.randn(num_tokens[rank], 4)
        expected = torch.zeros(num_tokens[rank], hidden)
        for token, channel in [(t, c) for t in range(num_tokens[rank]) for c in range(hidden)]:
            total = 0.0
            for k, expert in enumerate(topk[rank][token].tolist()):
                if expert >= 0:
                    row = answer[expert, rank, token]
                    total = fmaf(weights[token, k].item(), row[channel], total)
            expected[token, channel] = total
        actual = reference.combine(rank, outputs, received, topk[rank], weights)
        assert torch.equal(actual, expected.bfloat16())


def test_combine_special_values() -> None:
    topk = [torch.tensor([[0], [0], [0], [0]])]
    received = reference.dispatch([torch.zeros(4, 1).bfloat16()], topk, 1, use_fp8=False)
    outputs = [[torch.tensor([[-0.0], [INF], [NAN], [1.0]]).bfloat16()]]
    weights = torch.tensor([[1.0], [0.0], [1.0], [INF]])
    actual = reference.combine(0, outputs, received, topk[0], weights)
    assert actual.view(torch.int16).flatten().tolist() == [0, 0x7FFF, 0x7FFF, 0x7F80]
