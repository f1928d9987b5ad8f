"""The checks of DeepEP's tests/test_low_latency.py, in our words, through `import deep_ep`:

(a) statistics, counts, layout ranges and the ranks' choices agree;
(b) a row of the pattern has one value in all but its last 128 channels, exactly;
(c) its last 128 channels are the token's number, near it if scales are rounded;
(d) the rows that layout_range gives to a source are that source's, and as many as it sent;
(e) combined rows are near x times the sum of the weights, and no NaN is among them;
(f) runs of a seed repeat their bits, whatever the order of rows;
(g) ranks that fail are masked, after each call exactly those, and all of this holds without them.
"""

from __future__ import annotations

from collections.abc import Callable

import deepep_upstream
import pytest
from deepep_upstream import Setup

from deep_ll import _native
from deep_ll.testing import RankPool

Pools = Callable[[int], RankPool]
needs_ucx = pytest.mark.skipif(not _native.HAVE_UCX, reason="built without UCX")

SETUPS = [
    Setup(4, 16),
    Setup(8, 32, tokens=16),
    Setup(4, 16, tokens=16, use_logfmt=True),
    Setup(3, 9, tokens=20, hidden=1024),  # DeepEP has no odd numbers of ranks
    pytest.param(Setup(4, 8, disable_nvlink=True), marks=needs_ucx),
]
NUM_REPEATS = 20
MASK_AFTER_S = 2.0  # long for a rank that lives, short for a test


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_low_latency(pools: Pools, setup: Setup) -> None:
    pools(setup.world).run(deepep_upstream.check_all, setup, 1)


@pytest.mark.parametrize("seed", [0, 1])
def test_pressure(pools: Pools, seed: int) -> None:
    setup = Setup(4, 16, tokens=16)
    hashes = pools(4).run(deepep_upstream.pressure, setup, seed, NUM_REPEATS)
    assert all(len(set(of_rank)) == 1 for of_rank in hashes)
    assert len({of_rank[0] for of_rank in hashes}) == len(hashes)  # ranks differ, so hashes tell


def test_shrink(pools: Pools) -> None:
    """One rank fails at the first dispatch, one at the first combine, one at the first clean."""
    pools(8).run(deepep_upstream.shrink, Setup(8, 32, tokens=16), MASK_AFTER_S)
