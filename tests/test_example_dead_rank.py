"""The example that loses a rank and gets it back, as its users run it."""

import pytest
from example_run import run_example


@pytest.mark.timeout(120)
def test_rank_comes_back() -> None:
    done = run_example("survive_dead_rank.py", timeout_s=110)
    assert "rank 1 was killed: left out [[1], [1]]" in done.stdout
    assert "rank 1 is back: left out [[], [], []]" in done.stdout
