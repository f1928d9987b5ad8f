"""Which way each peer is reached, who chooses it, and what is told about it."""

from collections.abc import Callable
from itertools import product

import path_work as work
import pytest
from cases import Case
from topologies import ALL_LINK, ALL_P2P, NO_TRAFFIC, Topology, nodes_of

import deep_ll
from deep_ll import _native, env
from deep_ll.testing import RankPool, run_ranks

Pools = Callable[[int], RankPool]

needs_ucx = pytest.mark.skipif(not _native.HAVE_UCX, reason="built without UCX")
TRIO = Case(world=3, experts=6)
HOOKED = Case(world=4, mode="hook")

SETTINGS = [Topology(*said) for said in product([None, True, False], [None, "0", "1"])]
CONTRADICTIONS = [Topology(True, "1"), Topology(False, "0")]


@needs_ucx
@pytest.mark.parametrize("said", SETTINGS, ids=str)
def test_argument_and_environment(pools: Pools, said: Topology) -> None:
    reason = "allow_nvlink_traffic=False" if said.allow is False else "NVSHMEM_DISABLE_P2P=1"
    for rank, chosen in enumerate(pools(3).run(work.choose, TRIO, [said] * 3)):
        assert chosen.kinds == said.kinds(rank, 3)
        for peer, kind in enumerate(chosen.kinds):
            assert chosen.reasons[peer]
            assert (chosen.reasons[peer] == reason) == (kind == "link")
        assert len(chosen.warned) == (said in CONTRADICTIONS)
        for text, file in chosen.warned:
            assert f"allow_nvlink_traffic={said.allow}" in text
            assert f"NVSHMEM_DISABLE_P2P={said.disable}" in text
            assert file.endswith("exchange.py")  # the caller of Buffer


@needs_ucx
@pytest.mark.parametrize(("world", "per_node"), [(4, 2), (8, 5), (3, 1), (3, 8)])
def test_ranks_per_node(pools: Pools, world: int, per_node: int) -> None:
    case, topology = Case(world=world, experts=2 * world), nodes_of(per_node)
    for rank, chosen in enumerate(pools(world).run(work.choose, case, [topology] * world)):
        assert chosen.kinds == topology.kinds(rank, world)
        assert chosen.warned == []
        for kind, reason in zip(chosen.kinds, chosen.reasons, strict=True):
            names_variable = f"{per_node} ranks (DEEP_LL_RANKS_PER_NODE)" in reason
            assert names_variable == (kind == "link")


@needs_ucx
@pytest.mark.parametrize("odd", [NO_TRAFFIC, ALL_LINK, nodes_of(1)], ids=str)
def test_both_ends_take_the_same_way(pools: Pools, odd: Topology) -> None:
    """One rank does not map: to it, and only to it, the others take the link as well."""
    results = pools(3).run(work.choose, TRIO, [ALL_P2P, odd, ALL_P2P])
    assert [chosen.kinds for chosen in results] == [
        ["self", "link", "p2p"],
        ["link", "self", "link"],
        ["p2p", "link", "self"],
    ]
    assert results[0].reasons[1] == results[1].reasons[0] == results[2].reasons[1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("NVSHMEM_DISABLE_P2P", value) for value in ["2", "yes", "true", "-1", " "]]
    + [("DEEP_LL_RANKS_PER_NODE", value) for value in ["-1", "two", "1.5", "1 ", "0x2", "²"]],
)
def test_bad_values(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(deep_ll.ArgumentError, match=name) as caught:
        env.settings()
    assert repr(value) in str(caught.value)


def test_hooks_are_refused_beside_explicit_p2p(pools: Pools) -> None:
    for buffers in pools(4).run(work.use_hooks, HOOKED, Topology(allow=True)):
        for hooked in buffers:
            assert hooked.warned == []
            assert len(hooked.errors) == 3
            for text in hooked.errors:
                assert text.startswith("ArgumentError")
                assert "allow_nvlink_traffic=True" in text
                assert "allow_nvlink_traffic=False" in text  # one cure
                assert "without return_recv_hook" in text  # the other
    for rank, text in enumerate(pools(4).run(work.refused_combine, HOOKED)):
        assert f"ranks {[peer for peer in range(4) if peer != rank]}" in text


@pytest.mark.parametrize(
    "topology",
    [ALL_P2P, Topology(disable="0"), pytest.param(nodes_of(2), marks=needs_ucx)],
    ids=str,
)
def test_hooks_beside_p2p_warn_once_a_buffer(pools: Pools, topology: Topology) -> None:
    for rank, buffers in enumerate(pools(4).run(work.use_hooks, HOOKED, topology)):
        mapped = [peer for peer, kind in enumerate(topology.kinds(rank, 4)) if kind == "p2p"]
        for hooked in buffers:
            assert hooked.errors == []
            (text,) = hooked.warned
            assert f"ranks {mapped}" in text
            assert "allow_nvlink_traffic=False" in text


@needs_ucx
@pytest.mark.parametrize(
    "topology", [NO_TRAFFIC, ALL_LINK, nodes_of(1), Topology(True, None, 1)], ids=str
)
def test_hooks_without_p2p_are_quiet(pools: Pools, topology: Topology) -> None:
    for buffers in pools(4).run(work.use_hooks, HOOKED, topology):
        assert buffers == [work.Hooked([], [])] * 2


def test_thread_ranks_have_one_way_only() -> None:
    for allow in (None, True):
        assert run_ranks(2, work.thread_rank, Case(world=2), allow) == ["self,p2p", "p2p,self"]
    for text in run_ranks(2, work.thread_rank, Case(world=2), False):
        assert "allow_nvlink_traffic=False" in text
        assert "threads" in text
    # Who has no peers misses no path.
    assert run_ranks(1, work.thread_rank, Case(world=1), False) == ["self"]


def test_rank_without_peers_needs_no_link(pools: Pools) -> None:
    alone = Case(world=1)
    assert pools(1).run(work.without_library, alone, ALL_LINK, None) == [("", "", 0.0)]


@pytest.mark.parametrize("only_on", [None, 1])
@pytest.mark.parametrize("topology", [ALL_LINK, nodes_of(2)], ids=str)
def test_no_library(pools: Pools, topology: Topology, only_on: int | None) -> None:
    """Told at once, to all, though only some lack it: the peers, the reason, the cure."""
    results = pools(4).run(work.without_library, Case(), topology, only_on)
    for rank, (kind, text, took_s) in enumerate(results):
        behind = [peer for peer, way in enumerate(topology.kinds(rank, 4)) if way == "link"]
        assert kind == "LinkUnavailable"
        assert f"rank {rank} has no path to ranks {behind}" in text
        assert "DEEP_LL_RANKS_PER_NODE" in text or "NVSHMEM_DISABLE_P2P=1" in text
        assert "rank 1: " in text
        assert "/nowhere/libucp.so.0" in text
        assert "pip install 'deep_ll[net]'" in text
        assert took_s < 10
