"""The example that loses a rank and gets it back, as its users run it."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "survive_dead_rank.py"


@pytest.mark.timeout(120)
def test_rank_comes_back() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 was killed: left out [[1], [1]]" in done.stdout
    assert "rank 1 is back: left out [[], [], []]" in done.stdout
