"""Traces of ranks, merged: what happened when, and who waited for whom."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import observing_work as work
import pytest
from cases import Case

from deep_ll import __main__, errors, trace
from deep_ll.commands import trace as command
from deep_ll.testing import RankPool

CASE = Case(world=3, experts=6, tokens=4, max_tokens=4, hidden=128, topk=2)
VICTIM = 1
PHASES = {
    "dispatch": ["count", "announce", "place", "send", "deliver"],
    "receiving dispatch": ["await_rows", "unpack"],
    "combine": ["credit", "push", "offer"],
    "receiving combine": ["await_outputs", "gather", "count_consumed"],
}
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def job(
    pools: Callable[[int], RankPool], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[int]]]:
    """A folder with the traces of three ranks, one of which was late; and who waited for whom."""
    folder = tmp_path_factory.mktemp("job") / "made"
    return folder, pools(3).run(work.traced, str(folder), CASE, VICTIM, trace.MAX_EVENTS)


def slices(document: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event.get("cat") == kind]


def is_inside(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    slack = 0.3  # us: times of peers come in such steps
    end = outer["ts"] + outer["dur"] + slack
    return outer["ts"] - slack <= inner["ts"] and inner["ts"] + inner["dur"] <= end


def test_slices_of_a_rank(job: tuple[Path, list[list[int]]]) -> None:
    """Calls hold the phases that they are made of, in order, and phases hold waits."""
    for rank, document in enumerate(command.read(job[0])):
        facts = document["otherData"]
        assert (facts["rank"], facts["num_ranks"], facts["lost"]) == (rank, CASE.world, 0)
        calls, phases = slices(document, "call"), slices(document, "phase")
        rounds = work.ROUNDS + 1
        assert len(calls) == 4 * rounds
        for call in calls:
            name, epoch = call["name"].split(" #")
            assert 1 <= int(epoch) <= rounds
            inside = [phase for phase in phases if is_inside(phase, call)]
            assert [phase["name"] for phase in inside] == PHASES[name]
            assert {phase["args"]["epoch"] for phase in inside} == {int(epoch)}
        for wait in slices(document, "wait"):
            (phase,) = (phase for phase in phases if is_inside(wait, phase))
            assert phase["args"]["call"] == wait["args"]["call"]
            waits = wait["args"]["waits_us"]
            assert wait["dur"] == max(waits.values())
            assert waits[wait["name"].removeprefix("wait for rank ")] == wait["dur"]


def test_merged(
    job: tuple[Path, list[list[int]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, waited = job
    output, picture = tmp_path / "all.json", tmp_path / "waits.png"
    pytest.importorskip("matplotlib")
    args = ["trace", str(folder), "-o", str(output), "--heatmap", str(picture)]
    assert __main__.main(args) == 0
    assert f"slowest: rank {VICTIM}" in capsys.readouterr().out
    document = json.loads(output.read_text())
    assert {event["pid"] for event in document["traceEvents"]} == set(range(CASE.world))
    starts = [event["ts"] for event in document["traceEvents"] if "ts" in event]
    assert min(starts) == 0
    assert max(starts) < 60e6
    assert picture.read_bytes().startswith(PNG)
    matrix = command.waits_of(command.read(folder))
    for rank, row in enumerate(matrix):
        # The trace has the round more that the tensors do not count. Sums of fractions are rounded.
        assert all(ms * 1e6 >= ns - 1 for ms, ns in zip(row, waited[rank], strict=True))
        assert rank == VICTIM or max(row) == row[VICTIM] >= 500 * work.LATE_S * work.ROUNDS


def test_the_last_events_are_kept(pools: Callable[[int], RankPool], tmp_path: Path) -> None:
    pools(3).run(work.traced, str(tmp_path), CASE, VICTIM, 10)
    for document in command.read(tmp_path):
        (last,) = slices(document, "call")[-1:]
        assert last["name"] == f"receiving combine #{work.ROUNDS + 1}"
        assert document["otherData"]["lost"] > 100
        assert len(document["traceEvents"]) <= 10 + 2


def facts(rank: int, **changes: Any) -> dict[str, Any]:
    known = {"rank": rank, "num_ranks": 2, "buffer": 0, "host": "a", "pid": 1, "wall_ns": 0}
    return known | changes


def document(start_ns: int, **changes: Any) -> dict[str, Any]:
    own = facts(**changes)
    told = [("send", "dispatch", start_ns, 1000, 1, -1), ("rows", "dispatch", start_ns, 500, 1, 0)]
    return {"traceEvents": list(trace.slices(told, own)), "otherData": own}


def test_hosts_are_put_side_by_side() -> None:
    """By their wall clocks: their own began at other times. Buffers of a rank get rows."""
    ranks = [
        document(7_000_000, rank=0, wall_ns=1_000_000_000),
        document(7_100_000, rank=0, buffer=3, wall_ns=1_000_000_001),
        document(9_000_000_000, rank=1, host="b", wall_ns=-7_992_000_000),
    ]
    events = [event for event in command.merged(ranks)["traceEvents"] if event["ph"] == "X"]
    assert [(event["pid"], event["tid"], event["ts"]) for event in events[::2]] == [
        (0, 0, 0),
        (0, 1, 100),
        (1, 0, 1000),
    ]


def test_many_ranks_are_few_lines() -> None:
    matrix = [[float(rank == 30) for rank in range(40)] for _ in range(40)]
    assert command.table(matrix).splitlines()[0] == "rank 30: waited for 40.0 ms in all"
    assert len(command.table(matrix).splitlines()) == 10
    assert "slowest: none" in command.table([[0.0, 0.0], [0.0, 0.0]])


WRONG = {
    "has no whole rank*.json": lambda folder: None,
    "no whole trace": lambda folder: (folder / "rank0000-of2.json").write_text(""),
    "is no whole": lambda folder: (folder / "rank0000-of2.json").write_text("[]"),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_cannot_be_merged(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    WRONG[words](tmp_path)
    assert __main__.main(["trace", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err


def test_of_a_killed_rank_the_others_are_merged(
    job: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(job[0], tmp_path, dirs_exist_ok=True)
    (killed,) = tmp_path.glob("rank0001*.json")
    killed.write_text("")
    merged = tmp_path / "merged"
    assert __main__.main(["trace", str(tmp_path), "-o", str(merged)]) == 0
    assert f"left out {killed}" in capsys.readouterr().err
    facts = json.loads(merged.read_text())["otherData"]["ranks"]
    assert 1 not in {fact["rank"] for fact in facts}


def test_without_matplotlib(
    job: tuple[Path, list[list[int]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert __main__.main(["trace", str(job[0]), "--heatmap", str(tmp_path / "no.png")]) == 2
    told = capsys.readouterr()
    assert "pip install matplotlib" in told.err
    assert "slowest" in told.out


def test_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.ArgumentError, match=r"DEEP_LL_TRACE=.*no file can be made"):
        trace.Trace(None, str(tmp_path / "file"), 0, 1, 0)  # type: ignore[arg-type]
