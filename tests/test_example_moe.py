"""The example's MoE layer against transformers' Qwen3-MoE: its module, its own random weights."""

import copy
import functools
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from example_run import run_example
from torch import Tensor

import deep_ll
from deep_ll.reference import dequantize, quantize
from deep_ll.testing import RankPool, run_ranks

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))  # here, since rank processes import this file as well

import moe_decode  # noqa: E402
from moe_decode import relative_errors  # noqa: E402
from moe_layer import ExpertParallelMoE, Weights, qwen3_weights  # noqa: E402

needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed (extra: test)"
)

MAX_TOKENS = 16
# Tokens by rank, a row for each step. The first two columns serve two ranks.
STEPS = [(5, 0, 16, 1), (0, 3, 0, 0), (16, 16, 16, 16), (0, 0, 0, 0), (1, 7, 0, 2)]

# Errors are |out - reference| / |reference| of a token. A result in bfloat16 is off by at most
# 2**-9 of itself. Six are rounded between x and the output: gate, up, silu, their product, down,
# the sum. So this is the largest error to first order; 0.004 is usual.
BF16_TOLERANCE = 6 * 2.0**-9
# Qwen3-MoE in bfloat16 itself rounds the first five, the router's weights, the weighted rows, and
# the sum after each choice.
BOTH_BF16_TOLERANCE = BF16_TOLERANCE + (5 + 1 + 1 + 4) * 2.0**-9
# e4m3 has three bits of mantissa: a channel is off by at most 2**-4 of itself, and by 0.026 in the
# root mean square. That enters SwiGLU through gate and through up, so sqrt(2) * 0.026 = 0.037 is
# usual; independent errors of hundreds of channels keep every token near it. One scale that is
# wrong by a factor of two, of 16 groups of 128 channels, makes it 0.25 * sqrt(2).
FP8_MEAN = (0.025, 0.05)
FP8_TOLERANCE = 0.08


class Shape(NamedTuple):
    hidden: int
    intermediate: int
    norm_topk_prob: bool
    num_experts: int = 16
    top_k: int = 4

    def __str__(self) -> str:
        return f"hidden{self.hidden}-{'normalised' if self.norm_topk_prob else 'as_is'}"


class Way(NamedTuple):
    use_fp8: bool
    zero_copy: bool


SHAPES = [Shape(256, 128, True), Shape(256, 128, False), Shape(2048, 256, True)]
WAYS = [Way(*flags) for flags in product([False, True], [False, True])]


@functools.cache
def qwen3_block(shape: Shape) -> Any:
    """In float32, with values that bfloat16 has: both sides start from the same weights."""
    from transformers import Qwen3MoeConfig, Qwen3MoeModel

    torch.manual_seed(shape.hidden)
    config = Qwen3MoeConfig(
        vocab_size=8,
        hidden_size=shape.hidden,
        num_hidden_layers=1,
        moe_intermediate_size=shape.intermediate,
        num_experts=shape.num_experts,
        num_experts_per_tok=shape.top_k,
        norm_topk_prob=shape.norm_topk_prob,
        # Gate and up get variance 1. At the default, silu of a small model is a straight line.
        initializer_range=shape.hidden**-0.5,
    )
    model = Qwen3MoeModel(config)
    return model.layers[0].mlp.bfloat16().float()


def tokens_of(shape: Shape, step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(STEPS[step][rank], shape.hidden, generator=generator).bfloat16()


def new_buffer(group: Any, shape: Shape) -> deep_ll.Buffer:
    return deep_ll.Buffer(
        group,
        max_tokens_per_rank=MAX_TOKENS,
        hidden=shape.hidden,
        num_experts=shape.num_experts,
        max_topk=shape.top_k,
        timeout_s=30,
    )


def run_steps(layer: ExpertParallelMoE, shape: Shape) -> dict[Way, list[Tensor]]:
    """This rank's output of every step, in all ways through one buffer."""
    outputs: dict[Way, list[Tensor]] = {}
    for way in WAYS:
        layer.use_fp8, layer.zero_copy = way
        xs = [tokens_of(shape, step, layer.buffer.rank) for step in range(len(STEPS))]
        outputs[way] = [layer(x) for x in xs]
    return outputs


def in_process(group: Any, shape: Shape, weights_file: str) -> dict[Way, list[Tensor]]:
    weights = Weights(**torch.load(weights_file, mmap=True))
    with new_buffer(group, shape) as buffer:
        layer = ExpertParallelMoE(
            buffer, weights, shape.top_k, MAX_TOKENS, norm_topk_prob=shape.norm_topk_prob
        )
        return run_steps(layer, shape)


def in_thread(group: Any, shape: Shape, block: Any) -> dict[Way, list[Tensor]]:
    with new_buffer(group, shape) as buffer:
        return run_steps(ExpertParallelMoE.from_qwen3_moe(block, buffer, MAX_TOKENS), shape)


@torch.no_grad()
def check(shape: Shape, results: list[dict[Way, list[Tensor]]]) -> None:
    """All ranks' outputs in all ways against the one block that has all experts."""
    block = qwen3_block(shape)
    ranks, steps = range(len(results)), range(len(STEPS))
    x = torch.cat([tokens_of(shape, step, rank) for rank in ranks for step in steps])
    expected = block(x[None].float())[0]
    # The router sees x itself, only what travels is FP8.
    _, topk_weights, topk_idx = block.gate(x.float())
    after_cast = block.experts(dequantize(*quantize(x)), topk_idx, topk_weights)
    for way in WAYS:
        for rank, step in product(ranks, steps):
            assert results[rank][way][step].shape == (STEPS[step][rank], shape.hidden)
        out = torch.cat([results[rank][way][step] for rank in ranks for step in steps])
        assert out.dtype == torch.bfloat16
        errors = relative_errors(out, expected)
        if way.use_fp8:
            assert FP8_MEAN[0] < errors.mean() < FP8_MEAN[1], way
            assert errors.max() < FP8_TOLERANCE, way
            # Rows become bfloat16 again: one more rounding.
            assert relative_errors(out, after_cast).max() < BF16_TOLERANCE + 2.0**-9, way
        else:
            assert errors.max() < BF16_TOLERANCE, way
        for rank, step in product(ranks, steps):
            pushed = results[rank][way._replace(zero_copy=False)][step]
            assert torch.equal(results[rank][way][step], pushed), way


@needs_transformers
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_four_processes(pools: Callable[[int], RankPool], tmp_path: Path, shape: Shape) -> None:
    weights_file = str(tmp_path / "weights.pt")
    torch.save(qwen3_weights(qwen3_block(shape))._asdict(), weights_file)
    check(shape, pools(4).run(in_process, shape, weights_file))


@needs_transformers
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_threads(shape: Shape) -> None:
    check(shape, run_ranks(2, in_thread, shape, qwen3_block(shape)))


def beside_block(group: Any, shape: Shape, block: Any) -> list[Tensor]:
    """Decode steps in the block's own shape, [batch, 1, hidden]: the error of every token."""
    errors = []
    with new_buffer(group, shape) as buffer, torch.no_grad():
        layer = ExpertParallelMoE.from_qwen3_moe(block, buffer, MAX_TOKENS, use_fp8=False)
        for step in range(len(STEPS)):
            x = tokens_of(shape, step, buffer.rank).unsqueeze(1)
            out = layer(x)
            assert out.shape == x.shape
            errors.append(relative_errors(out, block(x)).flatten())
    return errors


@needs_transformers
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_block_in_bfloat16(shape: Shape) -> None:
    # Its router's logits are rounded, so that choices tie; the layer's must tie in the same way.
    block = copy.deepcopy(qwen3_block(shape)).bfloat16()
    results = run_ranks(2, beside_block, shape, block)
    assert torch.cat([errors for rank in results for errors in rank]).max() < BOTH_BF16_TOLERANCE


@needs_transformers
def test_only_silu() -> None:
    block = copy.deepcopy(qwen3_block(SHAPES[0]))
    block.experts.act_fn = torch.nn.GELU()
    with pytest.raises(ValueError, match="GELU"):
        qwen3_weights(block)


def test_program() -> None:
    """As a user starts it, against what is installed."""
    run = run_example("moe_layer.py", "--ranks", "3", "--steps", "2", timeout_s=50)
    lines = run.stdout.splitlines()
    name = "plain torch" if find_spec("transformers") is None else "transformers' Qwen3-MoE"
    assert lines[1].endswith(f"against {name}")
    assert len({len(line) for line in lines[2:5]}) == 1, run.stdout  # header and rows, aligned
    assert lines[-1].startswith("all tokens within tolerance")


@pytest.mark.parametrize(("bf16_tolerance", "status"), [(BF16_TOLERANCE, 0), (1e-4, 1)])
def test_program_in_plain_torch(
    monkeypatch: pytest.MonkeyPatch, bf16_tolerance: float, status: int
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # importing it fails
    monkeypatch.setitem(moe_decode.TOLERANCE, "bf16", bf16_tolerance)
    monkeypatch.setattr(sys, "argv", ["moe_layer.py", "--ranks", "2", "--steps", "2"])
    assert moe_decode.main() == status
