"""The PTX runner on bulk copies and mbarriers: right ones run clean, wrong ones are told."""

import numpy as np
import ptx
import pytest
from ptx_runs import MARKS, exchange, on_one_gpu, outcome, pack, sample

pytestmark = MARKS


@pytest.fixture(scope="module")
def bulk() -> ptx.Program:
    return sample("bulk")


BULK_STORES = [
    ("bulk_store", "clean"),
    ("bulk_store_full_fence", "clean"),
    ("bulk_store_no_fence", "Race"),
    ("bulk_store_one_fence", "Race"),
    ("bulk_store_wrong_fence", "Race"),
    ("bulk_store_read_wait", "Race"),
    ("bulk_store_no_wait", "Race"),
    ("bulk_store_lax_wait", "Race"),
    ("pull", "clean"),
    ("pull_full_fence", "clean"),
    ("pull_no_fence", "Race"),
    ("pull_wrong_fence", "Race"),
    ("pull_by_another", "clean"),
    ("pull_by_another_no_fence", "Race"),
]


@pytest.mark.parametrize(("kernel", "wanted"), BULK_STORES)
def test_bulk_exchange(bulk, kernel: str, wanted: str) -> None:
    run = exchange(bulk, kernel, [0, 1], 256)
    assert outcome(run).startswith(wanted)
    if wanted == "clean":
        factor = 11 if kernel.startswith("bulk") else 1
        assert (run(9) == factor * np.arange(256)).all()


BULK_LOADS = [
    ("bulk_load", "clean"),
    ("bulk_load_cta", "clean"),
    ("bulk_load_no_init_fence", "Race"),
    ("bulk_load_no_wait", "Race"),
    ("bulk_load_wrong_phase", "Race"),
    ("bulk_load_too_few_bytes", "Hang"),
    ("bulk_load_too_many_bytes", "Hang"),
    ("reload", "clean"),
    ("reload_no_fence", "Race"),
    ("reload_no_sync", "Race"),
]


@pytest.mark.parametrize(("kernel", "wanted"), BULK_LOADS)
def test_bulk_load(bulk, kernel: str, wanted: str) -> None:
    given = np.arange(768, dtype=np.uint32) * 3
    run = on_one_gpu(bulk, kernel, 32, 256, given)
    found = outcome(run)
    # A copy that has not landed leaves memory that nobody wrote.
    assert found.startswith((wanted, "Fault: read of uninit") if wanted == "Race" else wanted)
    if wanted == "clean":
        rows = given.reshape(3, 256)
        assert (run(5) == (rows[2] + 2 if kernel == "reload" else rows[0])).all()


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [("reuse", "clean"), ("reuse_no_wait", "Race"), ("reuse_no_sync", "Race")],
)
def test_reuse_of_a_stage(bulk, kernel: str, wanted: str) -> None:
    run = on_one_gpu(bulk, kernel, 32, 128)
    assert outcome(run).startswith(wanted)
    if wanted == "clean":
        wanted_rows = 100 * np.arange(4)[:, None] + np.arange(32)
        assert (run(3).reshape(4, 32) == wanted_rows).all()


PIPELINES = [
    ("pipeline", ("clean",)),
    ("pipeline_no_init_sync", ("Race", "Fault: no mbarrier")),
    ("pipeline_no_empty", ("Race", "Hang")),  # who is lapped by two phases waits for ever
    ("pipeline_no_full", ("Race", "Fault: read of uninit")),
    ("pipeline_wrong_parity", ("Race", "Hang")),
    ("pipeline_too_few", ("Race", "Fault", "Hang")),
    ("pipeline_too_many", ("Hang",)),
]


@pytest.mark.parametrize(("kernel", "wanted"), PIPELINES, ids=lambda value: str(value))
def test_pipeline(bulk, kernel: str, wanted: tuple[str, ...]) -> None:
    run = on_one_gpu(bulk, kernel, 64, 256)
    assert outcome(run).startswith(wanted)
    if kernel == "pipeline":
        rows = 32 * np.arange(8)[:, None] + np.arange(31, -1, -1)
        assert (run(7).reshape(8, 32) == rows).all()


@pytest.mark.parametrize(("kernel", "wanted"), [("leave", "clean"), ("leave_at_once", "Race")])
def test_copies_may_outlive_their_block_but_not_its_memory(bulk, kernel, wanted) -> None:
    def run(seed: int) -> None:
        machine = ptx.Machine(bulk, 1, seed)
        machine.copy_delay = 5_000
        out = machine.alloc(0, 4096, "out")
        machine.launch(0, kernel, 1, 32, 0, pack(out))
        machine.launch(0, "double_words", 1, 32, 0, pack(out))
        machine.run()
        assert (machine.array(out, np.uint32, 1024) == 2 * np.arange(1024)).all()

    assert outcome(run).startswith(wanted)
