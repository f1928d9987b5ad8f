"""An expert-parallel MoE block in the manner of a serving engine, over dispatch and combine.

As a program it decodes on several rank processes and checks every token: see moe_decode.py.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deep_ll


class Weights(NamedTuple):
    """All experts of a block; the experts' tensors are used as bfloat16, the router's as it is."""

    gate: Tensor  # [num_experts, hidden]
    gate_proj: Tensor  # [num_experts, intermediate, hidden]
    up_proj: Tensor  # [num_experts, intermediate, hidden]
    down_proj: Tensor  # [num_experts, hidden, intermediate]


def qwen3_weights(block: nn.Module) -> Weights:
    """The weights of transformers' Qwen3MoeSparseMoeBlock, which keeps gate and up in one tensor.

    Raises:
        ValueError: the experts use something other than SwiGLU.
    """
    router: Any = block.gate
    experts: Any = block.experts
    if type(experts.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        raise ValueError(f"the experts use {experts.act_fn}: only silu is supported")
    gate_proj, up_proj = experts.gate_up_proj.detach().chunk(2, dim=1)
    return Weights(router.weight.detach(), gate_proj, up_proj, experts.down_proj.detach())


class ExpertParallelMoE(nn.Module):
    """Router and this rank's share of the experts; the others are reached through the buffer.

    Args:
        buffer: of all ranks that share the experts.
        weights: of all experts; only this rank's share is copied and kept.
        top_k: experts a token chooses.
        max_tokens: of one rank in one step; the same on all ranks.
        norm_topk_prob: scale the weights of a token's choices to the sum 1.
        use_fp8: send tokens as e4m3 instead of bfloat16; the same on all ranks.
        zero_copy: experts write where peers read; the same on all ranks.
    """

    gate_proj: Tensor
    up_proj: Tensor
    down_proj: Tensor

    def __init__(
        self,
        buffer: deep_ll.Buffer,
        weights: Weights,
        top_k: int,
        max_tokens: int,
        *,
        norm_topk_prob: bool = True,
        use_fp8: bool = True,
        zero_copy: bool = False,
    ) -> None:
        super().__init__()
        self.buffer, self.top_k, self.max_tokens = buffer, top_k, max_tokens
        self.norm_topk_prob, self.use_fp8, self.zero_copy = norm_topk_prob, use_fp8, zero_copy
        self.num_experts, self.hidden = weights.gate.shape
        num_local = self.num_experts // buffer.group_size
        mine = slice(buffer.rank * num_local, (buffer.rank + 1) * num_local)
        self.gate = nn.Parameter(weights.gate.clone(), requires_grad=False)
        for name in ("gate_proj", "up_proj", "down_proj"):
            share = getattr(weights, name)[mine].to(torch.bfloat16, copy=True)
            self.register_parameter(name, nn.Parameter(share, requires_grad=False))

    @classmethod
    def from_qwen3_moe(
        cls,
        block: nn.Module,
        buffer: deep_ll.Buffer,
        max_tokens: int,
        *,
        use_fp8: bool = True,
        zero_copy: bool = False,
    ) -> ExpertParallelMoE:
        """This rank's part of transformers' Qwen3MoeSparseMoeBlock."""
        router: Any = block.gate
        return cls(
            buffer,
            qwen3_weights(block),
            router.top_k,
            max_tokens,
            norm_topk_prob=router.norm_topk_prob,
            use_fp8=use_fp8,
            zero_copy=zero_copy,
        )

    @torch.no_grad()
    def forward(self, hidden_states: Tensor) -> Tensor:
        """One step: bfloat16 [..., hidden] to the same shape. Collective, also without tokens."""
        x = hidden_states.reshape(-1, self.hidden).contiguous()
        topk_idx, topk_weights = self.route(x)
        recv_x, recv_count, handle, _, _ = self.buffer.low_latency_dispatch(
            x, topk_idx, self.max_tokens, self.num_experts, use_fp8=self.use_fp8
        )
        if self.zero_copy:
            outputs = self.buffer.get_next_low_latency_combine_buffer(handle)
        else:
            outputs = torch.empty((*handle.src_info.shape, self.hidden), dtype=torch.bfloat16)
        for local, count in enumerate(recv_count.tolist()):
            if count > 0:
                self.run_expert(local, received(recv_x, local, count), outputs[local, :count])
        combined, _, _ = self.buffer.low_latency_combine(
            outputs, topk_idx, topk_weights, handle, zero_copy=self.zero_copy
        )
        return combined.view_as(hidden_states)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's experts and their weights in float32; both [num_tokens, top_k]."""
        logits = F.linear(x.to(self.gate.dtype), self.gate)
        weights, experts = logits.softmax(dim=-1, dtype=torch.float32).topk(self.top_k, dim=-1)
        if self.norm_topk_prob:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return experts, weights

    def run_expert(self, local: int, rows: Tensor, out: Tensor) -> None:
        """SwiGLU of one local expert over all rows it received, written straight into `out`."""
        gated = F.silu(F.linear(rows, self.gate_proj[local])) * F.linear(rows, self.up_proj[local])
        torch.mm(gated, self.down_proj[local].t(), out=out)


def received(recv_x: Tensor | tuple[Tensor, Tensor], local: int, count: int) -> Tensor:
    """The rows of one local expert as bfloat16 [count, hidden]."""
    if isinstance(recv_x, Tensor):
        return recv_x[local, :count]
    values, scales = (part[local, :count] for part in recv_x)
    groups = values.float().view(count, scales.shape[-1], -1)  # of 128 channels, with one scale
    return (groups * scales.unsqueeze(-1)).view(count, -1).bfloat16()


if __name__ == "__main__":
    from moe_decode import main

    sys.exit(main())
