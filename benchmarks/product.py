"""deep_ll as a contestant, through its public API."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import deep_ll
from benchmarks.hooks import HookRuns, HookTimer
from benchmarks.oracle import expected_combined, expected_received
from benchmarks.rank_side import Clock
from benchmarks.workload import Job, dequantized, expert_gains, expert_output
from deep_ll.testing.compare import assert_received, assert_same_bits


@dataclass(frozen=True)
class Description:
    """How one rank reaches the others, and what it sends them."""

    paths: list[tuple[int, str, str]]  # peer, kind, reason
    p2p_bytes: dict[str, int]  # by operation; sent as the benchmark counts bytes
    link_bytes: dict[str, int]  # as the link counted them
    transport: str


class DeepLL:
    """One rank with a Buffer."""

    def __init__(self, group: dist.ProcessGroup, job: Job) -> None:
        shape, inputs, rank = job.shape, job.inputs, group.rank()
        self.group, self.job, self.rank = group, job, rank
        # Read when the buffer is made.
        os.environ["NVSHMEM_DISABLE_P2P"] = str(int(job.disable_p2p))
        os.environ["DEEP_LL_RANKS_PER_NODE"] = str(shape.ranks_per_node)
        self.x = inputs.x.tensor[rank]
        self.topk_idx = inputs.topk_idx.tensor[rank]
        self.topk_weights = inputs.topk_weights.tensor[rank]
        self.buffer = deep_ll.Buffer(
            group,
            max_tokens_per_rank=shape.tokens,
            hidden=shape.hidden,
            num_experts=shape.experts,
            max_topk=shape.topk,
            timeout_s=job.timeout_s,
            # As the floor and the peers leave them; columns are what grouped GEMMs on GPUs want.
            row_major_scales=job.shape.scales == "rows",
        )
        num_rows = shape.ep * shape.tokens
        # Only the rows that arrive are ever touched, so only they take memory.
        self.y = torch.empty(shape.local_experts, num_rows, shape.hidden, dtype=torch.bfloat16)
        self.out = torch.empty_like(self.x)
        self.counts: list[int] = []
        self.handle: Any = None
        self._hooks: HookTimer | None = None

    def check(self) -> None:
        recv_x, recv_count, handle = self.dispatch()
        assert_received(recv_x, recv_count, handle, expected_received(self.job, self.rank))
        self.counts = recv_count.tolist()
        self._run_experts(recv_x)
        self.combine()
        expected_out = expected_combined(self.job, self.rank)
        assert_same_bits(self.out, expected_out, "combine")
        self.out.zero_()
        self.combine_zero_copy(self.filled_combine_buffer())
        assert_same_bits(self.out, expected_out, "zero-copy combine")

    def iterate(self, clock: Clock) -> None:
        clock.timed("dispatch", self.dispatch)
        clock.timed("combine", self.combine)
        clock.align()
        view = self.filled_combine_buffer()
        clock.timed("combine_zero_copy", lambda: self.combine_zero_copy(view))
        clock.timed("pair", self.pair)

    def close(self) -> None:
        self.buffer.destroy()

    def dispatch(self) -> tuple[Any, Tensor, Any]:
        shape = self.job.shape
        recv_x, recv_count, self.handle, _, _ = self.buffer.low_latency_dispatch(
            self.x, self.topk_idx, shape.tokens, shape.experts, use_fp8=shape.use_fp8
        )
        return recv_x, recv_count, self.handle

    def combine(self) -> None:
        self.buffer.low_latency_combine(
            self.y, self.topk_idx, self.topk_weights, self.handle, out=self.out
        )

    def combine_zero_copy(self, view: Tensor) -> None:
        self.buffer.low_latency_combine(
            view, self.topk_idx, self.topk_weights, self.handle, zero_copy=True, out=self.out
        )

    def pair(self) -> None:
        self.dispatch()
        self.combine()

    def filled_combine_buffer(self) -> Tensor:
        """The experts' outputs where zero-copy combine wants them; writing them is not timed."""
        view = self.buffer.get_next_low_latency_combine_buffer(self.handle)
        for local_expert, count in enumerate(self.counts):
            view[local_expert, :count].copy_(self.y[local_expert, :count])
        return view

    def describe(self) -> Description:
        """Sends a round to see what goes over the link."""
        paths = self.buffer.paths()
        owners = self.topk_idx // self.job.shape.local_experts
        mapped = torch.tensor([path.kind == "p2p" for path in paths])[owners].sum().item()
        answer = int(mapped) * 2 * self.job.shape.hidden
        p2p = {"dispatch": int(mapped) * self.job.shape.dispatched_bytes, "combine": answer}
        link = {"dispatch": self._link_bytes(self.dispatch)}
        link["combine"] = self._link_bytes(self.combine)
        for sent in (p2p, link):
            sent["pair"] = sent["dispatch"] + sent["combine"]
            sent["combine_zero_copy"] = sent["combine"]
        ucx = self.buffer._session.heap.link
        transport = "" if ucx is None else f"UCX {ucx.version}, tcp"
        return Description([tuple(path) for path in paths], p2p, link, transport)

    def run_hooks(self, clock: Clock, num_iters: int) -> HookRuns:
        """Send, compute, receive."""
        if self._hooks is None:
            # That only the link's part overlaps is what is measured here.
            warnings.filterwarnings("ignore", message=".*only what goes to other hosts overlaps")
            self._hooks = HookTimer(self.group, clock, self._dispatch_hook, self._combine_hook)
        return self._hooks.run(num_iters)

    def _link_bytes(self, work: Callable[[], object]) -> int:
        before = self._put_bytes()
        work()
        return self._put_bytes() - before

    def _put_bytes(self) -> int:
        link = self.buffer._session.heap.link
        if link is None:
            return 0
        peers = [path.peer for path in self.buffer.paths() if path.kind == "link"]
        return sum(link.stats(peer)["bytes_sent"] for peer in peers)

    def _dispatch_hook(self) -> Callable[[], None]:
        shape = self.job.shape
        _, _, self.handle, _, hook = self.buffer.low_latency_dispatch(
            self.x,
            self.topk_idx,
            shape.tokens,
            shape.experts,
            use_fp8=shape.use_fp8,
            return_recv_hook=True,
        )
        assert hook is not None
        return hook

    def _combine_hook(self) -> Callable[[], None]:
        _, _, hook = self.buffer.low_latency_combine(
            self.y,
            self.topk_idx,
            self.topk_weights,
            self.handle,
            out=self.out,
            return_recv_hook=True,
        )
        assert hook is not None
        return hook

    def _run_experts(self, recv_x: Tensor | tuple[Tensor, Tensor]) -> None:
        rows, scales = recv_x if isinstance(recv_x, tuple) else (recv_x, None)
        gains = expert_gains(self.job.shape)
        first = self.rank * self.job.shape.local_experts
        for local_expert, count in enumerate(self.counts):
            some_scales = None if scales is None else scales[local_expert, :count]
            inputs = dequantized(rows[local_expert, :count], some_scales)
            self.y[local_expert, :count] = expert_output(inputs, gains[first + local_expert])
