"""Ranks that die, come late or leave: the others are told, and nothing stays behind."""

import random
import re
import time
from collections.abc import Callable, Iterator

import accidents
import pytest

from deep_ll.testing import RankDied, RankPool

TIMEOUT_S = 30.0  # of waits that must not last as long
NOTICED_S = 6.0  # on a busy machine


@pytest.fixture(autouse=True)
def nothing_left_in_shm() -> Iterator[None]:
    before = accidents.shm_files()
    yield
    assert not accidents.shm_files() - before


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize(("moment", "phase"), [("dispatch", "counts"), ("combine", "outputs")])
def test_kill_while_others_wait(moment: str, phase: str, victim: int) -> None:
    with RankPool(3) as pool:
        results = pool.run(
            accidents.lose_a_rank, victim, moment, TIMEOUT_S, may_die={victim}, timeout_s=40
        )
    assert isinstance(results[victim], RankDied)
    for rank in {0, 1, 2} - {victim}:
        told = results[rank]
        message = told["message"]
        for word in ("PeerError", f"rank {rank}", f"{moment} #2", phase, f"ranks [{victim}]"):
            assert word in message, (word, message)
        assert told["took_s"] < NOTICED_S
        assert "destroy" in told["again"]
        assert told["alone"]


@pytest.mark.parametrize("moment", ["dispatch", "combine"])
def test_interrupt_while_waiting(moment: str) -> None:
    with RankPool(3) as pool:
        first, *others = pool.run(accidents.interrupt, moment, timeout_s=30)
    what, took_s, afterwards = first
    assert what == "KeyboardInterrupt"
    assert took_s < 1.2, took_s
    assert "destroy" in afterwards
    assert "interrupted" in afterwards
    # A combine's rows were all sent before rank 0 began to wait; a dispatch's never were.
    # Rank 0 then drops its buffer, which may be noticed before the time is over.
    expected = {"PeerTimeout", "PeerError"} if moment == "dispatch" else {"nothing raised"}
    assert {result[0] for result in others} <= expected


def test_late_rank_counts_as_missing(pools: Callable[[int], RankPool]) -> None:
    first, *others = pools(3).run(accidents.late_then_timeout)
    assert first == ""
    for message in others:
        assert "0.5 s" in message
        assert "[0" in message
        assert re.search(r"expected epoch 1, found 0 from rank 0", message), message


def test_waiting_costs_no_core(pools: Callable[[int], RankPool]) -> None:
    used_s = pools(3).run(accidents.slow_peer, 1.0)
    assert max(used_s) < 0.3, used_s


@pytest.mark.parametrize("attempt", range(3))
def test_kill_all_at_a_random_moment(attempt: int) -> None:
    with RankPool(3) as pool:
        pool.start(accidents.loop_until_killed)
        time.sleep(0.3 + random.random() * 0.4)
        pool.kill()


def test_drop_and_destroy_leak_nothing(pools: Callable[[int], RankPool]) -> None:
    for growth in pools(3).run(accidents.make_and_destroy, 60):
        assert growth["descriptors"] == 0
        assert growth["maps"] < 20
        assert growth["resident"] < 4 << 20
