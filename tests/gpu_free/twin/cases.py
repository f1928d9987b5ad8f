"""What test_gpu_session.py runs in a process with the fake driver."""

import exchange
from cases import Case
from twin import world

import deep_ll
from deep_ll.testing import run_ranks


def _buffer(group, case: Case, **options) -> deep_ll.Buffer:
    return deep_ll.Buffer(
        group,
        max_tokens_per_rank=case.max_tokens,
        hidden=case.hidden,
        num_experts=case.experts,
        device="cuda",
        **options,
    )


def run_exchange(case: Case) -> list[tuple[str, int]]:
    """All rounds of a case, compared with the oracle; the launches of rank 0."""
    fake = world.enter()
    fake.forget_launches()
    exchange.make_buffer = _buffer
    streams = run_ranks(case.world, _exchange, case)
    return [
        (launch.name, launch.stream)
        for launch in fake.launches()
        if launch.stream & ~world.SIDE == streams[0]
    ]


def _exchange(group, case: Case) -> int:
    exchange.exchange(group, case)
    return world.own_stream()
