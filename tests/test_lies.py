"""A rank that writes nonsense into the heaps of others: they name it, and write nowhere else.

Every kind of word, at every moment and by thousands: test_sanitizers.py; on GPUs:
gpu_free/test_gpu_lies.py.
"""

import warnings
from collections.abc import Callable
from typing import Any

import lies_work as work
import pytest
from topologies import ALL_LINK, ALL_P2P, Topology

from deep_ll import _native, failures
from deep_ll.testing import RankPool

TIMEOUT_S = 20.0
SAYS = {
    "count": "phase counts: rank 1 announces 9 rows for expert 0, but a rank has at most 8 tokens",
    "epoch_of_counts": "phase counts: rank 1 is at epoch 1002, but cannot be further than 3",
    "epoch_of_rows": "phase rows: rank 1 is at epoch 1002, but cannot be further than 2",
    "grant": "phase grants: rank 1 grants this rank rows of expert 2 from row 1000000 on",
    "label": "its label says rank 1, dispatch #2, token 60000, choice 1",
}


@pytest.mark.parametrize("topology", [ALL_P2P, ALL_LINK], ids=["p2p", "link"])
@pytest.mark.parametrize("what", SAYS)
def test_lie_is_told(pools: Callable[[int], RankPool], what: str, topology: Topology) -> None:
    if topology is ALL_LINK and not _native.HAVE_UCX:
        pytest.skip("built without UCX")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        results = pools(3).run(work.lie, topology, what, TIMEOUT_S)
    for rank in (0, 2):
        told = results[rank]
        assert told.error == "PeerError", told
        assert SAYS[what] in told.text
        assert "can only be destroyed" in told.text
        assert told.took_s < TIMEOUT_S / 2
        assert "destroy it and make another" in told.again


class Reports:
    """A native side whose peer greets with numbers that are none."""

    def report(self) -> tuple[int, int, int, list[tuple[int, int]]]:
        return 0, 0, 0, []

    def nonsense(self) -> None:
        return None

    def disagreement(self) -> tuple[Any, ...]:
        ours = (8, 16, 256, 4, 1, 0)
        return 1, 1, (8, 16, 256, 4, 2**32 - 1, 2**32 - 1), ours, 0, 0


def test_greeting_of_random_bits_is_told() -> None:
    text = str(failures.why(Reports(), 0, "dispatch #1", 1.0))
    assert "format 4294967295, which is none, this rank fp8" in text
    assert "slot is 4294967295 there and 0 here" in text
