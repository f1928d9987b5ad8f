"""The protocol on paper: Spin tries every order in which ranks can take turns."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from spin.cases import SAFE, UNSAFE, Case
from spin.programs import header, parse

MODEL = Path(__file__).parent / "spin" / "protocol.pml"
MAX_DEPTH = 100_000
pytestmark = pytest.mark.skipif(
    not (shutil.which("spin") and shutil.which("gcc")),
    reason="needs the model checker Spin and gcc: apt-get install spin gcc",
)


def call(folder: Path, *command: str) -> str:
    """What it printed; raises unless it exits with 0."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def check(case: Case, folder: Path) -> tuple[int, str]:
    """How many errors, and the verifier's report."""
    calls = parse(case.program, case.recv_slots, case.combine_slots)
    (folder / "program.h").write_text(header(calls, case.credit, case.forgets))
    shutil.copy(MODEL, folder)
    macros = [f"-D{name}={value}" for name, value in case.macros().items()]
    call(folder, "spin", "-a", *macros, MODEL.name)
    # Not optimised, states not compressed: compiling takes longer than running.
    call(folder, "gcc", "-O0", "-w", "-DSAFETY", "-o", "pan", "pan.c")
    report = call(folder, "./pan", f"-m{MAX_DEPTH}")
    found = re.search(r"errors: (\d+)", report)
    assert found, report
    assert "max search depth too small" not in report, report
    return int(found[1]), report


@pytest.mark.parametrize("case", SAFE, ids=lambda case: case.name)
def test_is_safe(case, tmp_path):
    errors, report = check(case, tmp_path)
    assert errors == 0, report
    assert '"-end-"' not in report, "the calls were not all made"


@pytest.mark.parametrize("case", UNSAFE, ids=lambda case: case.name)
def test_fault_is_noticed(case, tmp_path):
    errors, report = check(case, tmp_path)
    assert errors > 0, report
    assert case.symptom in report
