"""What a heap costs, what it may cost, and what is checked before."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memory_work
import pytest
from cases import Case
from exchange import make_buffer, round_trip
from topologies import ALL_LINK, ALL_P2P, Topology, nodes_of

import deep_ll
from deep_ll import _native
from deep_ll.runtime import memory
from deep_ll.runtime.paths import Wish, foresee_linked
from deep_ll.testing import RankPool, run_ranks

TESTS = Path(__file__).parent

# (max tokens per rank, hidden, experts): models in production, and what DeepEP's logs say.
SHAPES = [
    (128, 7168, 256),
    (128, 7168, 288),
    (256, 7168, 256),
    (1024, 7168, 256),
    (128, 3072, 288),
    (128, 2048, 128),
    (128, 4096, 128),
    (512, 5120, 160),
    (64, 6144, 384),
    (16, 8192, 512),
    (1, 7168, 64),
]
RANKS = [1, 2, 4, 8, 16, 32, 64]


def deepep_hint(max_tokens: int, hidden: int, num_experts: int) -> int:
    """DeepEP's size of its low-latency buffer."""
    message = 16 + max(2 * hidden, hidden + 4 * (hidden // 128))
    combined = 4 * (hidden // 128) + 2 * hidden
    send = max(max_tokens * message, num_experts * max_tokens * combined)
    receive = num_experts * max_tokens * max(message, combined)
    signals = -(-4 * num_experts // 128) * 128
    total = 2 * (send + receive + signals)
    return (total + 128) // 128 * 128


@pytest.mark.parametrize(("max_tokens", "hidden", "num_experts"), SHAPES)
def test_no_more_than_deepep(max_tokens: int, hidden: int, num_experts: int) -> None:
    for num_ranks in [n for n in RANKS if num_experts % n == 0]:
        ours = deep_ll.Buffer.get_low_latency_rdma_size_hint(
            num_max_dispatch_tokens_per_rank=max_tokens,
            hidden=hidden,
            num_ranks=num_ranks,
            num_experts=num_experts,
        )
        assert 0 < ours <= deepep_hint(max_tokens, hidden, num_experts), num_ranks


def test_formula_gives_published_sizes() -> None:
    assert deepep_hint(128, 7168, 256) == pytest.approx(1908.410e6, rel=1e-6)
    assert deepep_hint(128, 3072, 288) == pytest.approx(920.128e6, rel=1e-6)


def test_only_touched_pages_cost(pools: Callable[[int], RankPool]) -> None:
    for told in pools(2).run(memory_work.touched_by_large):
        assert told["reserved"] > 500 << 20
        assert told["made"] < 1 << 20
        assert told["used"] < 16 << 20


def test_destroy_gives_the_memory_back_at_once(pools: Callable[[int], RankPool]) -> None:
    for told in pools(2).run(memory_work.mapped_after_destroy):
        assert told["before"] > 0
        assert told["after"] == 0


CASE = Case(world=2, experts=4, tokens=3, max_tokens=64, hidden=1024, topk=2)


def construct(group):
    with pytest.raises(deep_ll.HeapMemoryError) as caught:
        make_buffer(group, CASE)
    return str(caught.value)


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    available = 300 << 10
    monkeypatch.setattr(memory, "available_bytes", lambda: available)
    for message in run_ranks(2, construct):
        sizes = re.findall(r"([\d.]+) MiB", message)
        assert "0.3" in sizes  # what is free
        assert float(sizes[0]) > 0.3  # what is needed
        assert "max_tokens_per_rank" in message


def test_enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 64 << 20)
    run_ranks(2, lambda group: round_trip(make_buffer(group, CASE), CASE, 0))


def test_container_limit_counts() -> None:
    assert 0 < memory.available_bytes() < 1 << 60


def plan(group):
    with make_buffer(group, CASE) as buf:
        told = buf.plan()
        assert sum(part.num_bytes for part in told.parts) == told.num_bytes == buf.num_rdma_bytes
        ends = [part.offset + part.num_bytes for part in told.parts]
        assert [part.offset for part in told.parts] == [0, *ends[:-1]]
        assert told.expected_bytes < told.worst_bytes <= told.num_bytes
        return str(told)


def test_plan_names_every_byte() -> None:
    for text in run_ranks(2, plan):
        assert "expected" in text
        assert "worst" in text


LINKED = Case(
    world=4, experts=16, tokens=64, max_tokens=64, hidden=2048, topk=4, cast="bf16", zero_copy=True
)


@pytest.mark.skipif(not _native.HAVE_UCX, reason="built without UCX")
@pytest.mark.parametrize("topology", [ALL_P2P, nodes_of(2), ALL_LINK], ids=str)
def test_plan_counts_what_a_link_needs(
    pools: Callable[[int], RankPool], topology: Topology
) -> None:
    work = memory_work.touched_with_links
    for rank, told in enumerate(pools(4).run(work, LINKED, topology, 25)):
        num_linked = topology.kinds(rank, 4).count("link")
        messages = num_linked * _native.MESSAGES_PER_PEER * _native.MESSAGE_BYTES
        assert told.worst >= told.heap + messages
        assert told.expected < told.worst
        # Rows that arrive lie elsewhere in each round; what is sent leaves nothing behind.
        most = 1.1 if num_linked else 1.5
        assert 0.6 * told.expected < told.used < most * told.expected, told


def refused(group: Any, allow: bool | None) -> str:
    try:
        make_buffer(group, CASE, allow_nvlink_traffic=allow).destroy()
    except deep_ll.HeapMemoryError as error:
        return str(error)
    return ""


def test_link_is_counted_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thread ranks have no link, but hear of the memory first."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 4 << 20)
    assert run_ranks(2, refused, None) == ["", ""]
    for text in run_ranks(2, refused, False):
        assert "2 ranks on this host" in text
        assert "4.0 MiB are free" in text


@pytest.mark.parametrize(
    ("hosts", "wishes", "expected"),
    [
        ("aaaa", [Wish()] * 4, [0, 0, 0, 0]),
        ("aabb", [Wish()] * 4, [2, 2, 2, 2]),
        ("aaab", [Wish()] * 4, [1, 1, 1, 3]),
        ("aaaa", [Wish(ranks_per_node=3)] * 4, [1, 1, 1, 3]),
        ("aaaa", [Wish(refused="so")] * 4, [3, 3, 3, 3]),
        ("aaaa", [Wish(), Wish(refused="so"), Wish(), Wish()], [1, 3, 1, 1]),
    ],
)
def test_links_are_foreseen(hosts: str, wishes: list[Wish], expected: list[int]) -> None:
    assert foresee_linked(hosts, wishes) == expected


SMALL_SHM = """
import sys
import memory_work
from deep_ll.testing import spawn_ranks
if __name__ == "__main__":
    print(*spawn_ranks(2, memory_work.heavy))
"""
UNSHARE = ["unshare", "--mount", "sh", "-c"]


def test_64_mb_of_dev_shm_are_enough(tmp_path: Path) -> None:
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm && df /dev/shm"
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    tried = subprocess.run([*UNSHARE, mount], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"cannot mount a small /dev/shm: {tried.stderr.strip()}")
    script = tmp_path / "small_shm.py"
    script.write_text(SMALL_SHM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    run = subprocess.run(
        [*UNSHARE, f"{mount} && exec {sys.executable} {script}"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=50,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert all(int(n) > 64 << 20 for n in run.stdout.splitlines()[-1].split())


def test_file_cache_of_a_cgroup_counts_as_free(tmp_path: Path) -> None:
    for name, text in {
        "memory.max": "1000000",
        "memory.current": "900000",
        "memory.stat": "anon 300000\ninactive_file 500000\n",
    }.items():
        (tmp_path / name).write_text(text)
    left = memory._headroom(tmp_path, "memory.max", "memory.current")
    assert left == 600_000


def test_thread_ranks_reserve_without_memory() -> None:
    def work(group: Any) -> int:
        with deep_ll.Buffer(group, 0, 1 << 38) as buf:
            return buf.num_rdma_bytes

    assert run_ranks(2, work) == [1 << 38] * 2
