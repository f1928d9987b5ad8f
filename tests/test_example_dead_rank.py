"""The example that loses a rank and gets it back, as its users run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "survive_dead_rank.py"


@pytest.mark.timeout(120)
def test_rank_comes_back() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=environment)
    assert done.returncode == 0, done.stderr
    assert "rank 1 was killed: left out [[1], [1]]" in done.stdout
    assert "rank 1 is back: left out [[], [], []]" in done.stdout
