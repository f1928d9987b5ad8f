"""What test_gpu_session_network.py runs: buffers on a GPU with peers behind a network. The twin
stores where the network would put, so this is of what the host does: parameters, memory, order.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from cases import Case, make_inputs
from exchange import exchange, round_trip
from fake_cuda.driver import Launch

import deep_ll
from deep_ll import _native, gpu_open
from deep_ll.runtime.cuda import loopback, network
from deep_ll.runtime.cuda.heap import GpuHeap
from twin import world
from twin.cases import make_buffer, on_ranks
from twin.graph_work import error_of

DEPTH = 64
FAR = "another host"


def open_heap(group: Any, num_bytes: int, device: Any, depth: int) -> GpuHeap:
    """As `nvshmem.Library.open_heap` makes it where all peers are on other hosts."""
    window = _native.Window.carve(num_bytes, group.size)
    whole = window.outputs(1) + window.combine.slot_bytes
    heap = loopback.open_heap(group, whole, device)
    linked = [peer != group.rank for peer in range(group.size)]
    (image,) = network.built().values()
    queues = [1] * network.NUM_QUEUES
    net = network.network(device, image, queues, linked, window, depth)
    reasons = tuple(FAR if far else "" for far in linked)
    return replace(heap, num_bytes=num_bytes, network=net, reasons=reasons)


@contextlib.contextmanager
def far(depth: int) -> Iterator[None]:
    """In here ranks find each other behind a network."""

    def open_far(group: Any, num_bytes: int, device: Any) -> GpuHeap:
        return open_heap(group, num_bytes, device, depth)

    gpu_open.loopback = SimpleNamespace(open_heap=open_far)
    try:
        yield
    finally:
        gpu_open.loopback = loopback


def exchanges(group: Any, case: Case) -> None:
    exchange(group, case)


def plan(group: Any, case: Case) -> tuple[list[str], list[str], bool]:
    """Kinds and reasons of paths; whether the plan has all memory, also that behind the heap."""
    with make_buffer(group, case) as buf:
        told, memory = buf.plan(), buf._session._memory.heap.memory
        whole = sum(part.num_bytes for part in told.parts) == told.num_bytes == memory.numel()
        paths = buf.paths()
        return [path.kind for path in paths], [path.reason for path in paths], whole


def refused(group: Any, case: Case) -> tuple[str, str]:
    """A buffer that goes on without ranks; a call of more messages than queue pairs hold."""
    shrinking = error_of(lambda: make_buffer(group, case, enable_shrink=True))
    x = torch.zeros(case.tokens, case.hidden, dtype=torch.bfloat16)
    topk_idx = torch.zeros(case.tokens, case.topk, dtype=torch.int64)
    with make_buffer(group, case) as buf:
        args = (x, topk_idx, case.max_tokens, case.experts)
        return shrinking, error_of(lambda: buf.low_latency_dispatch(*args))


def pushes_a_taken_buffer(group: Any, case: Case) -> str:
    """A buffer for outputs, passed as if it were any tensor: its rows would be sent from where the
    next ones are written."""
    with make_buffer(group, case) as buf:
        mine = make_inputs(case, 0)[buf.rank]
        _, _, handle, _, _ = buf.low_latency_dispatch(
            mine.x, mine.topk_idx, case.max_tokens, case.experts
        )
        taken = buf.get_next_low_latency_combine_buffer(handle)
        args = (taken, mine.topk_idx, mine.topk_weights, handle)
        text = error_of(lambda: buf.low_latency_combine(*args))
        buf.low_latency_combine(*args, zero_copy=True)
        return text


def with_bytes_of_the_error(group: Any, case: Case) -> str:
    with make_buffer(group, case) as buf:
        text = error_of(lambda: round_trip(buf, case, 0))
    (num_bytes,) = re.findall(r"num_rdma_bytes=(\d+)", text)
    with deep_ll.Buffer(group, num_rdma_bytes=int(num_bytes), device="cuda") as buf:
        round_trip(buf, case, 0)
    return text


def run(name: str, case: Case, depth: int = DEPTH) -> tuple[list[Any], list[Launch]]:
    with far(depth):
        work: Callable[..., Any] = globals()[name]
        return on_ranks(case.world, work, case), world.enter().launches()
