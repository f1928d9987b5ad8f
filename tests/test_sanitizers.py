"""The kernels between ranks that are threads, under sanitizers; and faults that must be noticed.

cpp/ranks.cpp runs random programs of calls and compares every byte. docs/memory_model.md says what
the faults of cpp/mutants.py have shown.
"""

import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import faults
import pytest
from cpp import builds
from cpp.builds import Build, Result
from cpp.mutants import MUTANTS, Mutant

# Ranks, teams, rounds, scenario.
RUNS = [
    "3 1 60 rounds",
    "4 2 60 pulled",
    "4 1 60 deferred",
    "3 2 30 credit",
    "4 3 60 lazy_pull",
    "5 2 60 mixed",
    "2 2 60 mixed",
    "1 2 60 mixed",
    "4 2 60 shrinkable",
    "4 1 20 left_announcing",
    "4 1 20 left_granting",
    "4 1 20 left_sending",
    "4 1 20 left_delivering",
    "4 1 20 left_pushing",
    "4 1 20 left_offering",
]
LIES = [
    "3 1 250 1 lies",
    "3 1 250 2 lies",
    "3 1 150 1 lies_pulled",
    "3 1 150 1 lies_logfmt",
    "3 1 150 1 lies_shrinkable",
    "3 1 150 1 lies_shrinkable_pulled",
]
CHOSEN = faults.chosen(list(MUTANTS))
SEEDS = (1, 2)  # odd ones go across the end of the epochs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Build]:
    """Gives the program for a sanitizer, built when it is first asked for."""
    built: dict[str, Build] = {}

    def get(sanitizer: str) -> Build:
        if sanitizer not in built:
            folder = tmp_path_factory.mktemp(sanitizer)
            problem = builds.why_not(sanitizer, folder)
            if problem is not None:
                pytest.skip(problem)
            built[sanitizer] = Build(sanitizer, folder / "build").make(builds.JOBS)
        return built[sanitizer]

    return get


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("sanitizer", builds.SANITIZERS)
def test_random_programs(program: Callable[[str], Build], sanitizer: str, run: str) -> None:
    sizes, scenario = run.rsplit(" ", 1)
    # Schedules matter most to the one that looks at order.
    for seed in SEEDS if sanitizer == "thread" else SEEDS[:1]:
        result = program(sanitizer).run(f"{sizes} {seed} {scenario}", timeout_s=60)
        assert result.code == 0, result.text


@pytest.mark.parametrize("lies", LIES)
def test_lies(program: Callable[[str], Build], lies: str) -> None:
    """Of hundreds of words that peers spoil some must end each way, or none was believed."""
    result = program("address").run(lies, timeout_s=90)
    assert result.code == 0, result.text
    ends = dict(re.findall(r"(\w+) (\d+)", result.text))
    # Who may be left out is not waited for, but told that it was.
    never = "timeouts" if "shrinkable" in lies else "evicted"
    assert ends.pop(never) == "0", result.text
    assert min(map(int, ends.values())) >= 3, result.text


@pytest.mark.parametrize("sanitizer", builds.SANITIZERS)
def test_sleeping_and_waking(program: Callable[[str], Build], sanitizer: str) -> None:
    result = program(sanitizer).run("1 1 1 1 doorbell", timeout_s=30)
    assert result.code == 0, result.text


def judge(mutant: Mutant, base: Build, folder: Path) -> Result:
    csrc = builds.copy_with(mutant.edits, folder)
    changed = {file for file, _, _ in mutant.edits}
    # Code that is in several objects is taken from the first: lies.cpp is none of the first.
    kept = () if "lies" in mutant.run else {"cpp-lies.o"}
    mutated = Build("thread", folder / "build", csrc).make(1, base, changed, kept)
    return mutated.run(mutant.run, timeout_s=60)


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest,
    program: Callable[[str], Build],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Future[Result]]]:
    """What became of each mutant that was selected; they are built and run side by side."""
    base = program("thread")
    own = [item for item in request.session.items if item.path == request.path]
    calls = [getattr(item, "callspec", None) for item in own]
    chosen = [call.params["mutant"] for call in calls if call and "mutant" in call.params]
    with ThreadPoolExecutor(builds.JOBS) as workers:
        yield {
            name: workers.submit(judge, MUTANTS[name], base, tmp_path_factory.mktemp(name))
            for name in chosen
        }
        workers.shutdown(cancel_futures=True)


@pytest.mark.parametrize("left_out", sorted({*MUTANTS} - {*CHOSEN}))
def test_fault_can_be_put_in(left_out: str, tmp_path: Path) -> None:
    """Of those that are not: the source has what they change."""
    builds.copy_with(MUTANTS[left_out].edits, tmp_path)


@pytest.mark.parametrize("mutant", CHOSEN)
def test_fault_is_noticed(verdicts: dict[str, Future[Result]], mutant: str) -> None:
    fault, result = MUTANTS[mutant], verdicts[mutant].result()
    if fault.equivalent:
        assert result.code == 0, f"it is not true that {fault.equivalent}: {result.text}"
    else:
        ended = result.code > 0 or result.code == -signal.SIGABRT  # -1: not at all
        assert ended, f"unnoticed: {result.text}"
        assert re.search(fault.sign, result.text), result.text
