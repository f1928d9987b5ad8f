"""Heaps over NVSHMEM: the order of what is called, one verdict for all ranks, and which peers are
taken. Ranks are threads with a fake nvshmem4py; the last tests ask the real one.
"""

import inspect
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

import heaps
import pytest
import torch
from heaps import NUM_BYTES, error_of, on_ranks

from deep_ll.errors import GpuUnavailable
from deep_ll.runtime.cuda import loopback, nvlink, nvml, preflight
from deep_ll.runtime.cuda.nvlink import Place
from deep_ll.testing import run_ranks

NVLINK_BETWEEN = nvml.nvlink_between  # as it is without `clean`


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """A host where nothing is missing, NVLink joins all GPUs, and NVSHMEM is not configured."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith("NVSHMEM_")]:
        del os.environ[name]
    monkeypatch.setattr(preflight, "require", lambda index: None)
    monkeypatch.setattr(nvlink, "place_of", heaps.place)
    monkeypatch.setattr(nvml, "nvlink_between", lambda *pair: (True, "NVLink"))
    yield
    os.environ.clear()
    os.environ.update(before)


def test_each_step_comes_after_what_it_needs():
    def work(rank):
        rank.open()
        return rank.fake

    for fake in on_ranks(2, work):
        names = fake.names()
        steps = [name for name in names if name not in ("gather", "get_unique_id")]
        assert steps == [
            *("get_version", "init_status", "make_current", "set_current", "init"),
            *("init_status", "my_pe", "n_pes", "bytetensor", "synchronize", "ptr", "ptr"),
        ]
        # A verdict of all ranks before every collective step, and after the heap was cleared.
        for before, after in (
            *(("get_version", "init"), ("init", "bytetensor")),
            *(("bytetensor", "synchronize"), ("synchronize", "ptr")),
        ):
            assert "gather" in names[names.index(before) : names.index(after)]
        assert fake.log[names.index("synchronize")].args == (True,)
        # The library reads its environment when it is loaded.
        assert fake.environment["NVSHMEM_REMOTE_TRANSPORT"] == "none"


def test_a_heap_is_zero_and_knows_all_bases():
    def work(rank):
        heap = rank.open()
        assert int(heap.memory.sum()) == 0
        heap.view(8, torch.int32, 2, 3)[1, 2] = 7
        assert int(heap.memory[28:32].view(torch.int32)) == 7
        assert heap.peer_bases_on_device.tolist() == heap.bases
        return heap

    first, second, third = on_ranks(3, work)
    assert first.bases == second.bases == third.bases
    assert second.bases[1] == second.memory.data_ptr()
    assert second.links == ("NVLink", "own", "NVLink")
    assert (second.num_bytes, second.num_local_ranks, second.num_ranks) == (NUM_BYTES, 3, 3)


def test_two_heaps_share_one_nvshmem_and_are_closed_only_when_asked():
    def work(rank):
        heap, forgotten = rank.open(), rank.open(2 * NUM_BYTES)
        del forgotten
        heap.close()
        heap.close()
        freed = rank.fake.names().count("free_tensor")
        rank.library.finalize()
        return rank.fake, freed

    for fake, freed in on_ranks(2, work):
        names = fake.names()
        assert (names.count("init"), names.count("bytetensor"), freed) == (1, 2, 1)
        assert [name for name in names if name in ("free_tensor", "finalize")] == [
            *("free_tensor", "free_tensor", "finalize")
        ]
        # Kernels of all ranks are over before anybody's memory goes.
        closing = names[len(names) - names[::-1].index("ptr") :]
        assert "synchronize" in closing[: closing.index("free_tensor")]
        assert "gather" in closing[closing.index("synchronize") : closing.index("free_tensor")]


@pytest.mark.parametrize("step", ["init", "bytetensor", "ptr", "get_version", "get_unique_id"])
def test_what_fails_on_one_rank_is_an_error_on_all(step):
    def work(rank):
        if rank.rank == 0:
            rank.fake.fail[step] = ValueError(f"no {step}")
        return error_of(rank.open)

    errors = on_ranks(3, work)
    assert errors[0] == f"ValueError: no {step}"
    for text in errors[1:]:
        assert text.startswith("PeerError: ")
        assert f"failed on a peer\nrank 0: ValueError: no {step}" in text


def test_what_is_missing_on_one_rank_stops_all_before_anything_starts(monkeypatch):
    def require(index: int) -> None:
        if index == 1:
            raise GpuUnavailable("GPUs cannot be used here: driver")

    def work(rank):
        return error_of(rank.open), rank.fake.names()

    monkeypatch.setattr(preflight, "require", require)
    (other, its_log), (own, _) = on_ranks(2, work)
    assert own == "GpuUnavailable: GPUs cannot be used here: driver"
    assert "rank 1: GpuUnavailable: GPUs cannot be used here: driver" in other
    assert set(its_log) == {"gather"}


def test_an_unreachable_peer_is_named_on_all_ranks():
    def work(rank):
        rank.fake.world.unreachable.add((0, 1))
        return error_of(rank.open), rank.fake.names()[-1]

    (own, last), (peer, its_last) = on_ranks(2, work)
    assert last == its_last == "free_tensor"
    assert "does not map the memory of rank 1 (Fake GPU 1 0000:01:00.0 on host)" in own
    assert own[11:40] in peer


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"size": 3}, "knows this process as rank 0 of 2, the new group as rank 0 of 3"),
        ({"rank": 1}, "rank 0 of 2, the new group as rank 1 of 2"),
        ({"index": 5}, "NVSHMEM was started on GPU 0 and can have no heap on GPU 5"),
    ],
)
def test_nvshmem_serves_one_group_and_one_gpu(change, text):
    def work(rank):
        rank.open()
        if rank.rank == 0:
            rank.size, index = change.get("size", rank.size), change.get("index", 0)
            rank.rank, rank.device.index = change.get("rank", rank.rank), index
        return error_of(rank.open)

    assert text in on_ranks(2, work)[0]


def test_a_rank_outside_the_job_is_found():
    def work(rank):
        rank.open()
        if rank.rank == 1:
            rank.library = heaps.Library(rank.fake.load)
        return error_of(rank.open)

    assert "ranks [1] are not in it" in on_ranks(2, work)[0]


def test_ranks_must_ask_for_one_size():
    errors = on_ranks(2, lambda rank: error_of(lambda: rank.open(NUM_BYTES << rank.rank)))
    assert all("ranks ask for [4096, 8192]" in text for text in errors)


def test_what_the_user_has_set_stays():
    os.environ["NVSHMEM_DISABLE_NCCL"] = "0"
    os.environ["NVSHMEM_DISABLE_CUDA_VMM"] = "1"

    def work(rank):
        rank.open(1 << 20)
        return {setting.name: setting for setting in rank.library.settings}, rank.fake.environment

    # Rank 1 finds what rank 0 has set: threads share what processes would not.
    ((settings, environment),) = on_ranks(1, work)
    assert environment["NVSHMEM_DISABLE_NCCL"] == settings["NVSHMEM_DISABLE_NCCL"].value == "0"
    assert settings["NVSHMEM_DISABLE_NCCL"].by_user
    assert not settings["NVSHMEM_DISABLE_NVLS"].by_user
    assert int(environment["NVSHMEM_CUMEM_GRANULARITY"]) == 32 << 20
    assert int(environment["NVSHMEM_SYMMETRIC_SIZE"]) == 257 << 20


def test_an_old_nvshmem_is_refused():
    def work(rank):
        rank.fake.version = "3.4.4"
        return error_of(rank.open)

    assert "NVSHMEM that was loaded is 3.4.4" in on_ranks(2, work)[0]


def test_nvshmem_that_starts_only_halfway_is_refused():
    def work(rank):
        rank.fake.status_when_started = 1
        return error_of(rank.open), rank.fake.names()

    text, names = on_ranks(2, work)[1]
    assert "NVSHMEM did not get past finding its peers (init_status 1)" in text
    assert "bytetensor" not in names


@pytest.mark.parametrize("num_running", [1, 2])
def test_nvshmem_that_something_else_started(num_running):
    def work(rank):
        if rank.rank < num_running:
            rank.fake.status, rank.fake.numbers = 2, (rank.rank, rank.size)
        text = error_of(rank.open)
        if text == "nothing raised":
            rank.library.finalize()
        return text, rank.fake.names()

    for text, names in on_ranks(2, work):
        assert not {"init", "finalize"} & set(names)
        if num_running == 1:
            assert "already runs in the processes of ranks [0] and not in the others" in text


def test_pcie_peers_are_refused_unless_allowed(monkeypatch):
    monkeypatch.setattr(nvml, "nvlink_between", lambda *pair: (False, "PCIe, across NUMA nodes"))
    errors = on_ranks(2, lambda rank: error_of(rank.open))
    assert "rank 0 (Fake GPU 0 0000:00:00.0 on host) cannot reach rank 1 (Fake GPU 1" in errors[0]
    assert "PCIe, across NUMA nodes" in errors[0]
    assert "allow_pcie_p2p=True" in errors[0]
    heap = on_ranks(2, lambda rank: rank.open(allow_pcie_p2p=True))[0]
    assert heap.links == ("own", "PCIe, across NUMA nodes")


def test_what_nvml_says_of_two_gpus(monkeypatch):
    class NVMLError(Exception):
        pass

    library = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_P2P_CAPS_INDEX_NVLINK=2,
        NVML_P2P_STATUS_OK=0,
        nvmlDeviceGetHandleByPciBusId=lambda pci: pci,
        nvmlDeviceGetP2PStatus=lambda *pair_and_index: {b"b": 0}.get(pair_and_index[1], 5),
        nvmlDeviceGetTopologyCommonAncestor=lambda *pair: 50,
    )
    monkeypatch.setattr(nvml, "_library", lambda: library)
    assert NVLINK_BETWEEN("a", "b") == (True, "NVLink")
    assert NVLINK_BETWEEN("a", "c") == (False, "PCIe, meeting across NUMA nodes")
    monkeypatch.setattr(library, "nvmlDeviceGetP2PStatus", _raises(NVMLError("Not Found")))
    with pytest.raises(nvml.NvmlUnavailable, match="cannot compare a and b: Not Found"):
        NVLINK_BETWEEN("a", "b")


def _raises(error):
    def function(*args):
        raise error

    return function


def test_other_hosts_need_one_fabric():
    def at(machine: str, fabric: str) -> Place:
        return Place(f"host {machine}", machine, "0000:00:00.0", "GPU", fabric)

    assert [way.link for way in nvlink.reach(0, [at("a", "x"), at("b", "x")], False)] == [
        "own",
        "NVLink fabric",
    ]
    for fabric in ("y", ""):
        places = [at("a", fabric), at("b", "x" if fabric else "")]
        text = str(nvlink.refusal(0, places, nvlink.reach(0, places, True), "no cards"))
        assert "rank 1 (GPU 0000:00:00.0 on host b)" in text
        assert "or a network: no cards" in text


def test_loopback_ranks_share_a_gpu():
    def work(group):
        log = []
        heap = loopback.open_heap(group, NUM_BYTES, heaps.FakeDevice(3, log=log.append))
        assert log == ["make_current", "synchronize"]
        bases, links = heap.bases, heap.links
        heap.close()
        return bases, links, heap.memory.data_ptr()

    results = run_ranks(4, work)
    assert [bases for bases, _, _ in results] == [[own for _, _, own in results]] * 4
    assert results[1][1] == ("same GPU", "own", "same GPU", "same GPU")


# ---- the real nvshmem4py ----


def test_every_call_fits_the_real_signatures():
    pytest.importorskip("nvshmem.core", reason="pip install 'deep_ll[cuda13]' for nvshmem4py")
    from deep_ll.runtime.cuda.nvshmem_job import load

    def work(rank):
        rank.open()
        rank.library.finalize()
        return [call for call in rank.fake.log if call.module]

    modules, calls = load(), on_ranks(1, work)[0]
    for call in calls:
        function = getattr(getattr(modules, call.module), call.name)
        inspect.signature(function).bind(*call.args, **call.kwargs)
    assert {call.name for call in calls} == {
        *("get_version", "get_unique_id", "init", "bytetensor", "free_tensor", "finalize"),
        *("init_status", "my_pe", "n_pes", "ptr"),
    }
    assert hasattr(modules.device, "set_current")
    assert preflight.numbers(modules.core.get_version().libnvshmem_version) >= (3, 4, 5)


def test_two_processes_meet_by_a_unique_id():
    """Without a GPU NVSHMEM gets as far as knowing its peers: so the id's way is right."""
    pytest.importorskip("nvshmem.core", reason="pip install 'deep_ll[cuda13]' for nvshmem4py")
    if torch.cuda.is_available():
        pytest.skip("with a GPU, NVSHMEM goes on")
    pools = [ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) for _ in range(2)]
    uid = pools[0].submit(heaps.unique_id).result(timeout=30)
    futures = [pool.submit(heaps.bootstrap, rank, uid) for rank, pool in enumerate(pools)]
    results = [future.result(timeout=30) for future in futures]
    for pool in pools:
        pool.shutdown()
    # 1: it knows its peers and has no GPU. Newer ones also raise, 3.4.5 does not.
    assert [rest for _, *rest in results] == [[1, rank, 2] for rank in range(2)]
    texts = {text for text, *_ in results}
    assert texts <= {"nothing raised", "NVSHMEMError: Status code 7"}
