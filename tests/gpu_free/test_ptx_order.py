"""The PTX runner on messages and barriers: right ones run clean, wrong ones are told."""

import numpy as np
import ptx
import pytest
from ptx_runs import MARKS, exchange, on_one_gpu, outcome, sample

pytestmark = MARKS


@pytest.fixture(scope="module")
def order() -> ptx.Program:
    return sample("order")


# kernel, outcome across GPUs, outcome within a GPU
MESSAGES = [
    ("msg_sys", "clean", "clean"),
    ("msg_gpu", "Race", "clean"),
    ("msg_gpu_store", "Race", "clean"),
    ("msg_gpu_load", "Race", "clean"),
    ("msg_cta_store", "Race", "Race"),
    ("msg_no_syncwarp", "Race", "Race"),
    ("msg_relaxed_store", "Race", "Race"),
    ("msg_relaxed_load", "Race", "Race"),
    ("msg_weak_store", "Race", "Race"),
    ("msg_weak_load", "Race", "Race"),
    ("msg_fences", "clean", "clean"),
    ("msg_volatile", "clean", "clean"),
    ("msg_no_second_fence", "Race", "Race"),
    ("msg_no_first_fence", "Race", "Race"),
    ("msg_fence_gpu", "Race", "clean"),
    ("msg_fence_acquire_gpu", "Race", "clean"),
    ("msg_fence_acquire", "clean", "clean"),
    ("one_looks", "clean", "clean"),
    ("one_looks_alone", "Race", "Race"),
]


@pytest.mark.parametrize(("kernel", "across", "within"), MESSAGES, ids=lambda value: str(value))
def test_message(order, kernel: str, across: str, within: str) -> None:
    assert outcome(exchange(order, kernel, [0, 1])).startswith(across)
    assert outcome(exchange(order, kernel, [0, 0])).startswith(within)


def test_message_arrives(order) -> None:
    assert (exchange(order, "msg_sys", [0, 1])(0) == 7 + np.arange(32)).all()


@pytest.mark.parametrize(("kernel", "wanted"), [("chain_update", "clean"), ("chain_store", "Race")])
def test_release_goes_through_updates_only(order, kernel: str, wanted: str) -> None:
    assert outcome(exchange(order, kernel, [0, 1, 2], 1)).startswith(wanted)


def test_report_names_both_sides(order) -> None:
    report = outcome(exchange(order, "msg_relaxed_load", [0, 1]))
    assert "read of data@gpu1+" in report
    assert "by gpu1 block0 warp0 lane" in report
    assert "'s write (st.global.u32 " in report
    assert "is not ordered after gpu0 block0 warp0 lane" in report


BARRIERS = [
    ("barrier_block", "clean"),
    ("barrier_named", "clean"),
    ("barrier_missing", "Fault"),  # reads what nobody has written, or is a race
    ("barrier_warp_only", "Fault"),
    ("barrier_too_few", "Fault"),
    ("barrier_too_many", "Hang"),
    ("arrive_right", "clean"),
    ("arrive_elsewhere", "Hang"),
    ("arrive_not_asked", "Fault"),
]


@pytest.mark.parametrize(("kernel", "wanted"), BARRIERS)
def test_barrier(order, kernel: str, wanted: str) -> None:
    found = outcome(on_one_gpu(order, kernel, 128, 128))
    assert found.startswith((wanted, "Race") if wanted == "Fault" else wanted)


def test_barrier_votes(order) -> None:
    out = on_one_gpu(order, "barrier_votes", 128, 128)(1)
    assert (out == 64 | 1 << 16 | 1 << 17).all()


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [("crowd", "clean"), ("crowd_no_sync", "Race"), ("crowd_warps_only", "Race")],
)
def test_many_readers(order, kernel: str, wanted: str) -> None:
    assert outcome(on_one_gpu(order, kernel, 128, 128)).startswith(wanted)
