"""How buffers on a GPU begin and end, and how long what they use lives."""

from collections.abc import Callable
from typing import Any

import pytest
from cases import Case
from twin import life_work, open_work, shared

from deep_ll import kernels

pytest.importorskip("cuda.bindings", reason="cuda-python is not installed")
if not kernels.description():
    pytest.skip("built without nvcc: there are no kernels to launch", allow_module_level=True)

PAIR = {"world": 2, "experts": 4, "topk": 2, "tokens": 5, "max_tokens": 8}
PLAIN = Case(**PAIR)
HOOK = Case(**PAIR, mode="hook")
EVENT = Case(**PAIR, mode="event")


@pytest.fixture
def life() -> Callable[..., Any]:
    return lambda *args: shared.process()(life_work.run, *args)


@pytest.fixture
def opened() -> Callable[..., Any]:
    return lambda *args: shared.process()(open_work.run, *args)


@pytest.mark.parametrize("case", [PLAIN, HOOK, EVENT], ids=str)
def test_calls_allocate_nothing(life: Callable[..., Any], case: Case) -> None:
    life("no_allocation", case)


def test_a_hook_keeps_what_it_needs(life: Callable[..., Any]) -> None:
    life("lifetimes", HOOK)


@pytest.mark.parametrize("case", [PLAIN, HOOK, EVENT], ids=str)
def test_destroy(life: Callable[..., Any], case: Case) -> None:
    for (text,) in life("destroyed", case):
        if case.mode == "hook":
            assert text == "OrderError: this buffer was destroyed: call hooks before"
        else:
            assert text == "nothing raised"


def test_a_buffer_that_was_dropped(life: Callable[..., Any]) -> None:
    life("dropped", PLAIN)


def test_plan(opened: Callable[..., Any]) -> None:
    text, _ = opened("plan", PLAIN)
    *_, occupies, head, transport, affinity = text.splitlines()
    assert "MiB of device memory a rank, 2 ranks on this host" in occupies
    assert head == "NVSHMEM was started with"
    assert transport.split()[:3] == ["NVSHMEM_REMOTE_TRANSPORT=none", "by", "deep_ll"]
    assert affinity.split() == ["NVSHMEM_CPU_AFFINITY=AUTO", "by", "you", "threads", "stay"]


def test_multiprocessors_are_shared(opened: Callable[..., Any]) -> None:
    for num_sms, text in opened("crowd", PLAIN):
        assert num_sms == 66
        assert text.startswith("ArgumentError: 201 ranks share GPU 0, which has 132")


def test_network_is_refused_on_all_ranks(opened: Callable[..., Any]) -> None:
    for text in opened("not_by_load_and_store", PLAIN):
        assert text.startswith("LinkUnavailable: allow_nvlink_traffic=False, but")


def test_cuda_without_a_number_is_the_current_gpu(opened: Callable[..., Any]) -> None:
    assert opened("current_gpu", Case(world=1, experts=2, topk=1, tokens=2)) == [(1, 1)]


def test_an_error_inside_with(life: Callable[..., Any]) -> None:
    assert life("raises_inside", PLAIN) == ["KeyError: 'the reason'"] * 2


def test_a_heap_of_nvshmem(opened: Callable[..., Any]) -> None:
    (setting,) = opened("by_nvshmem", Case(world=1, experts=2, topk=1, tokens=2))
    assert setting == "NVSHMEM_DISABLE_NVLS=1  by deep_ll  not used"


def test_a_rank_that_cannot_open(opened: Callable[..., Any]) -> None:
    other, own = opened("one_cannot", PLAIN)
    assert own == "MemoryError: there is none"
    assert other.startswith("PeerError: making what works on a heap failed on a peer\nrank 1:")
