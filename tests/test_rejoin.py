"""Ranks that die, are masked, begin anew and come back; results equal the oracle's from the next
call."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import accidents
import pytest
import rejoin_work as work
from lone_ranks import ANSWER_S, LoneRanks
from topologies import ALL_LINK, ALL_P2P, Topology, nodes_of
from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]

import deep_ll
from deep_ll import _native
from deep_ll.testing import run_ranks

WORLD = work.CASE.world


def over(*topologies: Topology) -> pytest.MarkDecorator:
    """Those with a link need UCX."""
    no_ucx = pytest.mark.skipif(not _native.HAVE_UCX, reason="built without UCX")
    marked = [pytest.param(one, marks=no_ucx if one != ALL_P2P else ()) for one in topologies]
    return pytest.mark.parametrize("topology", marked, ids=str)


class Ranks(LoneRanks):
    """Those of one buffer."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(work.serve)
        self.topology = topology
        self.former: list[Any] = []

    def begin(self, ranks: list[int], rejoin: bool = False, timeout_s: float = 30.0) -> None:
        self.start(ranks, self.topology, rejoin, timeout_s)

    def answer(self, rank: int) -> Any:
        error, result = self.receive(rank)
        assert not error, f"rank {rank}: {error}"
        return result

    def ask(self, ranks: list[int], name: str, *args: object) -> list[Any]:
        for rank in ranks:
            self.send(rank, name, args)
        return [self.answer(rank) for rank in ranks]

    def round(self, index: int) -> None:
        """On all who live; the others are masked."""
        living = sorted(self.processes)
        self.ask(living, "round", index, [r for r in range(WORLD) if r not in living])

    def bring_back(self, rank: int) -> None:
        living = sorted(self.processes)
        self.begin([rank], rejoin=True)
        self.ask(living, "rejoin", rank)
        self.answer(rank)

    def close(self) -> None:
        super().close()
        for process in self.former:
            process.kill()
            process.join()


@pytest.fixture
def topology() -> Topology:
    return ALL_P2P


@pytest.fixture
def ranks(topology: Topology) -> Iterator[Ranks]:
    before = accidents.shm_files()
    ranks = Ranks(topology)
    try:
        ranks.begin(list(range(WORLD)))
        for rank in range(WORLD):
            ranks.answer(rank)
        yield ranks
    finally:
        ranks.close()
    assert not accidents.shm_files() - before


@over(ALL_P2P, ALL_LINK, nodes_of(2), nodes_of(3))
def test_killed_ranks_come_back(ranks: Ranks) -> None:
    """One, again, then two at once; in between rounds without them."""
    index = 0
    used: list[Any] = []
    for lost in ([1], [1], [0, 3]):
        ranks.round(index)
        ranks.kill(*lost)
        ranks.round(index + 1)
        ranks.round(index + 2)
        for rank in lost:
            ranks.bring_back(rank)
            ranks.round(index + 3)
        ranks.round(index + 4)
        index += 5
        used.append(ranks.ask([2], "used")[0])
    # A sentinel for each that ever came back, three in all, and nothing else.
    assert all(last - first <= 8 for first, last in zip(used[0], used[-1], strict=True))
    assert not any(ranks.ask(list(range(WORLD)), "uses_shm"))


@over(ALL_P2P, nodes_of(2))
def test_rank_that_was_stopped_begins_anew(ranks: Ranks) -> None:
    """It is masked, hears so, and comes back in the same process."""
    ranks.round(0)
    process = ranks.processes.pop(2)
    os.kill(process.pid, signal.SIGSTOP)
    ranks.round(1)
    os.kill(process.pid, signal.SIGCONT)
    (told,) = ranks.ask([2], "late_round", 1)
    assert "masked by ranks [0, 1, 3]" in told
    living = sorted(ranks.processes)
    ranks.processes[2] = process
    ranks.send(2, "again", ())
    ranks.ask(living, "rejoin", 2)
    ranks.answer(2)
    ranks.round(2)
    ranks.round(3)


@over(ALL_LINK)
def test_what_the_old_process_still_sends_does_not_count(ranks: Ranks) -> None:
    """It was stopped in the midst of a call, goes on when the new one is in, and is told."""
    living = [0, 1, 3]
    ranks.round(0)
    process, pipe = ranks.processes.pop(2), ranks.pipes.pop(2)
    pipe.send(("stop_and_go_on", (1,)))
    ranks.former.append(process)
    ranks.round(1)
    ranks.bring_back(2)
    ranks.round(2)
    os.kill(process.pid, signal.SIGCONT)
    for index in range(3, 6):
        ranks.round(index)
    assert pipe.poll(ANSWER_S)
    error, told = pipe.recv()
    assert not error
    assert "was masked by ranks [" in told
    ranks.ask(living, "await_dropped", 2)
    ranks.round(6)


def test_newcomer_that_cannot_be_reached(ranks: Ranks) -> None:
    """All of a group without a link are told; then another is taken in."""
    ranks.kill(1)
    ranks.round(0)
    ranks.topology = ALL_LINK
    ranks.begin([1], rejoin=True)
    ranks.topology = ALL_P2P
    texts = ranks.ask([0, 2, 3], "error_of", "rejoin", 1)
    error, _ = ranks.receive(1)
    ranks.kill(1)
    for text in (*texts, error):
        assert "PeerError: ranks 1 and 0 cannot reach each other" in text
        assert "NVSHMEM_DISABLE_P2P=1" in text
    ranks.bring_back(1)
    ranks.round(1)


def test_refusals(ranks: Ranks) -> None:
    living = [0, 2, 3]
    for text in ranks.ask([0, 1, 2, 3], "error_of", "rejoin", 2, 1.0):
        assert text.startswith("OrderError")
        assert "rank is not masked" in text
    ranks.kill(1)
    ranks.round(0)
    for text in ranks.ask(living, "rejoin_beside_a_hook", 1, 1, [1]):
        assert text.startswith("OrderError")
        assert "dispatch #2 is not finished" in text
    for text in ranks.ask(living, "rejoin_elsewhere", 1):
        assert "needs a StoreGroup" in text
        assert "the group is for rank" in text
    # Nobody asks to rejoin: rank 0 waits for rank 1, the others for rank 0 then.
    texts = ranks.ask(living, "error_of", "rejoin", 1, 1.0)
    assert "nothing from ranks [1]" in texts[0]
    assert all(text.startswith("PeerTimeout") for text in texts)
    ranks.round(2)  # the buffer goes on without it
    ranks.bring_back(1)
    ranks.round(3)


def test_nobody_calls_rejoin(ranks: Ranks) -> None:
    ranks.kill(1)
    ranks.begin([1], rejoin=True, timeout_s=1.0)
    error, _ = ranks.receive(1)
    ranks.kill(1)
    assert "PeerTimeout" in error
    assert "waiting for buffer.rejoin(1) of the living ranks: nothing from ranks [0, 2, 3]" in error


def test_store_group_gathers(tmp_path: Path) -> None:
    def gather(group: Any) -> list[list[tuple[int, int]]]:
        store = FileStore(str(tmp_path / "store"), group.size)
        mine = deep_ll.StoreGroup(store, group.rank, group.size)
        return [mine.all_gather((i, group.rank)) for i in range(6)]

    for gathered in run_ranks(3, gather):
        assert gathered == [[(i, rank) for rank in range(3)] for i in range(6)]


def test_store_group_names_who_is_missing() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=5))
    group = deep_ll.StoreGroup(store, 1, 4, timeout_s=0.3)
    begun = time.monotonic()
    with pytest.raises(deep_ll.PeerTimeout, match=r"rank 1, .*nothing from ranks \[0, 2, 3\]"):
        group.all_gather(None)
    assert time.monotonic() - begun < 4


@pytest.mark.parametrize("rank", [-1, 4])
def test_store_group_checks_the_rank(rank: int) -> None:
    with pytest.raises(deep_ll.ArgumentError, match=f"rank is {rank}"):
        deep_ll.StoreGroup(None, rank, 4)  # type: ignore[arg-type]
