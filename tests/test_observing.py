"""Where time goes and where ranks are: whoever is late or stuck is named by all others."""

import dataclasses
import re
from collections.abc import Callable

import observing_work as work
import pytest
from cases import Case

from deep_ll import _native
from deep_ll.testing import RankPool, run_ranks

CASE = Case(world=4, tokens=4, max_tokens=4, hidden=128, topk=2)
SMALL = Case(world=3, experts=6, tokens=4, max_tokens=4, hidden=128, topk=2)
LATE = [("dispatch", 2, "plain"), ("combine", 0, "plain"), ("dispatch", 3, "hook")]
PHASES = {"dispatch": "counts", "combine": "outputs"}
LATE_NS = work.LATE_S * 1e9 * work.ROUNDS


def check_late(told: list[work.Told], victim: int, moment: str) -> None:
    """Everybody else has waited for the victim, and longest for it; all that is told agrees."""
    for rank, own in enumerate(told):
        stats = own.stats
        assert stats.rank == rank
        assert stats.calls == {"dispatch": work.ROUNDS + 1, "combine": work.ROUNDS + 1}
        costs = {"dispatch": own.dispatch_ns, "combine": own.combine_ns}[moment]
        assert costs[rank] == stats.waits[rank].total_us == 0
        for kind, waits in stats.phases.items():
            assert [each.peer for each in waits] == list(range(len(told)))
            for each in waits:
                assert each.p50_us <= each.p99_us <= each.max_us <= each.total_us, (kind, each)
        if rank == victim:
            continue
        assert costs[victim] >= 0.5 * LATE_NS
        # On a busy machine the others are late too, by less, and so is whoever waits.
        assert costs[victim] == max(costs)
        assert stats.slowest == victim
        named = stats.phases[PHASES[moment]][victim]
        assert named.count == work.ROUNDS + 1
        assert named.max_us >= 0.5e6 * work.LATE_S
        assert named.p50_us >= 0.5e6 * work.LATE_S
        assert f"slowest peer: rank {victim}" in str(stats)


@pytest.mark.parametrize(("moment", "victim", "mode"), LATE)
def test_late_rank(pools: Callable[[int], RankPool], moment: str, victim: int, mode: str) -> None:
    case = dataclasses.replace(CASE, mode=mode)
    check_late(pools(4).run(work.late, case, victim, moment), victim, moment)


@pytest.mark.skipif(not _native.HAVE_UCX, reason="built without UCX")
def test_late_rank_behind_a_link(pools: Callable[[int], RankPool]) -> None:
    told = pools(4).run(work.late, CASE, 1, "dispatch", True)
    check_late(told, 1, "dispatch")
    assert all(each.stats.bytes["link"] > 0 == each.stats.bytes["p2p"] for each in told)


def test_late_rank_of_threads() -> None:
    check_late(run_ranks(4, work.late, CASE, 2, "combine"), 2, "combine")


MOVED = [
    Case(world=2, experts=4, tokens=5, topk=2, cast="bf16"),
    Case(world=2, experts=4, tokens=5, topk=2, cast="fp8", zero_copy=True, routing="holes"),
    Case(world=2, experts=4, tokens=5, topk=2, cast="fp8", routing="hot"),
]


@pytest.mark.parametrize("case", MOVED, ids=str)
def test_bytes(pools: Callable[[int], RankPool], case: Case) -> None:
    """Of the rows of a dispatch, and those of the combine that answers it."""
    for rank, (stats, choices, row_bytes) in enumerate(pools(2).run(work.moved, case)):
        other, half = 1 - rank, case.experts // 2
        sent = {
            to: sum(expert >= 0 and expert // half == to for expert in choices[rank])
            for to in (0, 1)
        }
        back = {
            to: sum(expert >= 0 and expert // half == rank for expert in choices[to])
            for to in (0, 1)
        }
        answered = sent if case.zero_copy else back
        expected = [sent[to] * row_bytes + answered[to] * 2 * case.hidden for to in (rank, other)]
        assert stats.bytes == {"self": expected[0], "p2p": expected[1], "link": 0}


@pytest.mark.parametrize(("moment", "victim"), [("dispatch", 1), ("combine", 0)])
def test_stuck_rank(pools: Callable[[int], RankPool], moment: str, victim: int) -> None:
    """A signal and a call tell where each rank is, while it waits in native code."""
    what = {
        "dispatch": r"in dispatch #2, phase place, since 0\.\d{3} s; for 0\.\d{3} s it has waited "
        rf"for counts of epoch 2 from ranks {victim} \(at 1\)",
        "combine": r"in receiving combine #2, phase await_outputs, since 0\.\d{3} s; for "
        rf"0\.\d{{3}} s it has waited for outputs of epoch 2 from ranks {victim} \(at [01]\)",
    }[moment]
    for rank, told in enumerate(pools(3).run(work.stuck, SMALL, victim, moment)):
        assert told["installed"]
        assert not told["left"]
        start = rf"deep_ll: rank {rank} of 3, process {told['pid']}, buffer #\d+: "
        expected = r"in no call; the last was .*" if rank == victim else what
        for text in (told["signal"], told["call"]):
            assert re.fullmatch(start + expected + r"\n", text), text


def test_own_handler_stays(pools: Callable[[int], RankPool]) -> None:
    for heard, still in pools(3).run(work.own_handler, SMALL):
        assert len(heard) == 1
        assert still


def test_dump(pools: Callable[[int], RankPool]) -> None:
    for rank, told in enumerate(pools(3).run(work.dump_default, SMALL)):
        assert re.fullmatch(
            rf"deep_ll: rank {rank} of 3, process \d+, buffer #\d+: no call yet\n"
            r"deep_ll: this buffer was destroyed\n",
            told,
        )
