"""Ranks that are threads on one GPU, in every mode, against the oracle."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from cases import CASTS, Case

from deep_ll.testing import run_ranks
from deep_ll.testing.compare import assert_same_bits
from on_gpu.batch import Batch, Round, meet, open_buffer, prepare
from on_gpu.section import Answer, Job, Problems, verdict

MODES = ("plain", "hook", "event")
ODD_HIDDEN = {True: 640, False: 1000}  # with FP8, a multiple of 128; without, of 8
MAX_TOKENS = 16
CASE_TIMEOUT_S = 60.0
SECONDS = 125.0  # after which no case begins


def cases(size: str) -> list[Case]:
    """Ordered so that neighbours differ only in how they call."""
    if size == "dry":
        ways = list(product(MODES, (False, True)))[::5]
        return [
            *_grid(2, 640, list(CASTS), ways),
            *_grid(2, 2048, ["ue8m0"], [("hook", True)]),
            *_grid(2, 7168, ["fp8"], [("plain", False)]),
        ]
    worlds = (2, 8, 4) if size == "full" else (2,)  # if time is short, EP8 is not what is left out
    all_ways = list(product(MODES, (False, True)))
    found: list[Case] = []
    for world in worlds:
        found += _grid(world, 640, list(CASTS), all_ways)
        # Each mode with each cast; push and zero-copy take turns.
        for hidden in (2048, 7168) if size == "full" else (7168,):
            found += _grid(world, hidden, list(CASTS), all_ways[::3] + all_ways[4:5])
    return found


def _grid(world: int, hidden: int, casts: list[str], ways: list[tuple[str, bool]]) -> list[Case]:
    found = []
    for index, cast in enumerate(casts):
        odd = ODD_HIDDEN[cast != "bf16"]
        base = Case(
            world=world,
            experts=8 * world,
            topk=8,
            tokens=_tokens(world, index + hidden // 1000),
            max_tokens=MAX_TOKENS,
            hidden=odd if hidden == 640 else hidden,
            cast=cast,
            routing=("random", "holes", "hot")[index % 3],
            idx=("int64", "int32")[index % 2],
        )
        found += [
            replace(base, mode=mode, zero_copy=zero_copy, out=mode == "plain")
            for mode, zero_copy in ways
        ]
    return found


def _tokens(world: int, pattern: int) -> int | tuple[int, ...]:
    """All there is room for; uneven; a rank in two has none."""
    uneven = tuple((5 * rank + 3) % (MAX_TOKENS + 1) for rank in range(world))
    some = tuple(MAX_TOKENS * (rank % 2) for rank in range(world))
    return (MAX_TOKENS, uneven, some)[pattern % 3]


def rounds_of(case: Case) -> list[Round]:
    """What the oracle says of a case, whatever the mode."""
    plain = replace(case, mode="plain", zero_copy=False, out=False)
    return [prepare(plain, round_idx) for round_idx in range(case.rounds)]


def run_case(device: Any, case: Case, **options: Any) -> list[str]:
    """All rounds on all ranks; what is wrong."""
    found = run_ranks(
        case.world, exchange, device, case, rounds_of(case), options, timeout_s=CASE_TIMEOUT_S
    )
    return [problem for problems in found for problem in problems]


def exchange(group: Any, device: Any, case: Case, rounds: list[Round], options: Any) -> list[str]:
    """All rounds on one rank, a thread or a process."""
    problems: list[str] = []
    with device.stream(), open_buffer(group, case, **options) as buf:
        before = torch.full((len(case.experts_of(buf.rank)),), 100, dtype=torch.int32)
        stats = device.put(before)
        batches = [Batch(buf, device, case, rounds[0]) for _ in range(2)]
        for index, this in enumerate(rounds):
            batch, previous = batches[index % 2], batches[index % 2 - 1]
            batch.load(this)
            meet(group, device)
            batch.dispatch(stats)
            batch.receive()
            batch.combine()
            batch.reduce()
            device.synchronize()
            problems += batch.problems()
            problems += previous.problems() if index else []
        problems += _stats_problem(device.get(stats), before, rounds, buf.rank)
        meet(group, device)
        del batch, previous, batches
    return problems


def _stats_problem(
    stats: torch.Tensor, before: torch.Tensor, rounds: list[Round], rank: int
) -> list[str]:
    counts = [[expert.src_info.numel() for expert in this.received[rank]] for this in rounds]
    expected = before + torch.tensor(counts, dtype=torch.int32).sum(0, dtype=torch.int32)
    try:
        assert_same_bits(stats, expected, f"rank {rank}: stats")
    except AssertionError as error:
        return [str(error)]
    return []


def run(job: Job) -> Answer:
    """The section."""
    todo, problems, done = cases(job.size), Problems(), []
    end = time.monotonic() + SECONDS
    for index, case in enumerate(todo):
        if problems.stopped or time.monotonic() > end:
            break
        job.say(f"case {index + 1} of {len(todo)}: {case}")
        with problems.of(f"({case})"):
            problems += run_case(job.device, case)
        done.append(case)
    worlds = "/".join(map(str, sorted({case.world for case in done})))
    left = f" ({len(todo) - len(done)} more had no time)" if len(done) < len(todo) else ""
    what = f"{len(done)} cases{left} of EP{worlds}, {case.rounds} rounds each, bit for bit"
    return verdict(problems, what, cases=[str(case) for case in done], asked=len(todo))
