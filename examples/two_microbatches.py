"""Two micro-batches that take turns: while one's tokens travel, the other computes.

Each is a generator that yields where it would wait for the network, and the two are run in turns,
so that hooks are called one turn after what they receive was sent. As a program it runs on rank
processes and compares with the same layers over the whole batch, bit for bit.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import deep_ll
from deep_ll.testing import RankPool

HIDDEN, EXPERTS_PER_RANK, TOP_K, MAX_TOKENS = 256, 4, 2, 16
NUM_LAYERS = 3


class Block(NamedTuple):
    """The weights of a layer, float32: something dense in the place of attention, then experts."""

    dense: Tensor  # [hidden, hidden]
    gate: Tensor  # [num_experts, hidden]
    experts: Tensor  # [E_local, hidden, hidden]: this rank's

    @classmethod
    def make(cls, layer_idx: int, rank: int, num_ranks: int) -> Block:
        """Random weights; all ranks agree on what they share."""
        num_experts = EXPERTS_PER_RANK * num_ranks
        shared = torch.Generator().manual_seed(layer_idx)
        own = torch.Generator().manual_seed(1000 * layer_idx + rank + 1)
        shapes = [(HIDDEN, HIDDEN), (num_experts, HIDDEN), (EXPERTS_PER_RANK, HIDDEN, HIDDEN)]
        weights = [
            torch.randn(shape, generator=generator) * HIDDEN**-0.5
            for shape, generator in zip(shapes, (shared, shared, own), strict=True)
        ]
        return cls(*weights)


def microbatch(buffer: deep_ll.Buffer, blocks: list[Block], x: Tensor) -> Iterator[None]:
    """All layers over one micro-batch, in place. Yields twice a layer; the other may run then."""
    num_experts = blocks[0].gate.shape[0]
    for block in blocks:
        h = row_by_row(x, block.dense)
        weights, experts = row_by_row(h, block.gate).float().softmax(dim=-1).topk(TOP_K, dim=-1)
        rows, counts, handle, _, receive = buffer.low_latency_dispatch(
            h, experts, MAX_TOKENS, num_experts, use_fp8=False, return_recv_hook=True
        )
        yield
        assert receive is not None
        assert isinstance(rows, Tensor)
        receive()
        outputs = torch.empty_like(rows)
        for local, count in enumerate(counts.tolist()):
            outputs[local, :count] = F.silu(row_by_row(rows[local, :count], block.experts[local]))
        combined, _, receive = buffer.low_latency_combine(
            outputs, experts, weights, handle, return_recv_hook=True
        )
        yield
        assert receive is not None
        receive()
        x += combined


def row_by_row(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T, each row by itself: its bits do not depend on how a batch was cut."""
    if len(x) == 0:
        return x.new_empty(0, len(weight))
    return torch.stack([weight @ row for row in x.float()]).bfloat16()


def take_turns(batches: list[Iterator[None]]) -> None:
    """Runs each until it waits, then the next one, until all are through."""
    done = object()
    while batches:
        batches = [batch for batch in batches if next(batch, done) is not done]


def run(group: Any, xs: list[Tensor], together: bool) -> tuple[Tensor, float]:
    """All layers on one rank, over two halves in turns or over all at once; with milliseconds."""
    # On one host hooks have nothing to overlap with; the warning says so.
    warnings.filterwarnings("ignore", "return_recv_hook=True")
    rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
    blocks = [Block.make(layer_idx, rank, num_ranks) for layer_idx in range(NUM_LAYERS)]
    x = xs[rank].clone()
    sizes = {"max_tokens_per_rank": MAX_TOKENS, "hidden": HIDDEN, "max_topk": TOP_K}
    with deep_ll.Buffer(group, num_experts=EXPERTS_PER_RANK * num_ranks, **sizes) as buffer:
        dist.barrier(group)
        start = time.perf_counter()
        parts = [x] if together else list(x.tensor_split(2))
        take_turns([microbatch(buffer, blocks, part) for part in parts])
        return x, (time.perf_counter() - start) * 1e3


@torch.no_grad()
def main() -> int:
    """Returns 0 if the results are the same bits, else 1."""
    parser = argparse.ArgumentParser(description="Two micro-batches overlap by hooks")
    parser.add_argument("--ranks", type=int, default=4, help="rank processes")
    args = parser.parse_args()
    torch.manual_seed(0)
    # Also one token, which leaves a micro-batch empty, and none.
    counts = [(MAX_TOKENS, 7, 1, 0)[rank % 4] for rank in range(args.ranks)]
    xs = [torch.randn(count, HIDDEN).bfloat16() for count in counts]
    print(f"{args.ranks} ranks, tokens {counts}, {NUM_LAYERS} layers")
    results = {}
    with RankPool(args.ranks) as pool:
        for name, together in (("whole batch", True), ("two micro-batches", False)):
            ranks = pool.run(run, xs, together)
            results[name] = torch.cat([x for x, _ in ranks])
            print(f"{name}: {max(ms for _, ms in ranks):.1f} ms")
    whole, halves = results.values()
    same = torch.equal(whole, halves) and not torch.equal(whole, torch.cat(xs))
    print(f"the results are {'the same bits' if same else 'NOT the same'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
