"""LogFMT: what the oracle says of it, how far it is from BF16, and DeepEP's own limits."""

import re
from pathlib import Path
from typing import Any

import logfmt_error
import pytest
import torch
from cases import CASTS, Case, make_inputs, make_values
from exchange import make_buffer, padded
from logfmt_error import calc_diff
from torch import Tensor

import deep_ll
from deep_ll import reference
from deep_ll.testing import run_ranks
from deep_ll.testing.compare import assert_same_bits

DOCS = Path(__file__).resolve().parent.parent / "docs" / "logfmt.md"
TINY = 1e-5  # the polynomials' own error


def there_and_back(x: Tensor) -> Tensor:
    return reference.logfmt_decode(reference.logfmt_encode(x))


def test_documented_error_is_measured() -> None:
    documented = re.search(r"<!-- errors -->\n(.*)\n<!-- end -->", DOCS.read_text(), re.DOTALL)
    assert documented is not None
    assert documented[1] == logfmt_error.table()


@pytest.mark.parametrize("values", ["normal", "huge", "tiny", "zeros", "wild"])
def test_every_value_is_as_near_as_the_steps_allow(values: str) -> None:
    """By logarithms in float64, which are not those of the code."""
    x = make_values(values, (64, 512), torch.Generator().manual_seed(1))
    got, want = there_and_back(x).reshape(-1, 128), x.float().reshape(-1, 128)
    broken = ~want.isfinite().all(dim=1)
    assert got[broken].isnan().all()
    got, want = got[~broken].double(), want[~broken].double()
    zero = want.abs() < 2.0**-126
    assert (got[zero] == 0).all()
    assert torch.equal(got.signbit(), want.signbit())
    logs = want.abs().log2().masked_fill(zero, torch.inf)
    high = want.abs().amax(dim=1, keepdim=True).clamp(min=2.0**-126).log2()
    low = torch.maximum(logs.amin(dim=1, keepdim=True).minimum(high), high - 16)
    half_step = (high - low) / 510 / 2
    nearest = torch.maximum(logs, low)
    assert (((got.abs().log2() - nearest).abs() - half_step)[~zero] < 4 * TINY).all()


def test_equal_magnitudes_come_back() -> None:
    bits = torch.arange(0x80, 0x7F80, dtype=torch.int16)
    x = bits.view(torch.bfloat16)[:, None].repeat(1, 128)
    x[:, ::2] *= -1
    assert_same_bits(there_and_back(x).bfloat16(), x, "equal magnitudes")


def as_deepeps_test(group: Any, cast: str) -> list[float]:
    """DeepEP's inputs, in small: a pattern of constants, and values below 1 at random."""
    case = Case(world=4, experts=8, tokens=16, hidden=512, topk=4, cast=cast, routing="holes")
    inputs = make_inputs(case, 0)[group.rank]
    gen = torch.Generator().manual_seed(group.rank)
    pattern = torch.full((16, 512), float(group.rank - 128))
    pattern[:, -128:] = torch.arange(16.0)[:, None]
    diffs = []
    with make_buffer(group, case) as buf:
        for x in (pattern, torch.randn(16, 512, generator=gen) * 0.1):
            given = inputs._replace(x=x.bfloat16(), topk_weights=inputs.topk_weights.abs())
            diffs.append(identity_layer(buf, case, given))
    return diffs


def identity_layer(buf: deep_ll.Buffer, case: Case, given: Any) -> float:
    """Each expert gives back what it got."""
    recv_x, count, handle, _, _ = buf.low_latency_dispatch(
        given.x, given.topk_idx, case.max_tokens, case.experts, **CASTS[case.cast]
    )
    if isinstance(recv_x, tuple):
        rows, scales = recv_x
        outputs = [
            reference.dequantize(rows[e, :n], scales[e, :n]).bfloat16()
            for e, n in enumerate(count.tolist())
        ]
    else:
        outputs = [recv_x[e, :n] for e, n in enumerate(count.tolist())]
    x = padded(case, outputs)
    y, _, _ = buf.low_latency_combine(x, given.topk_idx, given.topk_weights, handle, True)
    weights = given.topk_weights.masked_fill(given.topk_idx < 0, 0.0).sum(dim=1, keepdim=True)
    assert not y.isnan().any()
    return calc_diff(given.x.float() * weights, y)


@pytest.mark.parametrize(("cast", "limit"), [("bf16", 1e-5), ("fp8", 9e-4)])
def test_deepeps_limits(cast: str, limit: float) -> None:
    diffs = run_ranks(4, as_deepeps_test, cast, timeout_s=30)
    assert all(diff < limit for pair in diffs for diff in pair), diffs
