"""Ranks behind a link that die, stop, leave or are interrupted."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import accidents
import link_accidents as work
import pytest
import test_start
from cases import Case
from link_exchange_work import under
from topologies import ALL_LINK, Topology, nodes_of

from deep_ll import _native
from deep_ll.testing import RankDied, RankPool

Pools = Callable[[int], RankPool]

pytestmark = pytest.mark.skipif(not _native.HAVE_UCX, reason="built without UCX")

NODES = nodes_of(2)
BOTH = pytest.mark.parametrize("topology", [ALL_LINK, NODES], ids=str)
MOMENTS = pytest.mark.parametrize(
    ("moment", "phase"), [("dispatch", "counts"), ("combine", "outputs")]
)
VICTIM = 3  # of four; on two nodes, rank 2 is its neighbour
NOTICED_S = 6.0  # on a busy machine; the deadlines are at 30
# 7 MB of outputs for the other: more than messages and sockets hold.
LARGE = Case(world=2, experts=2, topk=2, tokens=512, max_tokens=512, hidden=7168)


@pytest.fixture(autouse=True)
def nothing_left_in_shm() -> Iterator[None]:
    before = accidents.shm_files()
    yield
    assert not accidents.shm_files() - before


@BOTH
@MOMENTS
def test_killed(moment: str, phase: str, topology: Topology) -> None:
    with RankPool(4) as pool:
        args = (work.FOUR, topology, VICTIM, moment, 30.0)
        results = pool.run(work.lose_a_rank, *args, may_die={VICTIM}, timeout_s=40)
    assert isinstance(results[VICTIM], RankDied)
    for rank in range(VICTIM):
        told = results[rank]
        for word in (f"rank {rank}, {moment} #2", phase, f"ranks [{VICTIM}]"):
            assert word in told.text
        assert told.error == "PeerError"
        assert "cannot be reached any more" in told.text
        assert told.took_s < NOTICED_S
        assert "destroy" in told.again
        assert told.closing_s < NOTICED_S


@BOTH
@MOMENTS
def test_stopped(moment: str, phase: str, topology: Topology) -> None:
    with RankPool(4) as pool:
        args = (work.FOUR, topology, VICTIM, moment, 1.0)
        results = pool.run(work.stop_a_rank, *args, timeout_s=40)
    for rank in range(VICTIM):
        told = results[rank]
        assert told.error == "PeerTimeout"
        for word in (f"rank {rank}, {moment} #2", phase, f"ranks [{VICTIM}]", "1 s"):
            assert word in told.text
        assert 0.9 < told.took_s < NOTICED_S
        assert "destroy" in told.again
        assert told.closing_s < NOTICED_S
    # When it goes on, the others are gone; what they had sent before counts.
    told = results[VICTIM]
    if moment == "dispatch":
        assert told.error == "PeerError"
        assert "cannot be reached any more" in told.text


def test_stopped_while_much_is_sent() -> None:
    """Who takes nothing is not waited for any longer than who says nothing."""
    timeout_s = 2.0
    with RankPool(2) as pool:
        args = (LARGE, ALL_LINK, 1, "combine", timeout_s)
        told, _ = pool.run(work.stop_a_rank, *args, timeout_s=50)
    assert told.error == "PeerTimeout"
    assert "ranks [1]" in told.text
    assert told.took_s < 2 * timeout_s + 1  # to send, and to wait
    assert told.closing_s < NOTICED_S


@BOTH
@pytest.mark.parametrize("moment", ["dispatch", "combine"])
def test_interrupted(moment: str, topology: Topology) -> None:
    with RankPool(3) as pool:
        first, *others = pool.run(under, topology, accidents.interrupt, moment, timeout_s=30)
    what, took_s, afterwards = first
    assert what == "KeyboardInterrupt"
    assert took_s < 1.2, took_s
    assert "destroy" in afterwards
    assert "interrupted" in afterwards
    # A combine's rows were all sent before rank 0 began to wait; a dispatch's never were.
    expected = {"PeerTimeout", "PeerError"} if moment == "dispatch" else {"nothing raised"}
    assert {result[0] for result in others} <= expected


def test_interrupted_while_much_is_sent() -> None:
    with RankPool(2) as pool:
        (what, took_s), _ = pool.run(work.interrupt_put, LARGE, ALL_LINK, timeout_s=40)
    assert what == "KeyboardInterrupt"
    assert took_s < 2


@BOTH
@pytest.mark.parametrize("destroy", [True, False])
def test_rank_that_leaves(pools: Pools, topology: Topology, destroy: bool) -> None:
    """What it sent still counts; then it is missed."""
    _, *others = pools(3).run(work.leave_early, topology, destroy)
    for error, text, took_s in others:
        assert "ranks [0" in text
        assert error == "PeerError"
        assert took_s < NOTICED_S


def test_hook_after_destroy_does_not_hang(pools: Pools) -> None:
    _, *others = pools(3).run(work.hook_after_destroy, ALL_LINK)
    for error, text, took_s in others:
        assert error != "nothing raised"
        assert text
        assert took_s < NOTICED_S


def test_destroy_twice_and_without_a_call(pools: Pools) -> None:
    for growth in pools(3).run(under, ALL_LINK, accidents.make_and_destroy, 10):
        assert growth["descriptors"] == 0
        assert growth["maps"] < 20
        assert growth["resident"] < 8 << 20


@pytest.mark.parametrize("attempt", range(3))
def test_all_killed_at_a_random_moment(attempt: int) -> None:
    with RankPool(3) as pool:
        pool.start(work.loop_until_killed, ALL_LINK)
        time.sleep(0.5 + random.random() * 0.6)
        pool.kill()


@pytest.mark.parametrize("text", [test_start.NEVER_DESTROYS, test_start.IN_A_CYCLE, "torchrun"])
def test_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Programs end well, also without destroy()."""
    monkeypatch.setenv("NVSHMEM_DISABLE_P2P", "1")
    text = test_start.TORCHRUN if text == "torchrun" else text
    finished = test_start.run(tmp_path, text, *test_start.launcher())
    assert finished.returncode == 0, finished.stderr
