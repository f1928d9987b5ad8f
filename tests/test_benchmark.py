"""The benchmark's command line: a small run, what it writes, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deep_ll import _native

ROOT = Path(__file__).resolve().parent.parent
SMALL = [
    "--ep",
    "2",
    "--tokens",
    "4",
    "--hidden",
    "256",
    "--topk",
    "2",
    "--experts",
    "8",
    "--iters",
    "3",
    "--num-rounds",
    "1",
]
KEYS = {
    *("op", "ep", "tokens", "hidden", "topk", "experts", "dtype", "path"),
    *("wall_ms_p50", "wall_ms_p99", "gbps", "floor_ms", "floor_ratio", "peers"),
    *("nvshmem_disable_p2p", "ranks_per_node", "paths", "pairs", "p2p_bytes", "link_bytes"),
    *("transport", "hook", "improvement", "machine", "version", "commit"),
}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench_low_latency.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
def test_small_run(tmp_path: Path, dtype: str) -> None:
    result = tmp_path / "bench.json"
    run = bench(*SMALL, "--dtype", dtype, "--peers", "gloo", "--json", str(result))
    assert run.returncode == 0, run.stdout + run.stderr
    rows = json.loads(result.read_text())
    assert {row["op"] for row in rows} == {"dispatch", "combine", "combine_zero_copy", "pair"}
    for row in rows:
        assert set(row) >= KEYS
        assert row["wall_ms_p99"] >= row["wall_ms_p50"] > 0
        assert row["floor_ms"] > 0
        assert row["peers"]["gloo"] > 0
        assert row["path"] == "p2p"


TWO_PATHS = ["--ep", "4", "--ranks-per-node", "2", "--paths", "both", *SMALL[2:]]


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(not _native.HAVE_UCX, reason="built without UCX")
def test_two_paths(tmp_path: Path) -> None:
    result, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    run = bench(*TWO_PATHS, "--peers", "gloo", "--json", str(result), "--plot", str(picture))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "NVSHMEM_DISABLE_P2P=1 -> 0, nodes of 2 ranks" in run.stdout
    assert "Measured on" in run.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(result.read_text())
    ways = [(row["nvshmem_disable_p2p"], row["path"]) for row in rows]
    assert ways == [(0, "p2p+link")] * 4 + [(1, "link")] * 4
    for row in rows:
        assert set(row) >= KEYS
        assert row["floor_ms"] > 0
        assert row["peers"]["gloo"] > 0
    check_mapped_within_nodes(rows[:4])
    check_link_alone(rows[4:])


def check_mapped_within_nodes(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert [path["kind"] for path in row["paths"]] == ["self", "p2p", "link", "link"]
        assert "DEEP_LL_RANKS_PER_NODE" in row["paths"][2]["reason"]
        assert row["p2p_bytes"] > 0
        assert row["link_bytes"] > 0
        assert row["improvement"] > 0


def check_link_alone(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert [path["kind"] for path in row["paths"]] == ["self", "link", "link", "link"]
        assert row["paths"][1]["reason"] == "NVSHMEM_DISABLE_P2P=1"
        assert row["p2p_bytes"] == 0
        assert row["link_bytes"] > 0
        assert row["improvement"] is None
    hooks = {row["op"]: row["hook"] for row in rows}
    assert hooks["pair"] is None
    for op in ("dispatch", "combine"):
        assert hooks[op]["send_ms"] > 0
        assert hooks[op]["receive_ms"] > 0
        assert isinstance(hooks[op]["hidden"], float)


def test_impossible_arguments() -> None:
    run = bench("--ep", "3", "--experts", "8")
    assert run.returncode == 2
    assert "multiple" in run.stderr + run.stdout
