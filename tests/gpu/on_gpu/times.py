"""How long kernels take, beside the least that the GPU's memory could take for the same bytes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from cases import Case

from deep_ll.rounds import NUM_SLOTS
from deep_ll.testing import run_ranks
from on_gpu.batch import Batch, Round, meet, open_buffer, prepare
from on_gpu.section import Answer, Job, Problems, verdict

ITERS = 20  # in a graph
REPEATS = 9
TIMEOUT_S = 100.0
SCALE_BYTES, CHANNELS_OF_A_SCALE = 4, 128


@dataclass(frozen=True)
class Time:
    """One operation of one shape."""

    op: str
    ep: int
    tokens: int
    hidden: int
    topk: int
    experts: int
    num_sms: int
    us: float
    floor_us: float

    @property
    def ratio(self) -> float:
        return self.us / self.floor_us

    def as_json(self) -> dict[str, Any]:
        rounded = {"us": round(self.us, 2), "floor_us": round(self.floor_us, 2)}
        return asdict(self) | rounded | {"x_floor": round(self.ratio, 2)}


def shapes(size: str, num_sms: int) -> list[tuple[Case, list[int]]]:
    """Shapes, each with numbers of multiprocessors that a rank uses."""
    if size == "dry":
        return [(_case(2, 8, hidden=512, experts=8), [1, 2])]
    hidden, most = 7168, num_sms // 8
    few = [(_case(ep, tokens), [16, 32]) for ep in (1, 2) for tokens in (1, 8)]
    if size == "small":
        return few[2:3]
    return [(_case(8, 128, hidden=hidden), sorted({4, 8, most})), *few]


def _case(ep: int, tokens: int, hidden: int = 7168, experts: int = 256) -> Case:
    sizes = {"tokens": tokens, "max_tokens": tokens, "hidden": hidden, "topk": 8}
    # With its result in one place a graph may run a combine many times.
    return Case(world=ep, experts=experts, out=True, **sizes)


def moved_bytes(case: Case, op: str) -> int:
    """What all ranks together must read and write at least: a token once, a row for each choice."""
    tokens, hidden = case.world * case.num_tokens(0), case.hidden
    row = hidden + hidden // CHANNELS_OF_A_SCALE * SCALE_BYTES if op == "dispatch" else 2 * hidden
    return tokens * (2 * hidden + case.topk * row)


def copy_speed(device: Any) -> float:
    """Bytes a second that a plain copy reads and writes."""
    source = device.copy_source()
    target = torch.empty_like(source)
    target.copy_(source)
    times = [device.seconds(lambda: target.copy_(source)) for _ in range(REPEATS)]
    return 2 * source.numel() / statistics.median(times)


def _rank(
    group: Any, device: Any, case: Case, first: Round, num_sms: int
) -> tuple[list[str], dict[str, list[float]]]:
    with device.stream(), open_buffer(group, case, num_sms=num_sms) as buf:
        batch = Batch(buf, device, case, first)
        meet(group, device)
        batch.exchange()
        device.synchronize()
        problems, times = batch.problems(), {}
        for op, before, work in _operations(batch):
            meet(group, device)
            before()
            replay = device.capture(group, lambda work=work: [work() for _ in range(ITERS)])
            times[op] = _timed(group, device, replay)
            problems += batch.problems()
        meet(group, device)
        return problems, times


def _operations(batch: Batch) -> Iterator[tuple[str, Callable[[], object], Callable[[], object]]]:
    """Names, what is run once before, and what is timed."""

    def dispatch() -> None:
        batch.dispatch()
        batch.receive()

    def combine() -> None:
        batch.combine(fill=False)
        batch.reduce()

    def fill() -> None:
        for _ in range(NUM_SLOTS):  # outputs are read where they lie, and stay there
            batch.combine()
            batch.reduce()

    yield "dispatch", dispatch, dispatch
    yield "combine, push", combine, combine
    batch.case = replace(batch.case, zero_copy=True)
    yield "combine, zero-copy", fill, combine


def _timed(group: Any, device: Any, replay: Callable[[], None]) -> list[float]:
    """Seconds of an iteration, of each repeat. The first replay warms up."""
    times = []
    for _ in range(1 + REPEATS):
        meet(group, device)
        times.append(device.seconds(replay) / ITERS)
    return times[1:]


def measure(device: Any, case: Case, num_sms: int, speed: float) -> tuple[list[str], list[Time]]:
    """All operations of a shape."""
    args = device, case, prepare(case, 0), num_sms
    found = run_ranks(case.world, _rank, *args, timeout_s=TIMEOUT_S)
    problems, rows = [text for texts, _ in found for text in texts], []
    for op in found[0][1]:
        # The rank that started last waited least for the others to start.
        repeats = [min(times) for times in zip(*(each[op] for _, each in found), strict=True)]
        floor = moved_bytes(case, op) / speed
        shape = (case.world, case.num_tokens(0), case.hidden, case.topk, case.experts)
        rows.append(Time(op, *shape, num_sms, statistics.median(repeats) * 1e6, floor * 1e6))
    return problems, rows


def run(job: Job) -> Answer:
    """The section."""
    speed, problems, rows = copy_speed(job.device), Problems(), []
    todo = shapes(job.size, job.device.num_sms())
    for case, num_sms in ((case, num_sms) for case, sweep in todo for num_sms in sweep):
        where = f"EP{case.world}, {case.tokens} tokens, {num_sms} multiprocessors a rank"
        job.say(where)
        with problems.of(where):
            wrong, times = measure(job.device, case, num_sms, speed)
            problems += wrong
            rows += times
        if problems.stopped:
            break
    what = f"{len(rows)} operations timed; memory copies at {speed / 1e9:.0f} GB/s"
    table = [row.as_json() for row in rows]
    return verdict(problems, what, copy_gbps=round(speed / 1e9, 1), times=table)
