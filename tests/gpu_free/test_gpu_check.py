"""benchmarks/gpu_check.py without a GPU: what it says of that, and a dry run of all of it."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from cases import CASTS

from deep_ll import kernels

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_check.py"
sys.path.append(str(ROOT / "tests" / "gpu"))

from on_gpu import loopback, runner, sanitizer, times  # noqa: E402
from on_gpu.section import ABSENT, RIGHT, WRONG  # noqa: E402

needs_kernels = pytest.mark.skipif(
    not kernels.description(), reason="built without nvcc: there are no kernels to launch"
)
FAKE_SUMMARY = "========= ERROR SUMMARY: {} errors\n"


class Outcome(NamedTuple):
    code: int
    table: list[str]
    errors: str
    content: dict[str, Any]


def check(folder: Path, *options: str) -> Outcome:
    path = folder / "gpu_check.json"
    command = [sys.executable, str(SCRIPT), "--json", str(path), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=150)
    content = json.loads(path.read_text())
    return Outcome(result.returncode, result.stdout.splitlines(), result.stderr, content)


@needs_kernels
@pytest.mark.slow
@pytest.mark.timeout(160)
def test_dry_run(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")
    outcome = check(tmp_path, "--dry-run")
    assert outcome.code == 0, outcome
    content = outcome.content
    statuses = {name: section["status"] for name, section in content["sections"].items()}
    right = dict.fromkeys(("loopback", "endurance", "graphs", "times"), RIGHT)
    assert statuses == {**right, "processes": ABSENT, "sanitizer": ABSENT}
    assert content["facts"]["kernels"]["nvcc"]
    assert {row["op"] for row in content["sections"]["times"]["details"]["times"]} == {
        "dispatch",
        "combine, push",
        "combine, zero-copy",
    }
    names = [line.split()[0] for line in outcome.table[2:9]]
    assert names == ["facts", *statuses]
    assert "one GPU that plays all ranks" in "\n".join(outcome.table)
    assert "loopback: case 2 of" in outcome.errors


@needs_kernels
def test_wrong_result_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")
    outcome = check(tmp_path, "--dry-run", "--spoil", "--only", "graphs")
    assert outcome.code == 1
    graphs = outcome.content["sections"]["graphs"]
    assert graphs["status"] == WRONG
    assert "combined: 1 of" in "".join(graphs["details"]["problems"])
    assert any(
        line.startswith("graphs") and " wrong, the first: " in line for line in outcome.table
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_reasons_are_given(tmp_path: Path) -> None:
    outcome = check(tmp_path)
    assert outcome.code == 2
    assert list(outcome.content["sections"]) == []
    assert "missing: gpu: none" in outcome.errors
    assert "-> see nvidia-smi" in outcome.errors
    assert any(reason.startswith("gpu: ") for reason in outcome.content["facts"]["missing"])


def test_section_that_hangs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "child.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    monkeypatch.setattr(runner, "HERE", tmp_path)
    answer, seconds = runner.run(runner.Section("loopback", 1.0, ""), runner.Options(), print)
    assert answer.status == WRONG
    assert answer.summary == "not done after 1 s; the last it said: begun"
    assert seconds < 30


def test_section_that_dies_is_reported() -> None:
    unknown = runner.Section("nowhere", 20, "")
    answer, _ = runner.run(unknown, runner.Options("small"), print)
    assert (answer.status, "No module named" in answer.summary) == (WRONG, True)


def test_sections_stay_under_ten_minutes() -> None:
    assert sum(section.limit_s for section in runner.SECTIONS) < 600


@pytest.mark.parametrize(
    ("runs", "status", "text"),
    [
        ({2: (0, FAKE_SUMMARY.format(0))}, RIGHT, "memcheck of EP2: ERROR SUMMARY: 0 errors"),
        ({2: (9, FAKE_SUMMARY.format(4))}, WRONG, "ERROR SUMMARY: 4 errors, exit code 9"),
        ({2: (1, FAKE_SUMMARY.format(0))}, WRONG, "exit code 1"),
        ({2: (3, ""), 1: (0, FAKE_SUMMARY.format(0))}, RIGHT, "of EP1"),
        ({2: (None, ""), 1: (None, "")}, ABSENT, "no progress"),
        ({2: (127, "not for this driver")}, ABSENT, "ended with 127"),
    ],
)
def test_sanitizer_verdicts(runs: dict[int, tuple], status: str, text: str) -> None:
    found = sanitizer.judge("memcheck", {world: sanitizer.Run(*run) for world, run in runs.items()})
    assert found[0] == status
    assert text in found[1]


def test_full_run_has_every_mode() -> None:
    cases = loopback.cases("full")
    assert len(set(cases)) == len(cases)
    seen = {(case.world, case.hidden, case.cast, case.mode) for case in cases}
    for world, cast, mode in itertools.product((2, 4, 8), CASTS, loopback.MODES):
        odd = loopback.ODD_HIDDEN[cast != "bf16"]
        assert {(world, hidden, cast, mode) for hidden in (odd, 2048, 7168)} <= seen
    ways = {(case.cast, case.mode, case.zero_copy) for case in cases}
    assert len(ways) == len(CASTS) * len(loopback.MODES) * 2


def test_floor_counts_each_byte_once() -> None:
    (case, _), *_ = times.shapes("full", 132)
    assert times.moved_bytes(case, "dispatch") == 8 * 128 * (2 * 7168 + 8 * (7168 + 4 * 56))
    assert times.moved_bytes(case, "combine, push") == 8 * 128 * (2 * 7168 + 8 * 2 * 7168)
