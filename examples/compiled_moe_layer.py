"""An MoE layer that torch.compile takes in one piece: router, dispatch, experts, combine.

`python examples/compiled_moe_layer.py` compiles two such layers on two rank processes and compares
them with the same layers uncompiled, for growing and shrinking batches. The first call of each rank
compiles, which takes a C++ compiler and half a minute; `--backend aot_eager` needs neither.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deep_ll
from deep_ll import ops
from deep_ll.testing import RankPool

HIDDEN, INTERMEDIATE, NUM_EXPERTS, TOP_K, MAX_TOKENS = 256, 64, 8, 2, 16
BATCHES = (5, 16, 3, 9)
# Compiled code keeps float32 where the layer rounds to bfloat16; a step is 2**-8 of a value.
TOLERANCE = 8 * 2.0**-8


class CompiledMoE(nn.Module):
    """Router and this rank's share of the experts, all of it traceable.

    Experts run over all rows of the buffer's shape, as batched matrix products: sizes of a graph
    do not depend on what arrives. Rows beyond an expert's count hold anything and are not sent.
    """

    gate_up: Tensor
    down: Tensor

    def __init__(self, buffer: deep_ll.Buffer, seed: int) -> None:
        super().__init__()
        self.exchange = buffer
        gen = torch.Generator().manual_seed(seed)  # the same experts on all ranks; each keeps some
        num_local = NUM_EXPERTS // buffer.group_size
        mine = slice(buffer.rank * num_local, (buffer.rank + 1) * num_local)
        shapes = {
            "router": (HIDDEN, NUM_EXPERTS),
            "gate_up": (NUM_EXPERTS, HIDDEN, 2 * INTERMEDIATE),
            "down": (NUM_EXPERTS, INTERMEDIATE, HIDDEN),
        }
        for name, shape in shapes.items():
            weights = torch.randn(shape, generator=gen) * shape[-2] ** -0.5
            share = weights if name == "router" else weights[mine].bfloat16()
            self.register_buffer(name, share)

    def forward(self, x: Tensor) -> Tensor:
        """bfloat16 [num_tokens, hidden] to the same shape. Collective."""
        weights, experts = (x.float() @ self.router).softmax(dim=-1).topk(TOP_K)
        (values, scales), _, ticket = ops.dispatch(
            self.exchange, x, experts, MAX_TOKENS, NUM_EXPERTS
        )
        groups = values.float().unflatten(-1, (scales.shape[-1], -1))
        rows = (groups * scales.unsqueeze(-1)).flatten(-2).bfloat16()
        gate, up = torch.bmm(rows, self.gate_up).chunk(2, dim=-1)
        outputs = torch.bmm(F.silu(gate) * up, self.down)
        return x + ops.combine(self.exchange, outputs, experts, weights, ticket)


@torch.no_grad()
def compare(group: Any, backend: str) -> list[tuple[int, float, float]]:
    """For each batch: tokens, seconds of the compiled call, its largest relative error."""
    # One compiler a rank: they share the cores.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    sizes = {"max_tokens_per_rank": MAX_TOKENS, "hidden": HIDDEN, "num_experts": NUM_EXPERTS}
    with deep_ll.Buffer(group, **sizes, max_topk=TOP_K, row_major_scales=True) as buffer:
        model = nn.Sequential(CompiledMoE(buffer, seed=1), CompiledMoE(buffer, seed=2))
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
        results = []
        for step, num_tokens in enumerate(BATCHES):
            torch.manual_seed(10 * step + buffer.rank)
            x = torch.randn(num_tokens, HIDDEN).bfloat16()
            start = time.perf_counter()
            out = compiled(x)
            seconds = time.perf_counter() - start
            expected = model(x).float()
            error = (out - expected).norm(dim=-1) / expected.norm(dim=-1)
            results.append((num_tokens, seconds, float(error.max())))
    return results


def main() -> int:
    """Prints a line a batch; 1 if a token is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    args = parser.parse_args()
    with RankPool(args.ranks) as pool:
        ranks = pool.run(compare, args.backend, timeout_s=600)
    worst = 0.0
    for step in zip(*ranks, strict=True):
        worst = max(worst, *(error for _, _, error in step))
        seconds = max(seconds for _, seconds, _ in step)
        error = max(error for _, _, error in step)
        print(f"{step[0][0]:3} tokens  {1e3 * seconds:10.2f} ms  largest error {error:.4f}")
    print("as uncompiled" if worst < TOLERANCE else f"WRONG: more than {TOLERANCE:.4f}")
    return 0 if worst < TOLERANCE else 1


if __name__ == "__main__":
    raise SystemExit(main())
