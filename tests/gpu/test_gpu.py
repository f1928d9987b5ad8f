"""On a GPU: the sections of benchmarks/gpu_check.py, in small. Skipped where kernels cannot run."""

import functools

import pytest
from on_gpu import runner
from on_gpu.section import ABSENT, RIGHT, Answer

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(200)]


@functools.cache
def facts() -> Answer:
    (section,) = runner.named(["facts"])
    return runner.run(section, runner.Options("small"), print)[0]


@pytest.fixture(scope="module", autouse=True)
def _gpu() -> None:
    if facts().status != RIGHT:
        missing = facts().details.get("missing", [facts().summary])
        pytest.skip("kernels cannot run here: " + "; ".join(missing).replace("\n  ->", ","))


@pytest.mark.parametrize("section", runner.SECTIONS[1:], ids=lambda section: section.name)
def test_section(section: runner.Section) -> None:
    answer, _ = runner.run(section, runner.Options("small"), print)
    if answer.status == ABSENT:
        pytest.skip(answer.summary)
    assert answer.status == RIGHT, answer.summary


def test_spoiled_results_are_noticed() -> None:
    loopback = next(section for section in runner.SECTIONS if section.name == "loopback")
    answer, _ = runner.run(loopback, runner.Options("small", spoil=True), print)
    assert answer.status != RIGHT
