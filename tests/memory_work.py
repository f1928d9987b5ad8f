"""What the ranks of test_memory.py do."""

import gc
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cases import Case
from exchange import make_buffer, round_trip
from topologies import Topology, make_linked_buffer

import deep_ll
from deep_ll import _native

LARGE = Case(world=2, experts=256, tokens=4, max_tokens=128, hidden=7168, topk=8)


class Touched(NamedTuple):
    """Bytes: what a plan says, and what was touched."""

    expected: int
    worst: int
    heap: int
    used: int


def shared_bytes() -> int:
    """Shared memory of this process that has pages."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssShmem:"):
            return int(line.split()[1]) * 1024
    raise LookupError("no RssShmem in /proc/self/status")


def touched_by_large(group: Any) -> dict[str, int]:
    before = shared_bytes()
    with make_buffer(group, LARGE) as buf:
        made = shared_bytes() - before
        for round_idx in range(4):
            round_trip(buf, LARGE, round_idx)
        return {"made": made, "used": shared_bytes() - before, "reserved": buf.num_rdma_bytes}


def num_heaps_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:deep_ll ")


def mapped_after_destroy(group: Any) -> dict[str, int]:
    """Counts mappings of heaps, with the collector off: nothing may hang in a cycle."""
    gc.collect()
    gc.disable()
    try:
        buf = make_buffer(group, LARGE)
        for round_idx in range(3):
            round_trip(buf, LARGE, round_idx)
        before = num_heaps_mapped()
        buf.destroy()
        return {"before": before, "after": num_heaps_mapped()}
    finally:
        gc.enable()


def heavy(group: Any) -> int:
    """Touches more than 64 MB of shared memory; returns how much."""
    num_tokens, hidden, num_experts = 512, 7168, 4
    shape = {"max_tokens_per_rank": num_tokens, "hidden": hidden, "num_experts": num_experts}
    with deep_ll.Buffer(group, **shape) as buf:
        x = torch.ones(num_tokens, hidden, dtype=torch.bfloat16)
        topk_idx = torch.arange(num_experts).expand(num_tokens, -1).contiguous()
        recv_x, _, handle, _, _ = buf.low_latency_dispatch(
            x, topk_idx, num_tokens, num_experts, use_fp8=False
        )
        weights = torch.ones(num_tokens, num_experts)
        combined, _, _ = buf.low_latency_combine(recv_x, topk_idx, weights, handle)
        assert torch.equal(combined, num_experts * x)
        return shared_bytes()


def touched_with_links(group: Any, case: Case, topology: Topology, num_rounds: int) -> Touched:
    """Many rounds of different routing; what a buffer says it needs, and what it took."""
    with make_linked_buffer(group, case, topology) as buf:
        for round_idx in range(num_rounds):
            round_trip(buf, case, round_idx)
        said, heap = buf.plan(), buf._session.heap
        # Its heap, and what stands for those of others.
        own = [path.peer for path in buf.paths() if path.kind != "p2p"]
        used = sum(resident_bytes(heap.bases[peer]) for peer in own)
        if len(own) > 1:  # not measured: the allocator's
            used += (len(own) - 1) * _native.MESSAGES_PER_PEER * _native.MESSAGE_BYTES
            used += 2 * case.topk * case.max_tokens * 2 * case.hidden
    return Touched(said.expected_bytes, said.worst_bytes, said.num_bytes, used)


def resident_bytes(address: int) -> int:
    """Pages that this process has touched of the mapping around this address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if ends := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(ends[1], 16) <= address < int(ends[2], 16)
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"nothing is mapped at {address:#x}")
