"""Whatever is measured, as the harness sees it: started, checked, told to run, closed."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks import rank_side
from benchmarks.barrier import Barrier
from benchmarks.hooks import HookRuns
from benchmarks.peers.mpi_launch import MpiLaunch, MpiLaunchError
from benchmarks.product import Description
from benchmarks.shared_tensor import SharedTensor
from benchmarks.workload import MAX_ITERS, OPS, Inputs, Job, Shape
from deep_ll.testing import RankPool, RankTimeout

PRODUCT = "deep_ll"
LINKED = "deep_ll_link"  # the same with NVSHMEM_DISABLE_P2P=1
PRODUCTS = (PRODUCT, LINKED)
FLOORS = {PRODUCT: "floor", LINKED: "floor_link"}
KINDS = {
    PRODUCT: "benchmarks.product:DeepLL",
    LINKED: "benchmarks.product:DeepLL",
    "gloo": "benchmarks.peers.gloo:Gloo",
    "mpi": "benchmarks.peers.mpi:Mpi",
}
PEERS = tuple(name for name in KINDS if name not in PRODUCTS)
PRELOAD = [kind.split(":")[0] for kind in KINDS.values()]
TIMEOUT_S = 600.0  # of one command: 64 ranks on 2 cores take their time
# With many more ranks than cores MPI_Init takes 5 s mostly and minutes sometimes.
MPI_START_TIMEOUT_S = 90.0

Walls = dict[str, list[float]]  # milliseconds by operation


class Ranks:
    """A contestant with a process for every rank."""

    def __init__(self, name: str, shape: Shape, inputs: Inputs) -> None:
        self.name = name
        self._launch: MpiLaunch | None = None
        self._barrier = Barrier(shape.ep)
        self._stamps = SharedTensor([shape.ep, MAX_ITERS, len(OPS), 2], torch.float64)
        self._pool = RankPool(shape.ep, preload=PRELOAD)
        try:
            limit_s = TIMEOUT_S / 2
            job = Job(shape, inputs, self._barrier, self._stamps, limit_s, name == LINKED)
            self._start(job)
        except BaseException:
            self.kill()
            raise

    def check(self) -> None:
        """Compares every rank with the oracle."""
        self._call(rank_side.check)

    def run(self, num_iters: int) -> Walls:
        """From the first rank's begin to the last rank's end, of every iteration."""
        self._call(rank_side.run, num_iters)
        stamps = self._stamps.tensor[:, :num_iters]
        begin, end = stamps[..., 0].amin(0), stamps[..., 1].amax(0)
        walls = ((end - begin) * 1e3).T.tolist()
        return {op: walls[i] for i, op in enumerate(OPS) if begin[0, i] > 0}

    def describe(self) -> list[Description]:
        """How each rank of deep_ll reaches the others, and what it sends over the link."""
        return self._call(rank_side.describe)

    def run_hooks(self, num_iters: int) -> list[HookRuns]:
        """What each rank of deep_ll measured in hook mode."""
        return self._call(rank_side.run_hooks, num_iters)

    def close(self) -> None:
        """Ends the ranks in good order."""
        if self._pool.usable:
            self._call(rank_side.stop)
            self._pool.close()
        self._release()

    def kill(self) -> None:
        """Ends the ranks whatever they do."""
        self._pool.kill()
        self._release()

    def _start(self, job: Job) -> None:
        if self.name != "mpi":
            self._call(rank_side.start, KINDS[self.name], job)
            return
        self._launch = MpiLaunch(job.shape.ep)
        arguments = (KINDS[self.name], job, self._launch.environments)
        try:
            self._pool.run(rank_side.start, *arguments, timeout_s=MPI_START_TIMEOUT_S)
        except RankTimeout:
            late = f"its ranks were not up within {MPI_START_TIMEOUT_S:g} s"
            raise MpiLaunchError(late) from None

    def _call(self, function: Any, *args: object) -> list[Any]:
        return self._pool.run(function, *args, timeout_s=TIMEOUT_S)

    def _release(self) -> None:
        if self._launch is not None:
            self._launch.close()
            self._launch = None
        self._barrier.close()
        self._stamps.close()
