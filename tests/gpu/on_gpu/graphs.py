"""CUDA graphs: captured once, replayed with other inputs in the same place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from cases import Case

from deep_ll.testing import run_ranks
from on_gpu.batch import Batch, meet, open_buffer, prepare
from on_gpu.section import Answer, Job, Problems, verdict

NUM_INPUTS = 4  # that replays take in turn
TIMEOUT_S = 50.0

_CASE = Case(world=4, experts=16, tokens=(16, 3, 0, 9), hidden=640)
_BF16 = replace(_CASE, hidden=1000, cast="bf16", zero_copy=True)


class Recipe(NamedTuple):
    """What is captured: steps of batches."""

    name: str
    case: Case
    num_batches: int
    steps: list[tuple[str, int]]


def _layers(count: int) -> list[tuple[str, int]]:
    return [("exchange", layer) for layer in range(count)]


# One micro-batch is on its way while the other computes.
_OVERLAP = [
    *(("dispatch", 0), ("dispatch", 1), ("receive", 0), ("combine", 0), ("receive", 1)),
    *(("reduce", 0), ("combine", 1), ("reduce", 1)),
]
# With an odd number of layers a replay begins in the memory that the last one ended in.
RECIPES = [
    Recipe("one layer", _CASE, 1, _layers(1)),
    Recipe("three layers, zero-copy", _BF16, 3, _layers(3)),
    Recipe("three layers on a side stream", replace(_CASE, mode="event"), 3, _layers(3)),
    Recipe("two micro-batches with hooks", replace(_CASE, mode="hook"), 2, _OVERLAP),
]


def _rank(group: Any, device: Any, recipe: Recipe, num_replays: int) -> list[str]:
    case = recipe.case
    plain = replace(case, mode="plain", zero_copy=False)
    inputs = [prepare(plain, index) for index in range(NUM_INPUTS)]
    with device.stream(), open_buffer(group, case) as buf:
        batches = [Batch(buf, device, case, inputs[0]) for _ in range(recipe.num_batches)]

        def work() -> None:
            for method, index in recipe.steps:
                getattr(batches[index], method)()

        meet(group, device)
        work()  # loads kernels and takes memory, which a capture must not
        device.synchronize()
        replay = device.capture(group, work)
        problems = []
        for number in range(num_replays):
            for layer, batch in enumerate(batches):
                batch.load(inputs[(number + layer) % NUM_INPUTS])
            meet(group, device)
            replay()
            device.synchronize()
            problems += [f"replay {number}: {text}" for text in _problems(batches)]
        meet(group, device)
        return problems


def _problems(batches: list[Batch]) -> list[str]:
    """The last two layers still have what dispatch gave them."""
    last = len(batches) - 2
    return [text for layer, batch in enumerate(batches) for text in batch.problems(layer >= last)]


def run(job: Job) -> Answer:
    """The section."""
    num_replays, problems = job.pick(100, 10, 5), Problems()
    for recipe in RECIPES:
        job.say(f"{recipe.name}: {num_replays} replays")
        with problems.of(recipe.name):
            args = job.device, recipe, num_replays
            found = run_ranks(recipe.case.world, _rank, *args, timeout_s=TIMEOUT_S)
            problems += [f"{recipe.name}: {text}" for texts in found for text in texts]
        if problems.stopped:
            break
    what = f"{len(RECIPES)} graphs of each of {_CASE.world} ranks, {num_replays} replays each"
    names = [recipe.name for recipe in RECIPES]
    return verdict(problems, f"{what}, with other inputs", graphs=names, replays=num_replays)
