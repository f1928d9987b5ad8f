"""What the ranks of test_memory.py do."""

from pathlib import Path
from typing import Any

from cases import Case
from exchange import make_buffer, round_trip

LARGE = Case(world=2, experts=256, tokens=4, max_tokens=128, hidden=7168, topk=8)


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


def heavy(group: Any) -> int:
    """Touches more than 64 MB of shared memory."""
    case = Case(world=2, experts=4, tokens=1024, max_tokens=1024, hidden=7168, topk=4, rounds=1)
    with make_buffer(group, case) as buf:
        round_trip(buf, case, 0)
        return shared_bytes()
