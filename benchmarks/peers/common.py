"""Dispatch and combine as torch users write them: permute, all-to-all, permute back.

One message per choice, as DeepEP's low-latency mode sends it; only the all-to-all differs between
the peers. Written with the fastest torch operations for each step: index_select and index_copy_ on
int64 views (bytes are 10 times slower), embedding_bag for the weighted sum (index_add_ is 20 times
slower).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.oracle import difference, expected_combined, expected_received
from benchmarks.rank_side import Clock
from benchmarks.workload import Job, Shape, dequantized, expert_gains, expert_output
from deep_ll.reference import FP8_MAX, GROUP, MIN_AMAX

WORD = 8  # bytes of an int64
HEADER = 16  # bytes before the payload, as in DeepEP; holds the token's index
MAX_DIFFERENCE = 1e-5  # embedding_bag takes bfloat16 weights, so the last bits differ


class Messages(NamedTuple):
    """Byte offsets in a message: header, scales, row."""

    scales: int
    row: int
    size: int

    @staticmethod
    def of(shape: Shape) -> Messages:
        row = HEADER + -(-4 * shape.num_scales // WORD) * WORD
        return Messages(HEADER, row, row + shape.row_bytes)


class Routed(NamedTuple):
    """What combine must know of the dispatch before it."""

    order: Tensor  # choices in the order they were sent
    slots: Tensor  # the row in `packed` of each message received
    num_sent: list[int]  # per rank
    num_received: list[int]
    counts: Tensor  # per local expert


def words(num_rows: int, row_bytes: int) -> Tensor:
    return torch.empty(num_rows, row_bytes // WORD, dtype=torch.int64)


def cast_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Per 128 channels; a tensor as the dividend, since number / tensor rounds twice."""
    groups = x.float().view(x.shape[0], -1, GROUP)
    amax = groups.abs().amax(-1, keepdim=True).clamp_(min=MIN_AMAX)
    scaled = groups.mul_(torch.full_like(amax, FP8_MAX).div_(amax))
    return scaled.to(torch.float8_e4m3fn).view(x.shape), amax.div_(FP8_MAX).squeeze(-1)


class AllToAllPeer:
    """One rank. Subclasses bring the all-to-all."""

    def __init__(self, group: dist.ProcessGroup, job: Job) -> None:
        shape, rank = job.shape, group.rank()
        self.group, self.job, self.shape, self.rank = group, job, shape, rank
        self.x, self.topk_idx = job.inputs.x.tensor[rank], job.inputs.topk_idx.tensor[rank]
        self.weights = job.inputs.topk_weights.tensor[rank].bfloat16().flatten()
        self.messages = Messages.of(shape)
        self._allocate()
        self.routed: Routed | None = None
        self.out: Tensor | None = None

    def _allocate(self) -> None:
        shape, size, row_bytes = self.shape, self.messages.size, 2 * self.shape.hidden
        self.rows_per_expert = shape.ep * shape.tokens
        num_rows = shape.local_experts * self.rows_per_expert
        num_sent = shape.tokens * shape.topk
        # Memory that nothing arrives in is never touched.
        max_received = self.rows_per_expert * min(shape.topk, shape.local_experts)
        self.outgoing, self.incoming = words(num_sent, size), words(max_received, size)
        self.answers, self.answered = words(max_received, row_bytes), words(num_sent, row_bytes)
        self.packed = words(num_rows, shape.row_bytes)
        self.packed_scales = words(num_rows, self.messages.row - HEADER)
        self.packed_sources = torch.empty(num_rows, dtype=torch.int32)
        self.y = torch.empty(num_rows, shape.hidden, dtype=torch.bfloat16)
        self.message_of_token = torch.zeros(shape.tokens, size, dtype=torch.uint8)
        self.message_of_token[:, :4].view(torch.int32)[:, 0] = torch.arange(shape.tokens)
        self.expert_of_block = torch.arange(shape.local_experts).repeat(shape.ep)
        self.first_choices = torch.arange(0, num_sent, shape.topk)

    def all_to_all(
        self, target: Tensor, source: Tensor, received: list[int], sent: list[int]
    ) -> None:
        """Exchanges rows; `received` and `sent` are numbers of rows per rank."""
        raise NotImplementedError

    def dispatch(self) -> None:
        shape = self.shape
        choices = self.topk_idx.flatten()
        order = choices.argsort(stable=True)
        sent_counts = torch.bincount(choices, minlength=shape.experts).view(shape.ep, -1)
        counts = torch.empty_like(sent_counts)
        one_each = [1] * shape.ep
        self.all_to_all(counts, sent_counts, one_each, one_each)
        num_sent, num_received = sent_counts.sum(1).tolist(), counts.sum(1).tolist()
        self._write_messages()
        torch.index_select(self._message_words(), 0, order // shape.topk, out=self.outgoing)
        incoming = self.incoming[: sum(num_received)]
        self.all_to_all(incoming, self.outgoing, num_received, num_sent)
        slots = self._slots(counts, incoming.shape[0])
        self._unpack(incoming, slots)
        self.routed = Routed(order, slots, num_sent, num_received, counts.sum(0))

    def combine(self) -> None:
        assert self.routed is not None
        order, slots, num_sent, num_received, _ = self.routed
        answers = self.answers[: slots.shape[0]]
        torch.index_select(self.y.view(torch.int64), 0, slots, out=answers)
        self.all_to_all(self.answered, answers, num_sent, num_received)
        place = torch.empty_like(order)
        place[order] = torch.arange(order.shape[0])
        self.out = torch.nn.functional.embedding_bag(
            place,
            self.answered.view(torch.bfloat16),
            self.first_choices,
            mode="sum",
            per_sample_weights=self.weights,
        )

    def pair(self) -> None:
        self.dispatch()
        self.combine()

    def check(self) -> None:
        self.dispatch()
        self._check_dispatch()
        self.combine()
        assert self.out is not None
        found = difference(self.out, expected_combined(self.job, self.rank))
        if not found < MAX_DIFFERENCE:
            raise AssertionError(f"combine differs from the oracle by {found:g}")

    def iterate(self, clock: Clock) -> None:
        clock.timed("dispatch", self.dispatch)
        clock.timed("combine", self.combine)
        clock.timed("pair", self.pair)

    def close(self) -> None:
        """Nothing is held but memory."""

    def _message_words(self) -> Tensor:
        return self.message_of_token.view(torch.int64)

    def _write_messages(self) -> None:
        if not self.shape.use_fp8:
            self._message_words()[:, HEADER // WORD :].copy_(self.x.view(torch.int64))
            return
        rows, scales = cast_fp8(self.x)
        first, end = HEADER, HEADER + 4 * self.shape.num_scales
        self.message_of_token[:, first:end].view(torch.float32).copy_(scales)
        self.message_of_token[:, self.messages.row :].copy_(rows.view(torch.uint8))

    def _slots(self, counts: Tensor, num_received: int) -> Tensor:
        """Messages arrive by (source, expert, token); an expert's rows are by (source, token)."""
        blocks = counts.flatten()
        before = (counts.cumsum(0) - counts).flatten()
        begin = self.expert_of_block * self.rows_per_expert + before
        arrived = blocks.cumsum(0) - blocks
        shift = torch.repeat_interleave(begin - arrived, blocks, output_size=num_received)
        return shift + torch.arange(num_received)

    def _unpack(self, incoming: Tensor, slots: Tensor) -> None:
        row = self.messages.row // WORD
        self.packed.index_copy_(0, slots, incoming[:, row:])
        if self.shape.use_fp8:
            self.packed_scales.index_copy_(0, slots, incoming[:, HEADER // WORD : row])
        sources = incoming[:, :1].view(torch.int32)[:, 0]
        self.packed_sources.index_copy_(0, slots, sources)

    def _check_dispatch(self) -> None:
        assert self.routed is not None
        gains = expert_gains(self.shape)
        for local, want in enumerate(expected_received(self.job, self.rank)):
            count, first = int(self.routed.counts[local]), local * self.rows_per_expert
            rows = self.packed[first : first + count].view(want.rows.dtype)
            scales = self.packed_scales[first : first + count].view(torch.float32)
            scales = scales[:, : self.shape.num_scales]
            same = count == want.src_info.numel()
            same = same and torch.equal(rows.view(torch.uint8), want.rows.view(torch.uint8))
            same = same and (want.scales is None or torch.equal(scales, want.scales))
            same = same and torch.equal(self.packed_sources[first : first + count], want.src_info)
            if not same:
                raise AssertionError(f"local expert {local} received something else")
            gain = gains[self.rank * self.shape.local_experts + local]
            inputs = dequantized(rows, scales if self.shape.use_fp8 else None)
            self.y[first : first + count] = expert_output(inputs, gain)
