"""Rank processes shared by the whole run: a pool per number of ranks, started when first needed.
And how tests share the cores, where `make test` runs several at once.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deep_ll.testing import RankPool

# Loaded once by the fork server, not once by every rank.
PRELOAD = ("exchange", "cases")
MAX_IDLE_RANKS = 32

# These keep a core busy for minutes. All others start ranks, which use all cores and look at the
# time.
BUSY = ("tests/gpu_free/", "tests/test_sanitizers.py")
NICE = 10  # of busy ones


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker starts ranks, test after test; the others take what keeps a core busy by files."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.split("::")[0] if nodeid.startswith(BUSY) else "ranks"

    return Scheduler(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What keeps a core busy gives way to ranks."""
    if "PYTEST_XDIST_WORKER" in os.environ and item.nodeid.startswith(BUSY) and os.nice(0) < NICE:
        os.nice(NICE)


class Pools:
    """Gives a pool by its number of ranks; one that was killed is replaced."""

    def __init__(self) -> None:
        self._pools: dict[int, RankPool] = {}

    def __call__(self, world_size: int) -> RankPool:
        pool = self._pools.get(world_size)
        if pool is None or not pool.usable:
            if sum(self._pools) + world_size > MAX_IDLE_RANKS:
                self.close()
            pool = self._pools[world_size] = RankPool(world_size, preload=PRELOAD)
        return pool

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()


@pytest.fixture(scope="session")
def pools() -> Iterator[Callable[[int], RankPool]]:
    pools = Pools()
    yield pools
    pools.close()
