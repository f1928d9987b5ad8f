"""The pool of rank processes by itself: results, failures, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pool_work
import pytest
import torch
from accidents import shm_files

from deep_ll.testing import RankDied, RankError, RankPool, RankTimeout, spawn_ranks


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(3) as pool:
        yield pool


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.02)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_results_come_in_rank_order(pool: RankPool) -> None:
    results = pool.run(pool_work.add_ranks, 10)
    assert [total for total, _, _ in results] == [33] * 3
    assert [pid for _, pid, _ in results] == pool.pids
    assert [threads for _, _, threads in results] == [1] * 3


def test_tensors_travel_by_value(pool: RankPool) -> None:
    before = shm_files()
    results = pool.run(pool_work.send_tensor, torch.arange(100_000))
    assert [int(r[0]) for r in results] == [0, 1, 2]
    assert not shm_files() - before


def test_exception_names_the_rank(pool: RankPool) -> None:
    with pytest.raises(RankError, match=r"raise_on: rank 1 raised") as caught:
        pool.run(pool_work.raise_on, 1)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, LookupError)
    assert "nothing at 1" in str(caught.value)
    assert "pool_work.py" in str(caught.value)  # its traceback
    assert pool.usable
    assert pool.run(pool_work.raise_on, 7) == ["fine"] * 3


def test_exception_that_cannot_travel(pool: RankPool) -> None:
    with pytest.raises(RankError, match="NoPickle: cannot travel"):
        pool.run(pool_work.raise_no_pickle)
    with pytest.raises(RankError, match="rank 0 raised"):
        pool.run(pool_work.return_no_pickle)
    assert pool.usable


def test_dead_rank_is_told() -> None:
    with RankPool(2) as pool:
        with pytest.raises(RankError, match=r"rank 1 died: killed by SIGKILL") as caught:
            pool.run(pool_work.die, 1)
        assert caught.value.rank == 1
        assert not pool.usable
        with pytest.raises(RuntimeError, match=r"pool is closed: in die, rank 1 killed by SIGKILL"):
            pool.run(pool_work.die, 1)
        wait_until_gone(pool.pids)


def test_rank_may_die() -> None:
    with RankPool(2) as pool:
        first, second = pool.run(pool_work.die, 1, may_die={1})
        assert first == "alive"
        assert isinstance(second, RankDied)
        assert second.exitcode == -signal.SIGKILL


def test_death_between_calls() -> None:
    with RankPool(2) as pool:
        os.kill(pool.pids[0], signal.SIGKILL)
        wait_until_gone(pool.pids[:1])
        with pytest.raises(RankError, match="rank 0"):
            pool.run(pool_work.add_ranks, 1)
        wait_until_gone(pool.pids)


def test_timeout_kills() -> None:
    with RankPool(2) as pool:
        start = time.monotonic()
        with pytest.raises(
            RankTimeout, match=r"sleep: ranks \[0, 1\] of 2 .* within 0.3 s"
        ) as error:
            pool.run(pool_work.sleep, 60, timeout_s=0.3)
        assert time.monotonic() - start < 5
        assert str(error.value).count("in sleep") == 2  # where they hung
        wait_until_gone(pool.pids)


def test_spawn_ranks() -> None:
    results = spawn_ranks(2, pool_work.add_ranks, 0)
    assert [total for total, _, _ in results] == [1, 1]
    wait_until_gone([pid for _, pid, _ in results])


ORPHANS = """
import pool_work, sys
from deep_ll.testing import RankPool
if __name__ == "__main__":
    pool = RankPool(2)
    print(*pool.pids, flush=True)
    pool.run(pool_work.sleep, 60)
"""


def test_ranks_die_with_their_parent(tmp_path: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == 2
    wait_until_gone(pids)


def test_sixteen_start_soon() -> None:
    start = time.monotonic()
    with RankPool(16) as pool:
        assert time.monotonic() - start < 20  # 3 s on an idle machine
        assert len(pool.run(pool_work.add_ranks, 0)) == 16
