"""The benchmark's command line: a small run, what it writes, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    *("machine", "version", "commit"),
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


def test_impossible_arguments() -> None:
    run = bench("--ep", "3", "--experts", "8")
    assert run.returncode == 2
    assert "multiple" in run.stderr + run.stdout
