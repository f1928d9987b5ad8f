"""Ranks for tests, benchmarks and notebooks: threads of this process, or processes."""

from deep_ll.testing.processes import RankPool, spawn_ranks
from deep_ll.testing.rank_errors import RankDied, RankError, RankTimeout
from deep_ll.testing.threads import run_ranks

__all__ = ["RankDied", "RankError", "RankPool", "RankTimeout", "run_ranks", "spawn_ranks"]
