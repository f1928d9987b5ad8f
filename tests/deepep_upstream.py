"""What DeepEP's own test of its low-latency mode checks, for the ranks of test_deepep_upstream.py.

The letters are those of the list in test_deepep_upstream.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from cases import CASTS
from deepep_ranks import deep_ep_installed
from torch import Tensor

RANK_OFFSET = 128  # the pattern's value of rank r is r - 128: exact in bfloat16
TAIL = 128  # channels that hold the token's number
LOW_HALF = (1 << 32) - 1
NUM_HOLES = 10  # choices that become -1
ROUNDED_TAIL = 7e-3  # how far the tail may be off when scales are powers of two
COMBINED = {False: 1e-5, True: 9e-4}  # how far a combined BF16 or FP8 row may be off


@dataclass(frozen=True)
class Setup:
    """One run of the upstream test, smaller."""

    world: int
    experts: int
    tokens: int = 32
    hidden: int = 512
    topk: int = 4
    use_logfmt: bool = False
    disable_nvlink: bool = False  # all goes over the network

    def __str__(self) -> str:
        flags = [name for name in ("use_logfmt", "disable_nvlink") if getattr(self, name)]
        shape = f"{self.world}ranks,{self.experts}experts,{self.tokens}x{self.hidden}"
        return ",".join([shape, *flags])


class Inputs(NamedTuple):
    """What one rank sends, by seed; and the choices of all."""

    xs: list[Tensor]  # the first one is the pattern
    topk_idx: Tensor
    topk_weights: Tensor
    all_topk_idx: Tensor


class Way(NamedTuple):
    """How the calls are made."""

    cast: str
    hook: bool


WAYS = [Way(*way) for way in product(CASTS, (False, True))]


def make_inputs(deep_ep: ModuleType, group: Any, setup: Setup, seed: int) -> Inputs:
    """All ranks send the same number of tokens."""
    rank = group.rank()
    gen = torch.Generator().manual_seed(1000 * seed + rank)
    holes = random.Random(1000 * seed + rank)
    shape = (setup.tokens, setup.hidden)
    pattern = torch.full(shape, float(rank - RANK_OFFSET), dtype=torch.bfloat16)
    pattern[:, -TAIL:] = torch.arange(setup.tokens).bfloat16()[:, None]
    scales = [0.5 * holes.random() for _ in range(4)] if setup.use_logfmt else []
    randoms = [(torch.randn(shape, generator=gen) * scale).bfloat16() for scale in (*scales, 0.1)]
    scores = torch.rand(setup.tokens, setup.experts, generator=gen)
    topk_idx = scores.topk(setup.topk, dim=-1)[1].to(deep_ep.topk_idx_t)
    weights = torch.randn(setup.tokens, setup.topk, generator=gen).abs()
    for _ in range(NUM_HOLES):
        topk_idx[holes.randrange(setup.tokens), holes.randrange(setup.topk)] = -1
    gathered = [torch.empty_like(topk_idx) for _ in range(setup.world)]
    dist.all_gather(gathered, topk_idx, group=group)
    return Inputs([pattern, *randoms], topk_idx, weights, torch.stack(gathered))


def open_buffer(deep_ep: ModuleType, group: Any, setup: Setup, **options: Any) -> Any:
    num_bytes = deep_ep.Buffer.get_low_latency_rdma_size_hint(
        setup.tokens, setup.hidden, setup.world, setup.experts
    )
    return deep_ep.Buffer(
        group,
        num_rdma_bytes=num_bytes,
        low_latency_mode=True,
        num_qps_per_rank=setup.experts // setup.world,
        explicitly_destroy=True,
        **options,
    )


class Exchange:
    """One x in one way: dispatched, checked, combined, checked, hashed."""

    def __init__(self, deep_ep: ModuleType, buffer: Any, setup: Setup, inputs: Inputs) -> None:
        self.utils, self.buffer, self.setup, self.inputs = deep_ep.utils, buffer, setup, inputs
        self.masked = torch.zeros(setup.world, dtype=torch.bool)
        self._num_times = 0

    def run(self, x: Tensor, way: Way) -> int:
        """All of it; the hash of what came."""
        if self.fails("dispatch"):
            return 0
        rows, scales, counts, handle = self.dispatch(x, way)
        self.check_mask()
        simulated = self.dequantize(rows, scales)
        value = 0
        for local in range(len(counts)):
            self.check_received(x, way, local, (simulated[local], counts, handle))
            valid = int(counts[local])
            for received in (rows, scales):
                value ^= 0 if received is None else self.hash(received[local, :valid])
        if self.fails("combine"):
            return 0
        for zero_copy in (False,) if self.setup.use_logfmt else (False, True):
            combined = self.combine(simulated, handle, way, zero_copy)
            self.check_mask()
            self.check_combined(x, way, combined)
            value ^= self.hash(combined)
        return value

    def fails(self, _call: str) -> bool:
        """Whether this rank is gone from this call on."""
        return False

    def check_mask(self) -> None:
        """Nobody is ever masked."""

    def dispatch(self, x: Tensor, way: Way) -> tuple[Tensor, Tensor | None, Tensor, Any]:
        """Once or twice, so that both halves of the memory are met; with statistics."""
        self._num_times += 1
        num_local = self.setup.experts // self.setup.world
        for _ in range(self._num_times % 2 + 1):
            stats = torch.zeros(num_local, dtype=torch.int32)
            recv_x, counts, handle, event, hook = self.buffer.low_latency_dispatch(
                x,
                self.inputs.topk_idx,
                self.setup.tokens,
                self.setup.experts,
                cumulative_local_expert_recv_stats=stats,
                async_finish=not way.hook,
                return_recv_hook=way.hook,
                **CASTS[way.cast],
            )
            hook() if way.hook else event.current_stream_wait()
        assert torch.equal(stats, counts)  # (a)
        if isinstance(recv_x, Tensor):
            return recv_x, None, counts, handle
        return recv_x[0], recv_x[1].contiguous(), counts, handle

    def dequantize(self, rows: Tensor, scales: Tensor | None) -> Tensor:
        if scales is None:
            return rows.clone()
        flat = rows.view(-1, self.setup.hidden)
        # As upstream: the scales of ue8m0 are fewer words, and the shape is not theirs.
        per_row = scales.view(len(flat), -1)
        return self.utils.per_token_cast_back(flat, per_row).view(rows.shape)

    def hash(self, rows: Tensor) -> int:
        return int(self.utils.hash_tensor(rows))

    def check_received(self, x: Tensor, way: Way, local: int, received: Any) -> None:
        all_rows, counts, (src_info, layout_range, *_) = received
        rank, count = self.buffer.rank, int(counts[local])
        expert = rank * len(counts) + local
        chosen = (self.inputs.all_topk_idx == expert).sum(dim=(1, 2))
        per_source = layout_range[local] & LOW_HALF
        assert count == int(per_source.sum()) == int(chosen[~self.masked].sum())  # (a)
        if x is not self.inputs.xs[0] or count == 0:
            return
        rows, tokens = all_rows[:count].float(), src_info[local, :count]
        head, tail = rows[:, :-TAIL], rows[:, -TAIL:]
        assert torch.equal(head.amin(dim=1), head.amax(dim=1))  # (b)
        if way.cast in ("rounded", "ue8m0"):
            assert self.utils.calc_diff(rows[:, -1], tokens) < ROUNDED_TAIL  # (c)
            return
        assert torch.equal(tail, tokens[:, None].float().expand_as(tail))  # (c)
        for source in range(self.setup.world):  # (d)
            value = source - RANK_OFFSET
            expected = 0 if self.masked[source] else int(chosen[source])
            assert int((head[:, 0] == value).sum()) == expected
            begin = int(layout_range[local, source] >> 32)
            assert (head[begin : begin + int(per_source[source])] == value).all()

    def combine(self, simulated: Tensor, handle: Any, way: Way, zero_copy: bool) -> Tensor:
        if zero_copy:
            self.buffer.get_next_low_latency_combine_buffer(handle)[:, :, :] = simulated
        out = torch.full_like(self.inputs.xs[0], torch.nan)
        combined, event, hook = self.buffer.low_latency_combine(
            simulated,
            self.inputs.topk_idx,
            self.inputs.topk_weights,
            handle,
            use_logfmt=self.setup.use_logfmt,
            async_finish=not way.hook,
            zero_copy=zero_copy,
            return_recv_hook=way.hook,
            out=out,
        )
        hook() if way.hook else event.current_stream_wait()
        assert combined is out
        return out

    def check_combined(self, x: Tensor, way: Way, combined: Tensor) -> None:
        weights = self.inputs.topk_weights.masked_fill(self.inputs.topk_idx == -1, 0).sum(dim=1)
        assert not combined.isnan().any()  # (e)
        difference = self.utils.calc_diff(x.float() * weights[:, None], combined)
        if way.cast in ("bf16", "fp8"):
            assert difference < COMBINED[way.cast == "fp8"], difference


class Shrinking(Exchange):
    """The same while ranks fail: they make no calls any more, and the others go on without them."""

    FAILING: ClassVar = {"dispatch": 1, "combine": 3, "clean": 5}

    def __init__(self, group: Any, *args: Any) -> None:
        super().__init__(*args)
        self._group, self._gone, self._met = group, set[int](), list[str]()

    def run(self, x: Tensor, way: Way) -> int:
        value = super().run(x, way)
        if not self.fails("clean"):
            setup = self.setup
            self.buffer.clean_low_latency_buffer(setup.tokens, setup.hidden, setup.experts)
            self.check_mask()
        return value

    def fails(self, call: str) -> bool:
        if call not in self._met and self.buffer.rank not in self._gone:
            # All are there when one fails, so that a slow machine does not look like another.
            dist.barrier(self._group)
            self._met.append(call)
            self._gone.add(self.FAILING[call])
        return self.buffer.rank in self._gone

    def end(self) -> None:
        """Who failed meets the others where they do, and at last all."""
        for _ in range(len(self.FAILING) - len(self._met) + 1):
            dist.barrier(self._group)

    def check_mask(self) -> None:
        status = torch.full((self.setup.world,), -1, dtype=torch.int32)
        self.buffer.low_latency_query_mask_buffer(status)
        self.masked = status == 1
        assert status.tolist() == [int(rank in self._gone) for rank in range(self.setup.world)]
        num_local = self.setup.experts // self.setup.world
        topk_idx = self.inputs.topk_idx
        owners = topk_idx.div(num_local, rounding_mode="floor")
        topk_idx[torch.isin(owners, torch.tensor(sorted(self._gone)))] = -1


def check_all(group: Any, setup: Setup, seed: int) -> None:
    """Every x in every way."""
    with deep_ep_installed() as deep_ep:
        nvlink = {"allow_nvlink_for_low_latency_mode": not setup.disable_nvlink}
        buffer = open_buffer(deep_ep, group, setup, **nvlink)
        kinds = {path.kind for path in buffer.paths()}
        assert kinds == {"self", "link" if setup.disable_nvlink else "p2p"}
        inputs = make_inputs(deep_ep, group, setup, seed)
        exchange = Exchange(deep_ep, buffer, setup, inputs)
        for x in inputs.xs:
            for way in WAYS:
                exchange.run(x, way)
        buffer.destroy()


def pressure(group: Any, setup: Setup, seed: int, num_repeats: int) -> list[int]:
    """The hashes of a seed's run and of its repeats."""
    hashes = []
    with deep_ep_installed() as deep_ep:
        buffer = open_buffer(deep_ep, group, setup)
        inputs = make_inputs(deep_ep, group, setup, seed)
        for _ in range(1 + num_repeats):
            exchange = Exchange(deep_ep, buffer, setup, inputs)
            value = 0
            for number, way in enumerate(WAYS):
                value ^= exchange.run(inputs.xs[-1], way) << number
            hashes.append(value)
        buffer.destroy()
    return hashes


def shrink(group: Any, setup: Setup, timeout_s: float) -> None:
    """Three ranks fail, one in each call."""
    with deep_ep_installed(timeout_s) as deep_ep:
        buffer = open_buffer(deep_ep, group, setup, enable_shrink=True)
        inputs = make_inputs(deep_ep, group, setup, seed=1)
        exchange = Shrinking(group, deep_ep, buffer, setup, inputs)
        for way in WAYS:
            exchange.run(inputs.xs[0], way)
        exchange.end()
        buffer.destroy()
