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
from deep_ll.runtime.cuda import demand, ibgda, network, nvlink, nvml, preflight
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
