"""Buffers that go on without ranks that die, stop or are late (docs/failures.md)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import accidents
import pytest
import shrink_work
import torch
from cases import Case, make_inputs
from exchange import make_buffer, round_trip, send
from farm import Farm, Farms
from shrink_work import FEW, Fault, Run, Told

import deep_ll
from deep_ll import _native
from deep_ll.testing import run_ranks

TIMEOUT_S = 0.8
PATIENT_S = 2.0  # where several runs share the cores
NUM_FARMS = 4
NUM_SCHEDULES = int(os.environ.get("DEEP_LL_SCHEDULES", "24"))
FIRST_SCHEDULE = int(os.environ.get("DEEP_LL_FIRST_SCHEDULE", "0"))
THREE = Case(world=3, experts=6, tokens=4, max_tokens=4, hidden=128, topk=2)
pytestmark = pytest.mark.timeout(120)


def points(how: str, *each: str) -> list[Fault]:
    """A rank for each point, one after the other, a round for each; "point 3": the third visit."""
    faults = []
    for index, text in enumerate(each):
        point, _, visit = text.partition(" ")
        faults.append(Fault(2 * index % 7, index, point, how, int(visit or 1)))
    return faults


AT_ONCE = [Fault(1, 1, "announce.peer", "kill", 3), Fault(3, 1, "send.row", "kill", 2)]
RUNS = {
    "announce": points("kill", "announce", "announce.peer 4", "place", "place.peer 5"),
    "rows": points("kill", "send", "send.row 3", "deliver.peer 3", "await_rows", "unpack.row"),
    "combine": points("kill", "push.row 3", "offer.peer 4", "await_outputs", "gather.row 2"),
    "clean": points("kill", "credit", "meet", "meet.peer 3", "count"),
    "stopped": points("stop", "announce.peer 4", "send.row 2", "place.peer 3", "push.row 2"),
    "three at once": [*AT_ONCE, Fault(5, 1, "offer.peer", "kill", 2)],
    "three stop": [f._replace(how="stop") for f in (*AT_ONCE, Fault(6, 1, "gather.row"))],
}


LINKED = {
    "link killed": points("kill", "announce.peer 4", "send.row 2", "deliver.peer 3", "push.row 2"),
    "link stopped": points("stop", "announce.peer 4", "place.peer 3", "offer.peer 5"),
}


@pytest.fixture(scope="module")
def farms() -> Iterator[Farms]:
    before = accidents.shm_files()
    farms = Farms(NUM_FARMS, FEW.world)
    yield farms
    farms.close()
    assert not accidents.shm_files() - before


def run(
    farm: Farm,
    faults: list[Fault],
    case: Case = FEW,
    timeout_s: float = TIMEOUT_S,
    **options: object,
) -> list[Told]:
    """Survivors agree on who is gone, and no call of theirs took longer than it may. What they
    told."""
    this = Run(shrink_work.with_rounds(case, faults), faults, timeout_s, options)
    victims, killed = this.victims(), this.victims("kill")
    # Each of them may let another wait of one call last twice the deadline, for those who wait for
    # it; and who fails at the end of a round falls together with those of the next.
    failing = Counter(at for fault in faults for at in (fault.round_idx, fault.round_idx + 1))
    longest_s = 2 * max(failing.values()) * timeout_s + 1
    answers = farm.run(this)
    for rank, told in enumerate(answers):
        assert (told is None) == (rank in killed), (rank, told)
        if told is None or rank in victims:
            assert told is None or "masked by ranks" in told.error, told
            continue
        assert told.error == ""
        assert told.masked == sorted(victims), (rank, told)
        assert told.longest_s < longest_s, told
        check_history(told.history, faults)
    return [told for rank, told in enumerate(answers) if told is not None and rank not in victims]


def check_history(history: list[list[list[int]]], faults: list[Fault]) -> None:
    """Nobody is masked before it fails, and all that did are within one further round."""
    for round_idx, (*_, masked) in enumerate(history):
        assert set(masked) <= {f.rank for f in faults if f.round_idx <= round_idx}
        assert set(masked) >= {f.rank for f in faults if f.round_idx < round_idx}


CASES = {
    "rows": replace(FEW, mode="hook", zero_copy=True),
    "stopped": replace(FEW, zero_copy=True),
    "three at once": replace(FEW, zero_copy=True, tokens=(4, 3, 0, 4, 2, 4, 1, 4)),
    "three stop": replace(FEW, mode="hook"),
}


@pytest.mark.parametrize("name", RUNS)
def test_survivors_go_on(farms: Farms, name: str) -> None:
    run(farms.all[0], RUNS[name], CASES.get(name, FEW))


@pytest.mark.skipif(not _native.HAVE_UCX, reason="built without UCX's headers")
@pytest.mark.parametrize("name", ["link killed", "link stopped"])
def test_survivors_go_on_over_the_network(farms: Farms, name: str) -> None:
    run(farms.all[0], LINKED[name], allow_nvlink_traffic=False)


def masks_by_hand(group: Any) -> str:
    """Rank 0 masks rank 2 before a round: 2 leaves, 1 follows 0."""
    with make_buffer(group, THREE, enable_shrink=True, timeout_s=20) as buf:
        status = torch.zeros(3, dtype=torch.int32)
        for rank, masked in ((2, True), (2, False), (1, True)):
            buf.low_latency_update_mask_buffer(rank, masked) if buf.rank == 0 else None
        buf.low_latency_clean_mask_buffer()
        buf.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0, 0, 0]
        round_trip(buf, THREE, 0)
        group.barrier()  # nobody still waits in that round
        if buf.rank == 0:
            buf.low_latency_update_mask_buffer(2, True)
        try:
            for round_idx in range(2):
                send(buf, THREE, make_inputs(THREE, round_idx)[buf.rank])
        except deep_ll.PeerError as error:
            return str(error)
        buf.low_latency_query_mask_buffer(status)
        return str(status.tolist())


def test_masks_by_hand() -> None:
    first, second, third = run_ranks(3, masks_by_hand)
    assert first == second == "[0, 0, 1]"
    assert "masked by ranks [0" in third


def bad_masks(group: object) -> list[str]:
    """What is refused."""
    status = torch.zeros(3, dtype=torch.int32)
    texts = []

    def refused(call: Callable[..., object], *args: object) -> None:
        with pytest.raises(deep_ll.ArgumentError) as caught:
            call(*args)
        texts.append(str(caught.value))

    with make_buffer(group, THREE) as buf:
        refused(buf.low_latency_query_mask_buffer, status)
    with make_buffer(group, THREE, enable_shrink=True) as buf:
        refused(buf.low_latency_update_mask_buffer, 3, True)
        refused(buf.low_latency_update_mask_buffer, buf.rank, True)
        refused(buf.low_latency_query_mask_buffer, status[:2])
        refused(buf.low_latency_query_mask_buffer, status.long())
    return texts


def test_bad_masks() -> None:
    for rank, texts in enumerate(run_ranks(3, bad_masks)):
        words = ("enable_shrink=True", "0 to 2", f"is {rank}, this rank", "shape (2,)", "int64")
        assert len(texts) == len(words)
        for word, text in zip(words, texts, strict=True):
            assert word in text


def test_ranks_disagree_about_shrinking() -> None:
    def make(group: Any) -> None:
        make_buffer(group, THREE, enable_shrink=group.rank == 1)

    with pytest.raises(deep_ll.PeerError, match="enable_shrink"):
        run_ranks(3, make)


def test_one_fails_in_each_call(farms: Farms) -> None:
    """DeepEP's own check: at dispatch, at combine and at clean."""
    faults = [Fault(1, 1, "count"), Fault(3, 1, "credit"), Fault(5, 1, "meet")]
    for told in run(farms.all[0], faults):
        assert told.history[1] == [[1], [1, 3], [1, 3, 5]], told


def one_schedule(farm: Farm, seed: int) -> str:
    """What is wrong with a run; "" if nothing is."""
    case, faults = shrink_work.schedule(seed)
    try:
        run(farm, faults, case, PATIENT_S)
    except AssertionError as error:
        return f"seed {seed}, {case}, {', '.join(map(str, faults))}: {error}"
    return ""


@pytest.mark.timeout(60 + 20 * NUM_SCHEDULES)
def test_random_schedules(farms: Farms) -> None:
    """DEEP_LL_SCHEDULES=200 runs so many, DEEP_LL_FIRST_SCHEDULE=100 from that seed on."""
    seeds = range(FIRST_SCHEDULE, FIRST_SCHEDULE + NUM_SCHEDULES)
    wrong = [text for text in farms.map(one_schedule, seeds) if text]
    assert not wrong, "\n\n".join(wrong)
