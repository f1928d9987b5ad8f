"""The adapter for engines and the two micro-batches: the programs, and their parts."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from example_run import run_example
from torch import Tensor

import deep_ll
from deep_ll.testing import RankPool, run_ranks

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))  # here, since rank processes import this file as well

import engine_adapter  # noqa: E402
import two_microbatches  # noqa: E402
from engine_adapter import PrepareFinalize, dequantised  # noqa: E402
from moe_decode import relative_errors  # noqa: E402
from two_microbatches import Block  # noqa: E402

MAX_TOKENS, EXPERTS, HIDDEN = 8, 4, 256
# Dense, experts and their sum are rounded to bfloat16, each by at most 2**-9 of itself, and enter
# the residual with less than half its size; it is rounded too. 0.0034 after three layers is usual.
TOLERANCE = two_microbatches.NUM_LAYERS * 2.0**-9


def adapter_in_thread(group: Any, use_fp8: bool) -> list[float]:
    """Both micro-batches are between prepare and finalize at once; experts double their rows."""
    errors = []
    gen = torch.Generator().manual_seed(group.rank)
    sizes = {"max_tokens_per_rank": MAX_TOKENS, "hidden": HIDDEN, "num_experts": EXPERTS}
    with deep_ll.Buffer(group, **sizes) as buffer:
        adapter = PrepareFinalize(buffer, MAX_TOKENS, EXPERTS, use_fp8=use_fp8)
        for _ in range(3):
            xs = [torch.randn(n, HIDDEN, generator=gen).bfloat16() for n in (MAX_TOKENS, 3)]
            ids = [torch.rand(len(x), EXPERTS, generator=gen).topk(2)[1] for x in xs]
            weights = [torch.full((len(x), 2), 0.5) for x in xs]
            sent = [adapter.prepare_async(x, i, n) for n, (x, i) in enumerate(zip(xs, ids))]  # noqa: B905
            for number, (hook, receiver) in enumerate(sent):
                hook()
                batched = receiver()
                outputs = torch.full((*batched.rows.shape[:2], HIDDEN), torch.nan).bfloat16()
                for expert, count in enumerate(batched.expert_num_tokens.tolist()):
                    outputs[expert, :count] = 2 * dequantised(batched, expert, count)
                result = torch.empty_like(xs[number])
                adapter.finalize(result, outputs, weights[number], ids[number], number)
                errors.append(float(relative_errors(result, 2 * xs[number]).max()))
    return errors


@pytest.mark.filterwarnings("ignore:return_recv_hook=True")
@pytest.mark.parametrize(("use_fp8", "tolerance"), [(False, 0.0), (True, 0.05)])
def test_adapter_with_two_microbatches(use_fp8: bool, tolerance: float) -> None:
    for errors in run_ranks(2, adapter_in_thread, use_fp8):
        assert max(errors) <= tolerance
        assert (min(errors) > 0) == use_fp8


def finalize_alone(group: Any) -> str:
    sizes = {"max_tokens_per_rank": MAX_TOKENS, "hidden": HIDDEN, "num_experts": EXPERTS}
    with deep_ll.Buffer(group, **sizes) as buffer:
        adapter = PrepareFinalize(buffer, MAX_TOKENS, EXPERTS, use_fp8=False)
        with pytest.raises(RuntimeError) as raised:
            adapter.finalize(*[torch.empty(0)] * 4, 1)
        return str(raised.value)


def test_finalize_needs_its_prepare() -> None:
    assert run_ranks(1, finalize_alone) == ["finalize of micro-batch 1 without its prepare"]


def plain_layers(xs: list[Tensor]) -> Tensor:
    """The layers of two_microbatches over all ranks' tokens, in one process and in float32."""
    num_ranks = len(xs)
    x = torch.cat(xs).float()
    for layer_idx in range(two_microbatches.NUM_LAYERS):
        blocks = [Block.make(layer_idx, rank, num_ranks) for rank in range(num_ranks)]
        experts = torch.cat([block.experts for block in blocks]).float()
        h = x @ blocks[0].dense.float().t()
        scores = (h @ blocks[0].gate.float().t()).softmax(dim=-1)
        weights, chosen = scores.topk(two_microbatches.TOP_K, dim=-1)
        outputs = F.silu(torch.einsum("th,tkoh->tko", h, experts[chosen]))
        x = x + (weights[..., None] * outputs).sum(dim=1)
    return x


@pytest.mark.parametrize("together", [False, True])
def test_microbatches_compute_the_layers(pools: Any, together: bool) -> None:
    pool: RankPool = pools(4)
    gen = torch.Generator().manual_seed(3)
    xs = [torch.randn(n, two_microbatches.HIDDEN, generator=gen).bfloat16() for n in (9, 0, 16, 1)]
    out = torch.cat([x for x, _ in pool.run(two_microbatches.run, xs, together)])
    errors = relative_errors(out, plain_layers(xs))
    # A score that is rounded may choose another expert: then a token is far off, but few are.
    assert (errors < TOLERANCE).float().mean() > 0.8


@pytest.mark.timeout(120)
def test_microbatches_program() -> None:
    """As a user starts it."""
    run = run_example("two_microbatches.py", "--ranks", "3", timeout_s=100)
    assert run.stdout.splitlines()[-1] == "the results are the same bits"
    assert run.stderr == ""


@pytest.mark.parametrize(("tolerance", "status"), [(engine_adapter.TOLERANCE["fp8"], 0), (1e-4, 1)])
def test_adapter_program(monkeypatch: pytest.MonkeyPatch, tolerance: float, status: int) -> None:
    monkeypatch.setitem(engine_adapter.TOLERANCE, "fp8", tolerance)
    monkeypatch.setattr(sys, "argv", ["engine_adapter.py", "--ranks", "2", "--steps", "2"])
    assert engine_adapter.main() == status
