"""Dispatch and combine against the oracle, bit for bit, where peers are reached over the link."""

from collections.abc import Callable
from dataclasses import replace

import link_exchange_work as work
import orders
import pytest
from cases import Case
from test_exchange import OTHERS, TABLE, TOKENS, WAYS, WORLDS
from test_order import STEPS, parse
from test_order import WAYS as ORDERS
from topologies import ALL_LINK, NO_TRAFFIC, Topology, nodes_of

import deep_ll
from deep_ll import _native
from deep_ll.testing import RankPool

size_hint = deep_ll.Buffer.get_low_latency_rdma_size_hint
Pools = Callable[[int], RankPool]

pytestmark = pytest.mark.skipif(not _native.HAVE_UCX, reason="built without UCX")


def two_nodes(case: Case) -> Topology:
    """The first node has a rank more if the number is odd."""
    return nodes_of((case.world + 1) // 2)


def with_eight_ranks(case: Case) -> Case:
    """The same, small."""
    tokens = case.tokens if isinstance(case.tokens, tuple) else (min(case.tokens, FEW),)
    return replace(
        case,
        world=8,
        experts=min(max(case.experts, 8), 64) if case.world < 8 else case.experts,
        hidden=case.hidden if case.hidden <= WIDE else WIDE + case.hidden % WIDE,
        tokens=tuple(min(number, 4 * FEW) for number in 8 * tokens)[:8],
        threads=3 if (case.threads or 1) > 1 else None,
        rounds=1,  # of many in the same buffer
    )


# With two ranks, two nodes are all link.
MIXED = [case for case in WORLDS if case.world > 2]
FEW, WIDE = 3, 1024  # tokens, channels
EIGHT = list(dict.fromkeys(with_eight_ranks(case) for case in TABLE if case.world <= 8))
# Their rows are longer than those in FP8 that were dispatched.
FIRST_IN_LOGFMT = [Case(logfmt=True, world=2, hidden=hidden, tokens=5) for hidden in (384, 7168)]
BOTH = [ALL_LINK, nodes_of(2)]


@pytest.mark.parametrize("case", WORLDS, ids=str)
def test_all_by_link(pools: Pools, case: Case) -> None:
    num_bytes = pools(case.world).run(work.exchange, case, ALL_LINK)
    assert (min(num_bytes) > 0) == (case.world > 1)


@pytest.mark.parametrize("case", FIRST_IN_LOGFMT, ids=str)
def test_first_rows_in_logfmt(pools: Pools, case: Case) -> None:
    """In a buffer of their own: no call before has asked for more memory to build rows in."""
    pools(case.world).run(work.exchange, case, ALL_LINK)


@pytest.mark.parametrize("case", MIXED, ids=str)
def test_two_nodes(pools: Pools, case: Case) -> None:
    pools(case.world).run(work.exchange, case, two_nodes(case))


@pytest.mark.timeout(200)  # on a busy machine; the first needs 15 s of two cores for the oracle
@pytest.mark.parametrize("topology", [ALL_LINK, nodes_of(4), nodes_of(2), nodes_of(5)], ids=str)
def test_table_on_nodes(pools: Pools, topology: Topology) -> None:
    """Each case on eight nodes, two, four, and uneven ones: over few buffers, on one set of
    processes."""
    num_bytes = max(size_hint(case.max_tokens, case.hidden, 8, case.experts) for case in EIGHT)
    for threads in (None, 3):
        cases = [case for case in EIGHT if case.threads == threads]
        pools(8).run(work.table, cases, topology, num_bytes, timeout_s=190)


@pytest.mark.parametrize("case", [WAYS[0], TOKENS[0], OTHERS[-1]], ids=str)
def test_by_the_argument(pools: Pools, case: Case) -> None:
    pools(case.world).run(work.exchange, case, NO_TRAFFIC)


@pytest.mark.parametrize("topology", BOTH, ids=str)
@pytest.mark.parametrize("way", ORDERS)
@pytest.mark.parametrize("steps", STEPS)
def test_two_batches(pools: Pools, steps: str, way: str, topology: Topology) -> None:
    pools(3).run(work.under, topology, orders.run_steps, ORDERS[way], parse(STEPS[steps]))


@pytest.mark.parametrize("topology", BOTH, ids=str)
@pytest.mark.parametrize("way", ORDERS)
@pytest.mark.parametrize(
    "rule",
    [
        orders.dispatch_only,
        orders.combine_twice,
        orders.mask_after_dispatch,
        orders.zero_copy_ignores_x,
    ],
    ids=lambda rule: rule.__name__,
)
def test_orders(pools: Pools, rule: Callable, way: str, topology: Topology) -> None:
    pools(3).run(work.under, topology, rule, ORDERS[way])


@pytest.mark.parametrize("topology", BOTH, ids=str)
def test_several_buffers(pools: Pools, topology: Topology) -> None:
    cases = [
        Case(world=3, experts=3, topk=2),
        Case(world=3, experts=9, hidden=512, cast="bf16", zero_copy=True),
        Case(world=3, experts=6, mode="hook"),
    ]
    pools(3).run(work.under, topology, orders.several_buffers, cases)


@pytest.mark.parametrize("topology", BOTH, ids=str)
def test_many_rounds_of_changing_sizes(pools: Pools, topology: Topology) -> None:
    largest = Case(world=4, experts=16, max_tokens=32, tokens=32, hidden=1024, by_bytes=True)
    smaller = work.sizes_at_random(largest, 25)
    pools(4).run(work.under, topology, orders.change_shapes, largest, smaller)


@pytest.mark.parametrize("zero_copy", [False, True])
def test_hooks_called_late(pools: Pools, zero_copy: bool) -> None:
    pools(3).run(work.late_hooks, Case(world=3, experts=6, mode="hook", zero_copy=zero_copy))


@pytest.mark.parametrize("mode", ["plain", "hook"])
def test_more_than_sockets_hold(pools: Pools, mode: str) -> None:
    # 28 MB from each rank to the other.
    case = Case(world=2, experts=2, topk=2, max_tokens=2048, tokens=2048, hidden=7168, mode=mode)
    pools(2).run(work.large_rows, case)
