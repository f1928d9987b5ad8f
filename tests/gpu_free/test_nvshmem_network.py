"""Heaps with peers behind a network: what NVSHMEM is started with and asked for, which kernels are
taken, what is refused. Ranks are threads with a fake nvshmem4py.
"""

import json
import os
import re
from types import SimpleNamespace

import heaps
import pytest
from heaps import NUM_BYTES, error_of, on_ranks

from deep_ll import _native, gpu_memory
from deep_ll.errors import ArgumentError, LinkUnavailable
from deep_ll.runtime.cuda import (
    demand,
    ibgda,
    network,
    nvlink,
    nvml,
    nvshmem_settings,
    preflight,
)
from deep_ll.runtime.cuda.demand import Demand
from deep_ll.runtime.paths import Wish

REFUSED = Demand(Wish("allow_nvlink_traffic=False"))
TWO_NODES = Demand(Wish(ranks_per_node=2))


@pytest.fixture(autouse=True)
def cluster(monkeypatch, tmp_path):
    """Hosts with cards that GPUs drive themselves, kernels for NVSHMEM 3.4.5 and 3.7.2."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith("NVSHMEM_")]:
        del os.environ[name]
    for version in ("3.4.5", "3.7.2"):
        minor = version[:3]
        facts = {"nvshmem": version, "file": f"net_{minor}.fatbin"}
        (tmp_path / f"net_{minor}.json").write_text(json.dumps(facts))
    cards = tmp_path / "infiniband"
    (cards / "mlx5_0").mkdir(parents=True)
    modules = network.built(tmp_path)
    monkeypatch.setattr(network, "built", lambda: modules)
    monkeypatch.setattr(demand, "_CARDS", cards)
    monkeypatch.setattr(ibgda, "may_drive", lambda: True)
    monkeypatch.setattr(preflight, "require", lambda index: None)
    monkeypatch.setattr(nvlink, "place_of", heaps.place)
    monkeypatch.setattr(nvml, "nvlink_between", lambda *pair: (True, "NVLink"))
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


def opened(rank, wanted, version="3.4.5"):
    rank.fake.version = version
    heap = rank.open(demand=wanted)
    heap.close()
    rank.library.finalize()
    return heap, rank.fake


@pytest.mark.parametrize("version", ["3.4.5", "3.7.2"])
def test_peers_of_other_nodes_are_behind_the_network(version):
    for heap, fake in on_ranks(4, lambda rank: opened(rank, TWO_NODES, version)):
        far = [peer for peer in range(4) if peer // 2 != heap.rank // 2]
        assert [path.peer for path in heap.paths if path.kind == "link"] == far
        assert all("another node of 2 ranks" in heap.paths[peer].reason for peer in far)
        # What is for them is built in this rank's own heap, and outputs wait behind it.
        assert all(heap.bases[peer] == heap.memory.data_ptr() for peer in far)
        window = _native.Window.carve(NUM_BYTES, 4)
        assert heap.num_bytes == NUM_BYTES
        assert heap.memory.numel() == window.outputs(1) + window.combine.slot_bytes
        assert heap.network.linked.tolist() == [peer in far for peer in range(4)]
        assert heap.network.image.name == f"net_{version[:3]}.fatbin"
        names = fake.names()
        # Only such a NVSHMEM gives queue pairs, and it must know the kernels after them.
        assert ("create_queues" in names) == (version == "3.7.2")
        late = [
            name for name in names if name.startswith(("culib", "load_", "quiet", "free", "fin"))
        ]
        assert late == [
            *("load_kernels", "culibrary_init", "quiet_on_stream", "free_tensor"),
            *("culibrary_finalize", "finalize"),
        ]
        queues = heap.network.kept[0].tolist()
        assert queues == ([7, 8, 9, 10] if version == "3.7.2" else [1, 1, 1, 1])


def test_settings_are_those_of_deepep_but_the_user_comes_first():
    os.environ["NVSHMEM_QP_DEPTH"] = "4096"
    for _, fake in on_ranks(2, lambda rank: opened(rank, REFUSED)):
        environment = fake.environment
        assert environment["NVSHMEM_IB_ENABLE_IBGDA"] == "1"
        assert environment["NVSHMEM_DISABLE_P2P"] == "1"
        assert environment["NVSHMEM_IBGDA_NUM_RC_PER_PE"] == "4"
        assert environment["NVSHMEM_QP_DEPTH"] == "4096"
        assert "NVSHMEM_REMOTE_TRANSPORT" not in environment


def test_a_cpu_drives_cards_that_gpus_cannot(monkeypatch):
    monkeypatch.setattr(ibgda, "may_drive", lambda: False)
    for _, fake in on_ranks(2, lambda rank: opened(rank, REFUSED)):
        assert "NVSHMEM_IB_ENABLE_IBGDA" not in fake.environment


def test_queue_pairs_only_where_a_peer_needs_them():
    for heap, fake in on_ranks(2, lambda rank: opened(rank, Demand(), "3.7.2")):
        assert heap.network is None
        assert "create_queues" not in fake.names()
        assert fake.environment["NVSHMEM_REMOTE_TRANSPORT"] == "none"
        assert heap.memory.numel() == NUM_BYTES


def test_forced_links_need_no_card(monkeypatch, tmp_path):
    monkeypatch.setattr(demand, "_CARDS", tmp_path / "none")
    for heap, fake in on_ranks(2, lambda rank: opened(rank, Demand(forced=True))):
        assert [path.kind for path in heap.paths].count("link") == 1
        assert fake.environment["NVSHMEM_REMOTE_TRANSPORT"] == "none"
        assert "NVSHMEM_DISABLE_P2P" not in fake.environment


def test_without_cards_or_kernels_there_is_no_way(monkeypatch, tmp_path):
    monkeypatch.setattr(demand, "_CARDS", tmp_path / "none")
    for text in on_ranks(2, lambda rank: error_of(lambda: rank.open(demand=REFUSED))):
        assert text.startswith("LinkUnavailable: allow_nvlink_traffic=False, but there is no RDMA")
    monkeypatch.setattr(nvml, "nvlink_between", lambda *pair: (False, "PCIe"))
    monkeypatch.setattr(network, "built", dict)
    for text in on_ranks(2, lambda rank: error_of(rank.open)):
        assert "PeerError: rank" in text
        assert "PCIe" in text


def test_nvshmem_that_runs_without_a_network_stays_so():
    def work(rank):
        rank.open()
        return error_of(lambda: rank.open(demand=REFUSED))

    for text in on_ranks(2, work):
        assert "NVSHMEM was started in this process for peers that NVLink joins" in text


@pytest.mark.parametrize(
    ("loaded", "built", "text"),
    [
        ("3.4.5", ["3.4.5"], ""),
        ("3.5.21", ["3.5.19"], ""),
        ("3.7.0", ["3.4.5", "3.7.2"], ""),
        ("3.6.5", ["3.4.5", "3.7.2"], "for 3.4.5, 3.7.2: build deep_ll again"),
        ("3.5.21", ["3.5.12"], "(that of 3.5.12 is not taken: NVSHMEM 3.5.19 changed"),
        ("3.5.12", ["3.5.21"], "(that of 3.5.21 is not taken: NVSHMEM 3.5.19 changed"),
        ("3.4.5", [], "for none: build"),
    ],
)
def test_the_module_fits_what_was_loaded(tmp_path, loaded, built, text):
    modules = {version: tmp_path / version for version in built}
    if not text:
        assert network.choose(loaded, modules) == tmp_path / built[-1]
        return
    with pytest.raises(LinkUnavailable) as error:
        network.choose(loaded, modules)
    assert text in str(error.value)
    assert loaded in str(error.value)


@pytest.mark.parametrize(("max_tokens", "depth"), [(128, 264), (512, 1032)])
def test_queue_pairs_hold_what_a_call_sends(max_tokens, depth):
    shape = _native.Shape(16, 0, 256, max_tokens, 7168, 8, 1)
    made = network.Network(None, depth, None, None, ())
    made.check_depth(shape)
    with pytest.raises(ArgumentError) as error:
        network.Network(None, depth - 1, None, None, ()).check_depth(shape)
    for number in (max_tokens, 8 * max_tokens, depth, depth - 1):
        assert str(number) in str(error.value)


def kinds_of(rank, num_bytes):
    """What a session on such a heap knows its calls by."""
    heap = rank.open(num_bytes, demand=REFUSED)
    memory = SimpleNamespace(heap=heap, kinds={})
    return heap, gpu_memory.GpuKinds(memory, False, rank.device, None)


def test_outputs_wait_behind_the_heap(monkeypatch):
    monkeypatch.setattr(gpu_memory, "is_captured", lambda stream: False)
    num_bytes = _native.Shape(2, 0, 16, 8, 256, 4, 1).heap_bytes

    def work(rank):
        heap, kinds = kinds_of(rank, num_bytes)
        kind = kinds.of((8, 256, 16, 4, 1))
        window = _native.Window.carve(num_bytes, 2)
        start = heap.memory.data_ptr()
        assert [each.data_ptr() - start for each in kind.combine] == [
            window.outputs(0),
            window.outputs(1),
        ]
        assert kind.combine[1].shape == (8, 16, 256)
        return True

    assert on_ranks(2, work) == [True, True]


def test_rows_on_their_way_need_room(monkeypatch):
    monkeypatch.setattr(gpu_memory, "is_captured", lambda stream: False)
    sizes, num_bytes = (8, 256, 4, 4, 0), _native.Shape(2, 0, 4, 8, 256, 4, 0).heap_bytes

    def work(rank):
        text = error_of(lambda: kinds_of(rank, num_bytes)[1].of(sizes))
        enough = int(re.search(r"num_rdma_bytes=(\d+)", text)[1])
        assert kinds_of(rank, enough)[1].of(sizes) is not None
        return text

    for text in on_ranks(2, work):
        assert "ArgumentError: num_max_dispatch_tokens_per_rank=8, top-k 4, hidden=256" in text


def opened_with(status):
    def work(rank):
        rank.fake._culibrary_init = lambda handle: status
        return error_of(lambda: rank.open(demand=REFUSED))

    return work


def test_kernels_that_nvshmem_does_not_take():
    for text in on_ranks(2, opened_with(7)):
        assert text.startswith("LinkUnavailable: NVSHMEM does not take the kernels")
        assert "(status 7)" in text


def test_different_libraries_are_found_before_anything_collective():
    def work(rank):
        rank.fake.version = ("3.7.2", "3.4.5")[rank.rank]
        return error_of(lambda: rank.open(demand=REFUSED)), rank.fake.names()

    for text, names in on_ranks(2, work):
        assert "ranks have loaded different NVSHMEM: ['3.7.2', '3.4.5']" in text
        assert "create_queues" not in names


def test_a_fixed_heap_has_room_for_outputs():
    os.environ["NVSHMEM_DISABLE_CUDA_VMM"] = "1"
    for heap, fake in on_ranks(2, lambda rank: opened(rank, REFUSED)):
        assert int(fake.environment["NVSHMEM_SYMMETRIC_SIZE"]) > heap.memory.numel()


def test_a_new_job_has_queue_pairs_of_its_own():
    def work(rank):
        rank.fake.version = "3.7.2"
        for _ in range(2):
            rank.open(demand=REFUSED)
            rank.open(demand=REFUSED)
            rank.library.finalize()
        return rank.fake.names().count("create_queues")

    assert on_ranks(2, work) == [2, 2]


def test_puts_of_the_last_kernels_are_awaited():
    for _, fake in on_ranks(2, lambda rank: opened(rank, REFUSED)):
        names = [name for name in fake.names() if name != "gather"]
        end = names.index("quiet_on_stream")
        assert names[end - 1 : end + 3] == [
            *("synchronize", "quiet_on_stream", "synchronize", "free_tensor")
        ]


def by_pcie_and_cards(rank):
    return error_of(rank.open)


def test_peers_that_nvshmem_would_store_to(monkeypatch):
    """It stores to all whose memory it maps, whatever deep_ll calls them."""

    def later(rank):
        rank.open(demand=TWO_NODES)
        return error_of(lambda: rank.open(demand=REFUSED))

    for text in on_ranks(4, later):
        assert "(allow_nvlink_traffic=False), but NVSHMEM maps its memory" in text
        assert "set NVSHMEM_DISABLE_P2P=1" in text
    monkeypatch.setattr(nvml, "nvlink_between", lambda *pair: (False, "PCIe"))
    for text in on_ranks(2, by_pcie_and_cards):
        assert "NVSHMEM maps its memory" in text
    os.environ["NVSHMEM_DISABLE_P2P"] = "1"
    for text in on_ranks(2, by_pcie_and_cards):
        assert text == "nothing raised"


def test_an_argument_beats_the_environment_and_leaves_it():
    os.environ["NVSHMEM_DISABLE_P2P"] = "0"
    with nvshmem_settings.wish_of_the_user():
        settings = nvshmem_settings.apply(NUM_BYTES, REFUSED.settings())
        assert os.environ["NVSHMEM_DISABLE_P2P"] == "1"
        assert ("NVSHMEM_DISABLE_P2P", "1", False) in [(s[0], s[1], s[3]) for s in settings]
    assert os.environ["NVSHMEM_DISABLE_P2P"] == "0"
    del os.environ["NVSHMEM_DISABLE_P2P"]
    with nvshmem_settings.wish_of_the_user():
        nvshmem_settings.apply(NUM_BYTES, REFUSED.settings())
    assert "NVSHMEM_DISABLE_P2P" not in os.environ


def test_links_are_forced_only_where_nvlink_is(monkeypatch):
    monkeypatch.setattr(nvml, "nvlink_between", lambda *pair: (False, "PCIe"))
    for text in on_ranks(2, lambda rank: error_of(lambda: rank.open(demand=Demand(forced=True)))):
        assert "DEEP_LL_FORCE_LINK=1 is for checks among GPUs that NVLink joins" in text


def test_gpus_drive_cards_if_all_can(monkeypatch):
    asked = []
    monkeypatch.setattr(ibgda, "may_drive", lambda: asked.append(0) or len(asked) % 2 == 0)
    for _, fake in on_ranks(2, lambda rank: opened(rank, REFUSED)):
        assert "NVSHMEM_IB_ENABLE_IBGDA" not in fake.environment
