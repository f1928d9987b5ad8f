"""Rank processes shared by the whole run: a pool per number of ranks, started when first needed."""

from collections.abc import Callable, Iterator

import pytest

from deep_ll.testing import RankPool

# Loaded once by the fork server, not once by every rank.
PRELOAD = ("exchange", "cases")
MAX_IDLE_RANKS = 32


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
