"""Many rounds of the same values: every one must give the bits of the first, and take no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import Case
from torch import Tensor

from deep_ll.testing import run_ranks
from on_gpu.batch import Batch, meet, open_buffer, prepare
from on_gpu.section import Answer, Job, verdict

WORLD = 4
TOKENS = (16, 3, 0, 9)
KINDS = (
    Case(world=WORLD, experts=16, tokens=TOKENS, hidden=512, cast="fp8"),
    Case(world=WORLD, experts=16, tokens=TOKENS, hidden=1000, cast="bf16", mode="hook"),
)
# Hosts must not run far ahead: a full queue of launches blocks the thread that another rank's
# launch may need.
ROUNDS_IN_FLIGHT = 20
SAID_EVERY = 50  # times that
TIMEOUT_S = 75.0


class Witness:
    """Remembers a batch's results, and counts on the device what differs from them later."""

    def __init__(self, batch: Batch, device: Any) -> None:
        self._batch = batch
        self._differing = device.put(torch.zeros(1, dtype=torch.int64))
        received = batch.round.received[batch.buf.rank]
        rows = torch.zeros(*self._tensors()[0].shape[:2], 1)
        for row, expert in zip(rows, received, strict=True):
            row[: expert.src_info.numel()] = 1
        self._filled = device.put(rows.bool())  # rows behind a count may hold anything
        self._first = [tensor.clone() for tensor in self._tensors()]

    def look(self) -> None:
        """Compares; queued behind what the batch has put on the stream."""
        for now, first in zip(self._tensors(), self._first, strict=True):
            differs = _bits(now) != _bits(first)
            if now.dim() == 3:
                differs = differs & self._filled
            self._differing.add_(differs.sum())

    def count(self, get: Callable[[Tensor], Tensor]) -> int:
        """Elements that differed so far."""
        return int(get(self._differing))

    def _tensors(self) -> list[Tensor]:
        recv_x, recv_count, _ = self._batch.results
        received = list(recv_x) if isinstance(recv_x, tuple) else [recv_x]
        return [*received, recv_count, self._batch.combined]


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _rank(
    group: Any, device: Any, num_rounds: int, say: Callable[[str], None]
) -> tuple[list[str], list[int]]:
    with device.stream(), open_buffer(group, KINDS[1]) as buf:
        batches = [Batch(buf, device, case, prepare(case, 0)) for case in KINDS]
        witnesses = []
        for batch in batches:
            meet(group, device)
            batch.exchange()
            device.synchronize()
            witnesses.append(Witness(batch, device))
            witnesses[-1].look()  # so that the kernels of torch are loaded
        memory = []
        for done in range(0, num_rounds, ROUNDS_IN_FLIGHT):
            meet(group, device)
            memory.append(device.allocated_bytes())
            group.barrier()
            _some_rounds(batches, witnesses, min(ROUNDS_IN_FLIGHT, num_rounds - done))
            if group.rank == 0 and done % (ROUNDS_IN_FLIGHT * SAID_EVERY) == 0:
                say(f"round {done} of {num_rounds}")
        device.synchronize()
        problems = _differences(witnesses, device)
        for batch in batches:
            problems += batch.problems()
        meet(group, device)
        return problems, memory[1:]


def _some_rounds(batches: list[Batch], witnesses: list[Witness], count: int) -> None:
    for index in range(count):
        batches[index % 2].exchange()
        witnesses[index % 2].look()


def _differences(witnesses: list[Witness], device: Any) -> list[str]:
    counts = [witness.count(device.get) for witness in witnesses]
    return [
        f"({case}): {count} elements differed from the first round"
        for case, count in zip(KINDS, counts, strict=True)
        if count
    ]


def run(job: Job) -> Answer:
    """The section."""
    num_rounds = job.pick(10_000, 400, 40)
    found = run_ranks(WORLD, _rank, job.device, num_rounds, job.say, timeout_s=TIMEOUT_S)
    problems = [text for texts, _ in found for text in texts]
    memory = found[0][1]
    growth = memory[-1] - memory[0] if memory else 0
    if growth > 0:
        problems.append(f"torch's memory grew by {growth} bytes")
    what = f"{num_rounds} rounds of EP{WORLD}, two kinds in turn, always the same bits"
    return verdict(problems, what, rounds=num_rounds, growth_bytes=growth)
