"""Decode steps of the layer of moe_layer.py on rank processes, every token against one process.

The one process has all the weights: transformers' Qwen3-MoE if that is installed, else plain torch.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from moe_layer import ExpertParallelMoE, Weights, qwen3_weights
from torch import Tensor

import deep_ll
from deep_ll.testing import RankPool

HIDDEN, INTERMEDIATE, TOP_K, MAX_TOKENS = 1024, 256, 4, 16
EXPERTS_PER_RANK = 8
STD = HIDDEN**-0.5  # of the weights: a row of variance 1 gives gate and up of variance 1

# The largest relative error of a token, |out - reference| / |reference|.
# BF16: six results are rounded on the way (gate, up, silu, their product, down, the sum), each by
# at most 2**-9 of itself.
# FP8: e4m3 changes a channel by at most 2**-4, 0.026 in the mean square, and that enters SwiGLU
# twice, through gate and up: about 0.037 is usual, and a token is far from it only by a mistake.
TOLERANCE = {"bf16": 6 * 2.0**-9, "fp8": 0.08}

Model = Callable[[Tensor], Tensor]


def relative_errors(out: Tensor, reference: Tensor) -> Tensor:
    """The relative error of each token."""
    size = torch.linalg.vector_norm
    reference = reference.float()
    errors: Tensor = size(out.float() - reference, dim=-1) / size(reference, dim=-1)
    return errors


def reference_model(num_experts: int) -> tuple[str, Weights, Model]:
    """A name, random weights, and what they make of [num_tokens, hidden], in float32.

    The weights have values of bfloat16, so that the layer starts from the same ones.
    """
    torch.manual_seed(0)
    try:
        from transformers import Qwen3MoeConfig, Qwen3MoeModel
    except ImportError:
        return plain_model(num_experts)
    config = Qwen3MoeConfig(
        vocab_size=8,
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        moe_intermediate_size=INTERMEDIATE,
        num_experts=num_experts,
        num_experts_per_tok=TOP_K,
        norm_topk_prob=True,
        initializer_range=STD,
    )
    block: Any = Qwen3MoeModel(config).layers[0].mlp
    block.bfloat16().float()
    return "transformers' Qwen3-MoE", qwen3_weights(block), lambda x: block(x[None])[0]


def plain_model(num_experts: int) -> tuple[str, Weights, Model]:
    """The same without transformers."""
    up_shape, down_shape = (INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)
    shapes = [(HIDDEN,), up_shape, up_shape, down_shape]
    weights = Weights(*((STD * torch.randn(num_experts, *s)).bfloat16().float() for s in shapes))
    return "plain torch", weights, functools.partial(plain_moe, weights)


def plain_moe(weights: Weights, x: Tensor) -> Tensor:
    """The layer, token by token."""
    out = torch.zeros_like(x)
    for token, row in enumerate(x):
        values, experts = (weights.gate @ row).softmax(0).topk(TOP_K)
        for value, expert in zip(values / values.sum(), experts, strict=True):
            gated = F.silu(weights.gate_proj[expert] @ row) * (weights.up_proj[expert] @ row)
            out[token] += value * (weights.down_proj[expert] @ gated)
    return out


@functools.cache  # a rank process keeps its layer from one step to the next
def rank_layer(group: Any, weights_file: str) -> ExpertParallelMoE:
    """This rank's layer; of the file's experts it reads only its own."""
    weights = Weights(**torch.load(weights_file, mmap=True))
    num_experts, hidden = weights.gate.shape
    buffer = deep_ll.Buffer(
        group, max_tokens_per_rank=MAX_TOKENS, hidden=hidden, num_experts=num_experts
    )
    return ExpertParallelMoE(buffer, weights, TOP_K, MAX_TOKENS, zero_copy=True)


def decode(group: Any, weights_file: str, xs: list[Tensor], use_fp8: bool) -> tuple[Tensor, float]:
    """One step of one rank: its output and the milliseconds it took."""
    layer = rank_layer(group, weights_file)
    layer.use_fp8 = use_fp8
    dist.barrier(group)
    start = time.perf_counter()
    out = layer(xs[dist.get_rank(group)])
    return out, (time.perf_counter() - start) * 1e3


def num_tokens(rank: int, step: int, num_ranks: int) -> int:
    """Tokens of a rank in a step: uneven, and none on one rank of several."""
    if num_ranks > 1 and (rank + step) % num_ranks == 0:
        return 0
    return 1 + (5 * rank + 3 * step) % MAX_TOKENS


def run_steps(pool: RankPool, num_steps: int, weights_file: str, reference: Model) -> bool:
    """Prints a row for each step; whether all tokens are within tolerance."""
    width = max(len("tokens by rank"), 3 * pool.world_size)
    columns = "".join(f"  {kind + ' max':>10}{'mean':>9}{'ms':>8}" for kind in TOLERANCE)
    print(f"step  {'tokens by rank':{width}}{columns}", flush=True)
    good = True
    for step in range(num_steps):
        counts = [num_tokens(rank, step, pool.world_size) for rank in range(pool.world_size)]
        xs = [torch.randn(count, HIDDEN).bfloat16() for count in counts]
        expected = reference(torch.cat(xs).float())
        row = f"{step:4}  {' '.join(f'{count:2}' for count in counts):{width}}"
        for kind, tolerance in TOLERANCE.items():
            results = pool.run(decode, weights_file, xs, kind == "fp8")
            errors = relative_errors(torch.cat([out for out, _ in results]), expected)
            good &= bool((errors <= tolerance).all())
            slowest = max(ms for _, ms in results)
            row += f"  {float(errors.max()):10.5f}{float(errors.mean()):9.5f}{slowest:8.2f}"
        print(row, flush=True)
    return good


@torch.no_grad()
def main() -> int:
    """Returns 0 if all tokens are right, else 1."""
    parser = argparse.ArgumentParser(description="An expert-parallel MoE layer on rank processes")
    parser.add_argument("--ranks", type=int, default=4, help="rank processes")
    parser.add_argument("--steps", type=int, default=5, help="decode steps")
    args = parser.parse_args()
    print(f"making weights and starting {args.ranks} ranks ...", flush=True)
    name, weights, reference = reference_model(EXPERTS_PER_RANK * args.ranks)
    print(f"{weights.gate.shape[0]} experts, top-{TOP_K}, hidden {HIDDEN}, against {name}")
    with tempfile.TemporaryDirectory() as folder, RankPool(args.ranks) as pool:
        weights_file = str(Path(folder, "weights.pt"))
        torch.save(weights._asdict(), weights_file)
        good = run_steps(pool, args.steps, weights_file, reference)
    limits = ", ".join(f"{kind} {tolerance:.5f}" for kind, tolerance in TOLERANCE.items())
    print(f"{'all' if good else 'NOT all'} tokens within tolerance (relative error, {limits})")
    return 0 if good else 1
