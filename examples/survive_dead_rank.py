"""A rank is killed; the others go on without it; a new process takes its place.

    python examples/survive_dead_rank.py

Ranks are processes that find each other by a store, not by a process group: no process group can
be joined again. What each rank gets is checked: expert e answers a row with (e + 1) * row.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import deep_ll

RANKS, EXPERTS, HIDDEN, TOKENS, TOP_K = 3, 6, 128, 4, 2
DEADLINE_S = 20.0  # a rank whose process has ended is noticed at once


class Rank:
    """One rank's end."""

    def __init__(self, rank: int, port: int, rejoin: bool) -> None:
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        self.rank = rank
        self.buf = deep_ll.Buffer(
            deep_ll.StoreGroup(store, rank, RANKS, rejoin=rejoin),
            max_tokens_per_rank=TOKENS,
            hidden=HIDDEN,
            num_experts=EXPERTS,
            timeout_s=DEADLINE_S,
            enable_shrink=True,
        )

    def step(self, number: int) -> list[int]:
        """One MoE layer, checked; who was left out."""
        random = torch.Generator().manual_seed(100 * number + self.rank)
        x = torch.randint(-4, 5, (TOKENS, HIDDEN), generator=random).bfloat16()
        chosen = torch.rand(TOKENS, EXPERTS, generator=random).topk(TOP_K).indices
        weights = torch.ones(TOKENS, TOP_K)
        rows, count, handle, _, _ = self.buf.low_latency_dispatch(
            x, chosen, TOKENS, EXPERTS, use_fp8=False
        )
        assert isinstance(rows, torch.Tensor)
        outputs = torch.zeros_like(rows)
        for local, used in enumerate(count.tolist()):
            expert = self.rank * len(rows) + local
            outputs[local, :used] = (expert + 1) * rows[local, :used]
        total, _, _ = self.buf.low_latency_combine(outputs, chosen, weights, handle)
        status = torch.zeros(RANKS, dtype=torch.int32)
        self.buf.low_latency_query_mask_buffer(status)
        there = status[chosen // (EXPERTS // RANKS)] == 0  # choices whose experts answered
        expected = ((chosen + 1) * there).sum(1, keepdim=True) * x.float()
        assert torch.equal(total, expected.bfloat16()), f"rank {self.rank}, step {number}"
        return status.nonzero().flatten().tolist()

    def rejoin(self, rank: int) -> None:
        """All that live call this at the same place."""
        self.buf.rejoin(rank)


def serve(rank: int, port: int, rejoin: bool, orders: Connection) -> None:
    """The life of a rank process."""
    torch.set_num_threads(1)
    mine = Rank(rank, port, rejoin)
    orders.send("ready")
    while (order := orders.recv()) is not None:
        name, argument = order
        orders.send(getattr(mine, name)(argument))
    mine.buf.destroy()


class Job:
    """What a supervisor does."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["torch.distributed", "deep_ll"])
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.ranks: dict[int, tuple[multiprocessing.process.BaseProcess, Connection]] = {}

    def start(self, rank: int, rejoin: bool = False) -> None:
        """A process for a rank."""
        ours, theirs = self.context.Pipe()
        args = (rank, self.store.port, rejoin, theirs)
        process = self.context.Process(target=serve, args=args, daemon=True)
        process.start()
        self.ranks[rank] = process, ours

    def tell(self, *order: object) -> list[object]:
        """Lets all living ranks do something; what they answer."""
        pipes = [pipe for _, pipe in self.ranks.values()]
        for pipe in pipes:
            pipe.send(order)
        return [pipe.recv() for pipe in pipes]

    def kill(self, rank: int) -> None:
        """Ends a rank's process where it is."""
        self.ranks.pop(rank)[0].kill()

    def end(self) -> None:
        """Ends all."""
        for process, pipe in self.ranks.values():
            pipe.send(None)
            process.join()


def main() -> None:
    """Loses a rank and gets it back."""
    job = Job()
    for rank in range(RANKS):
        job.start(rank)
    for _, pipe in job.ranks.values():
        pipe.recv()
    print("all ranks: left out", job.tell("step", 0))
    job.kill(1)
    print("rank 1 was killed: left out", job.tell("step", 1))
    print("and once more: left out", job.tell("step", 2))
    living = list(job.ranks.values())
    job.start(1, rejoin=True)
    for _, pipe in living:
        pipe.send(("rejoin", 1))
    for _, pipe in (*living, job.ranks[1]):
        pipe.recv()
    print("rank 1 is back: left out", job.tell("step", 3))
    job.end()


if __name__ == "__main__":
    main()
