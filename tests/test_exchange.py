"""Dispatch and combine against the oracle, bit for bit, over a table of cases."""

from collections.abc import Callable
from itertools import product

import pytest
from cases import CASTS, Case
from exchange import exchange

from deep_ll.testing import RankPool, run_ranks

WAYS = [
    Case(cast=cast, mode=mode, zero_copy=zero_copy, routing="holes")
    for cast, mode, zero_copy in product(CASTS, ["plain", "hook", "event"], [False, True])
]
WORLDS = [
    Case(world=world, experts=experts, topk=min(4, experts), zero_copy=zero_copy)
    for world, experts in [(1, 1), (1, 8), (2, 2), (3, 6), (5, 10), (6, 6), (7, 7), (8, 64)]
    for zero_copy in [False, True]
] + [
    Case(world=2, experts=1, topk=1),
    Case(world=3, experts=2, topk=2, zero_copy=True, cast="ue8m0"),
    Case(world=4, experts=9, routing="holes", mode="hook"),
    Case(world=4, experts=9, cast="bf16", zero_copy=True, threads=2),
    Case(world=5, experts=6, topk=6, tokens=(3, 0, 16, 1, 7), mode="event"),
    Case(world=7, experts=64, topk=8, hidden=384),
    Case(world=8, experts=17, topk=3, zero_copy=True),
    Case(world=8, experts=3, topk=3, tokens=4, rounds=7, by_bytes=True),
    Case(world=12, experts=24, tokens=8, rounds=2),
    Case(world=12, experts=12, tokens=8, rounds=2, mode="hook", zero_copy=True),
    Case(world=16, experts=32, tokens=8, rounds=2, cast="ue8m0", mode="hook"),
    Case(world=16, experts=16, tokens=8, rounds=2, cast="bf16", zero_copy=True),
]
TOKENS = [
    Case(tokens=tokens, cast=cast, mode=mode, zero_copy=cast == "bf16")
    for tokens in [(0, 16, 3, 1), (0, 0, 0, 5), 0, 1]
    for cast, mode in [("fp8", "plain"), ("bf16", "hook"), ("ue8m0", "event")]
]
ROUTINGS = [
    Case(routing=routing, cast=cast, zero_copy=zero_copy)
    for routing in ["hot", "none"]
    for cast, zero_copy in product(["fp8", "bf16"], [False, True])
] + [Case(routing="hot", topk=1, world=3, experts=3, tokens=(16, 0, 9))]
VALUES = [
    Case(values=values, cast=cast, world=2, zero_copy=cast == "bf16")
    for values, cast in product(["zeros", "huge", "tiny", "wild"], CASTS)
]
HIDDENS = (
    [
        Case(world=2, hidden=hidden, cast=cast, tokens=5, zero_copy=hidden % 256 == 0)
        for hidden in [128, 384, 512, 640, 1024, 2560, 7168, 8192]
        for cast in ["fp8", "ue8m0"]
    ]
    + [Case(world=2, hidden=hidden, cast="bf16", tokens=5) for hidden in [8, 72, 1000, 4096]]
    + [Case(world=2, hidden=hidden, cast="bf16", zero_copy=True) for hidden in [8, 72, 1000]]
)
TOPKS = [
    Case(world=2, experts=64, topk=topk, cast=cast, zero_copy=topk % 2 == 1)
    for topk in [1, 2, 3, 5, 7, 8, 9, 11, 16, 31, 32]
    for cast in ["fp8", "bf16"]
]
MAX_TOKENS = [
    Case(world=3, experts=3, topk=2, hidden=128, max_tokens=max_tokens, tokens=tokens, mode=mode)
    for max_tokens, tokens, mode in [
        (1, 1, "plain"),
        (1, (1, 0, 1), "hook"),
        (7, (7, 2, 5), "plain"),
        (512, (512, 1, 300), "event"),
        (4096, (3, 4096, 20), "plain"),
    ]
]
OTHERS = [
    *[Case(threads=n, cast=cast, routing="hot") for n in [1, 2, 3] for cast in ["fp8", "bf16"]],
    *[Case(threads=3, tokens=tokens, zero_copy=True) for tokens in [0, 1, 16]],
    *[Case(idx="int32", cast=cast, routing="holes") for cast in ["fp8", "bf16"]],
    *[Case(out=True, mode=mode) for mode in ["plain", "hook", "event"]],
    *[Case(by_bytes=True, cast=cast, zero_copy=True, mode="hook") for cast in ["ue8m0", "bf16"]],
    Case(rounds=25, hidden=128, tokens=4),
    Case(world=8, experts=256, tokens=6, max_tokens=128, hidden=7168, topk=8, rounds=2),
]
LOGFMT = [
    Case(logfmt=True, cast=cast, mode=mode, routing="holes", threads=threads)
    for cast, mode, threads in [("bf16", "plain", 2), ("fp8", "hook", 1), ("ue8m0", "event", 3)]
] + [
    *[
        Case(logfmt=True, values=values, world=2, cast="bf16", hidden=640)
        for values in ["zeros", "huge", "tiny", "wild"]
    ],
    *[Case(logfmt=True, world=2, hidden=hidden, tokens=5) for hidden in [128, 384, 7168, 8320]],
    *[Case(logfmt=True, world=2, experts=64, topk=topk) for topk in [1, 11, 32]],
    Case(logfmt=True, world=3, experts=7, tokens=(16, 0, 9), out=True, idx="int32"),
]
TABLE = WAYS + WORLDS + TOKENS + ROUTINGS + VALUES + HIDDENS + TOPKS + MAX_TOKENS + OTHERS + LOGFMT
TABLE = sorted(TABLE, key=lambda case: case.world)  # a pool of ranks serves its cases in a row
ON_THREADS = [
    case
    for case in [*WAYS[::3], *WORLDS[::3], *TOKENS[::2], *OTHERS, *LOGFMT[::3]]
    if case.world < 8
]


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_processes(pools: Callable[[int], RankPool], case: Case) -> None:
    pools(case.world).run(exchange, case)


@pytest.mark.parametrize("case", ON_THREADS, ids=str)
def test_threads(case: Case) -> None:
    run_ranks(case.world, exchange, case)
