"""What test_gpu_session_masks.py runs: buffers on a GPU that go on without some ranks."""

from typing import Any

import torch
from cases import Case, make_inputs
from exchange import round_trip, send
from shrink_work import Survivor

from twin.cases import make_buffer, on_ranks
from twin.graph_work import error_of


def status_of(buf: Any) -> list[int]:
    status = torch.zeros(buf.group_size, dtype=torch.int32)
    buf.low_latency_query_mask_buffer(status)
    return status.tolist()


def by_hand(group: Any, case: Case) -> tuple[str, list[int]]:
    """Rank 0 masks the last rank: that leaves, the others follow."""
    last = case.world - 1
    with make_buffer(group, case, enable_shrink=True, timeout_s=20) as buf:
        for rank, masked in ((last, True), (last, False), (1, True)):
            buf.low_latency_update_mask_buffer(rank, masked) if buf.rank == 0 else None
        seen = status_of(buf)
        buf.low_latency_clean_mask_buffer()
        assert (seen, status_of(buf)) == ([0, int(buf.rank == 0), 0], [0, 0, 0])
        round_trip(buf, case, 0)
        group.barrier()
        if buf.rank == 0:
            buf.low_latency_update_mask_buffer(last, True)

        def two_rounds() -> None:
            for round_idx in (1, 2):
                send(buf, case, make_inputs(case, round_idx)[buf.rank])
            buf.check()

        text = error_of(two_rounds)
        return text, status_of(buf) if text == "nothing raised" else []


def leaves(group: Any, case: Case, victim: int) -> tuple[list[list[list[int]]], float]:
    """A rank does not come after the first round. Who was masked after each call of the others,
    whose results are right, and how long the longest call took."""
    buf = make_buffer(group, case, enable_shrink=True, timeout_s=0.5)
    one = Survivor(buf, case, [])
    one.warm()
    group.barrier()
    if buf.rank != victim:
        one.run()
        one.check()
    group.barrier()
    buf.destroy()
    return [seen.masked for seen in one.seen], one.longest_s


def refused(group: Any, case: Case) -> list[str]:
    """Masks of a buffer that has none, and calls that cannot be."""
    status = torch.zeros(case.world, dtype=torch.int32)
    with make_buffer(group, case) as buf:
        texts = [error_of(lambda: buf.low_latency_query_mask_buffer(status))]
    with make_buffer(group, case, enable_shrink=True) as buf:
        texts.append(error_of(lambda: buf.low_latency_update_mask_buffer(case.world, True)))
        texts.append(error_of(lambda: buf.low_latency_update_mask_buffer(buf.rank, True)))
        texts.append(error_of(lambda: buf.low_latency_query_mask_buffer(status[:1])))
        texts.append(error_of(lambda: buf.low_latency_query_mask_buffer(status.long())))
    return texts


def run(name: str, case: Case, *args: Any) -> list[Any]:
    return on_ranks(case.world, globals()[name], case, *args)
