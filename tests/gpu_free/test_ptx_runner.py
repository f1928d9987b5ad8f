"""The PTX runner itself: what is right runs clean and right, and each way to be wrong is told."""

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import ptx
import pytest

SAMPLES = Path(__file__).resolve().parent / "ptx_samples"
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
SEEDS = range(4)

pytestmark = [
    pytest.mark.skipif(NVCC is None, reason="no nvcc here to make PTX with"),
    pytest.mark.timeout(300),  # the first test compiles the engine, on a busy machine for long
]


def compiled(name: str, folder: Path) -> ptx.Program:
    made = folder / f"{name}.ptx"
    flags = ["-std=c++20", "-O3", "-arch=sm_90a", "-ptx"]
    subprocess.run([NVCC, *flags, SAMPLES / f"{name}.cu", "-o", made], check=True)
    return ptx.load(made.read_text())


@pytest.fixture(scope="session")
def order(tmp_path_factory) -> ptx.Program:
    return compiled("order", tmp_path_factory.mktemp("ptx"))


@pytest.fixture(scope="session")
def misc(tmp_path_factory) -> ptx.Program:
    return compiled("misc", tmp_path_factory.mktemp("ptx"))


def pack(*values: int) -> bytes:
    """Parameters: numbers below 2**31 are ints, the others addresses, each at its alignment."""
    made = b""
    for value in values:
        size = 4 if value < 2**31 else 8
        made += bytes(-len(made) % size) + struct.pack("<i" if size == 4 else "<Q", value)
    return made


def outcome(run) -> str:
    """Runs under several schedules; the name of what went wrong first, or `clean`."""
    for seed in SEEDS:
        try:
            run(seed)
        except ptx.PtxError as error:
            return f"{type(error).__name__}: {error}"
    return "clean"


def exchange(program: ptx.Program, kernel: str, gpus: list[int], words: int = 32):
    """One launch of a kernel per rank, on the GPU that each rank is on; the data is the last's."""

    def run(seed: int) -> np.ndarray:
        machine = ptx.Machine(program, max(gpus) + 1, seed)
        machine.hang_steps = 20_000
        data, out = (machine.alloc(gpus[-1], 4 * words, name) for name in ("data", "out"))
        flag = machine.alloc(gpus[-1], 4, "flag")
        for rank, gpu in enumerate(gpus):
            machine.launch(gpu, kernel, 1, 32, 0, pack(rank, data, flag, out), stream=rank)
        machine.run()
        return machine.array(out, np.uint32, words).copy()

    return run


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


def on_one_gpu(program, kernel: str, block, out_words: int, *inputs, **options):
    """A launch with inputs as arrays of u32 or as ints, and `out`; gives what is in out."""

    def run(seed: int) -> np.ndarray:
        machine = ptx.Machine(program, 1, seed)
        machine.hang_steps = 20_000
        shared = options.get("shared_bytes", 0)
        for name in ("resident_blocks", "ns_per_step"):
            setattr(machine, name, options.get(name, getattr(ptx.Machine, name)))
        values = []
        for i, given in enumerate(inputs):
            if isinstance(given, np.ndarray):
                values.append(machine.alloc(0, given.nbytes, f"in{i}"))
                machine.array(values[-1], np.uint32, given.size)[:] = given
            else:
                values.append(given)
        if out_words:
            values.append(machine.alloc(0, 4 * out_words, "out"))
        machine.launch(0, kernel, options.get("grid", 1), block, shared, pack(*values))
        machine.run()
        return machine.array(values[-1], np.uint32, out_words).copy() if out_words else None

    return run


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
    ("half_a_barrier", "Hang"),
]


@pytest.mark.parametrize(("kernel", "wanted"), BARRIERS)
def test_barrier(order, misc, kernel: str, wanted: str) -> None:
    program = order if kernel in order.entries else misc
    threads = 64 if kernel == "half_a_barrier" else 128
    found = outcome(on_one_gpu(program, kernel, threads, 128))
    assert found.startswith((wanted, "Race") if wanted == "Fault" else wanted)


def test_barrier_votes(order) -> None:
    out = on_one_gpu(order, "barrier_votes", 128, 128)(1)
    assert (out == 64 | 1 << 16 | 1 << 17).all()


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
def test_bulk_exchange(order, kernel: str, wanted: str) -> None:
    run = exchange(order, kernel, [0, 1], 256)
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
def test_bulk_load(order, kernel: str, wanted: str) -> None:
    given = np.arange(768, dtype=np.uint32) * 3
    run = on_one_gpu(order, kernel, 32, 256, given)
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
def test_reuse_of_a_stage(order, kernel: str, wanted: str) -> None:
    run = on_one_gpu(order, kernel, 32, 128)
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
def test_pipeline(order, kernel: str, wanted: tuple[str, ...]) -> None:
    run = on_one_gpu(order, kernel, 64, 256)
    assert outcome(run).startswith(wanted)
    if kernel == "pipeline":
        rows = 32 * np.arange(8)[:, None] + np.arange(31, -1, -1)
        assert (run(7).reshape(8, 32) == rows).all()


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [("crowd", "clean"), ("crowd_no_sync", "Race"), ("crowd_warps_only", "Race")],
)
def test_many_readers(order, kernel: str, wanted: str) -> None:
    assert outcome(on_one_gpu(order, kernel, 128, 128)).startswith(wanted)


@pytest.mark.parametrize(("kernel", "wanted"), [("leave", "clean"), ("leave_at_once", "Race")])
def test_copies_may_outlive_their_block_but_not_its_memory(order, kernel, wanted) -> None:
    def run(seed: int) -> None:
        machine = ptx.Machine(order, 1, seed)
        machine.copy_delay = 5_000
        out = machine.alloc(0, 4096, "out")
        machine.launch(0, kernel, 1, 32, 0, pack(out))
        machine.launch(0, "double_words", 1, 32, 0, pack(out))
        machine.run()
        assert (machine.array(out, np.uint32, 1024) == 2 * np.arange(1024)).all()

    assert outcome(run).startswith(wanted)


def test_lanes_together(misc) -> None:
    given = np.random.default_rng(1).integers(0, 2**32, 32, dtype=np.uint32)
    lane = np.arange(32)
    out = on_one_gpu(misc, "lanes_together", 32, 512, given)(2).reshape(32, 16)
    assert (out[:, 0] == given[5]).all()
    assert (out[:, 1] == given[lane ^ 3]).all()
    assert (out[:, 2] == np.where(lane < 4, given, given[(lane - 4) % 32])).all()
    within = lane % 16 + 7 < 16
    assert (out[:, 3] == np.where(within, given[(lane + 7) % 32], given)).all()
    assert (out[:, 4] == sum(1 << int(i) for i in lane[given & 1 == 1])).all()
    assert (out[:, 5] == 1).all()
    same = [sum(1 << int(i) for i in lane[given & 3 == value & 3]) for value in given]
    assert (out[:, 6] == same).all()
    assert (out[:, 7] == 0).all()  # all lanes' mask, and one more, wraps
    assert (out[:, 8] == np.sum(given & 0xFFFF)).all()
    assert (out[:, 9] == given.view(np.int32).max().astype(np.uint32)).all()
    assert (out[:, 10] == given.min()).all()
    assert (out[:, 11] == np.where(lane % 2 == 0, given[6], given[7])).all()
    assert (out[::2, 12] >= 1).all()
    assert (out[:, 13] == 1).all()


def misuse(kernel: str, wanted: str, *inputs, words: int = 32, block: int = 32, **options):
    return pytest.param(kernel, wanted, inputs, words, block, options, id=kernel)


MISUSES = [
    misuse("not_in_own_mask", "Fault: a lane is not in the mask"),
    misuse("waits_for_ever", "Hang", np.zeros(1, np.uint32), words=0),
    misuse("reads_unwritten", "Fault: read of uninitialised", block=64, words=64),
    misuse("traps", "Fault: trap"),
    misuse("bytes_of_a_word", "clean", words=32, block=64, grid=2),
    misuse("same_byte", "Race"),
    misuse("halves_of_a_word", "clean"),
    misuse("plain_tickets", "Race", np.zeros(1, np.uint32)),
]


@pytest.mark.parametrize(("kernel", "wanted", "inputs", "words", "block", "options"), MISUSES)
def test_misuse(misc, kernel, wanted, inputs, words, block, options) -> None:
    assert outcome(on_one_gpu(misc, kernel, block, words, *inputs, **options)).startswith(wanted)


def test_bounds_and_alignment(misc) -> None:
    machine = ptx.Machine(misc, 1)
    row = machine.alloc(0, 64, "row", align=16)
    for index in (0, 15):
        machine.launch(0, "store_at", 1, 1, 0, pack(row, index))
        machine.run()
    for index, words in (
        (16, r"64 bytes after the start of row@gpu0\+0, which has 64"),
        (-1, "outside"),
    ):
        machine.launch(0, "store_at", 1, 1, 0, pack(row, index))
        with pytest.raises(ptx.Fault, match=words):
            machine.run()
        machine = ptx.Machine(misc, 1)
        row = machine.alloc(0, 64, "row", align=16)


@pytest.mark.parametrize(("at", "wanted"), [(16, "clean"), (8, "Fault: misaligned"), (56, "Fault")])
def test_wide_loads(misc, at: int, wanted: str) -> None:
    def run(seed: int) -> None:
        machine = ptx.Machine(misc, 1, seed)
        row, out = machine.alloc(0, 64, "row"), machine.alloc(0, 4, "out")
        machine.launch(0, "load_wide", 1, 1, 0, pack(row + at, out))
        machine.run()

    assert outcome(run).startswith(wanted)


def test_time_passes_with_steps(misc) -> None:
    out = on_one_gpu(
        misc, "waits_until", 32, 32, np.zeros(1, np.uint32), 10**6 + 2**33, ns_per_step=10**7
    )(0)
    assert (out == 1).all()


@pytest.mark.parametrize(
    ("resident", "waiting", "wanted"),
    [(0, 0, "clean"), (1, 0, "Hang"), (1, 1, "clean"), (2, 0, "clean")],
)
def test_blocks_that_have_not_started(misc, resident: int, waiting: int, wanted: str) -> None:
    def run(seed: int) -> None:
        machine = ptx.Machine(misc, 1, seed)
        machine.hang_steps, machine.resident_blocks = 5_000, resident
        flag = machine.alloc(0, 4, "flag")
        machine.launch(0, "needs_block", 2, 32, 0, pack(flag, waiting))
        machine.run()

    assert outcome(run).startswith(wanted)


def test_launches_of_a_stream_are_ordered(misc) -> None:
    machine = ptx.Machine(misc, 1, 3)
    cells = machine.alloc(0, 128, "cells")
    for _ in range(3):
        machine.launch(0, "increment", 1, 32, 0, pack(cells))
    machine.run()
    machine.launch(0, "increment", 1, 32, 0, pack(cells), stream=1)
    machine.run()
    assert (machine.array(cells, np.uint32, 32) == 4 * np.arange(1, 33)).all()


def test_launches_of_two_streams_are_not(misc) -> None:
    def run(seed: int) -> None:
        machine = ptx.Machine(misc, 1, seed)
        cells = machine.alloc(0, 128, "cells")
        for stream in range(2):
            machine.launch(0, "increment", 1, 32, 0, pack(cells), stream=stream)
        machine.run()

    assert outcome(run).startswith("Race")


def test_a_seed_is_a_schedule(order) -> None:
    def steps(seed: int) -> int:
        machine = ptx.Machine(order, 1, seed)
        machine.launch(0, "pipeline", 1, 64, 0, pack(machine.alloc(0, 1024, "out")))
        return machine.run().steps

    assert steps(1) == steps(1)
    assert len({steps(seed) for seed in range(6)}) > 1


def test_a_machine_that_ended_says_so(misc) -> None:
    machine = ptx.Machine(misc, 1)
    machine.launch(0, "traps", 1, 32, 0, pack(machine.alloc(0, 128, "out")))
    with pytest.raises(ptx.Fault):
        machine.run()
    with pytest.raises(RuntimeError, match="trap"):
        machine.run()


def test_atomic_tickets(misc) -> None:
    out = on_one_gpu(misc, "tickets", 128, 128, np.zeros(1, np.uint32))(4)
    assert (out == np.arange(128)).all()


@pytest.mark.parametrize(("writes", "wanted"), [(0, "clean"), (1, "Race")])
def test_read_only_loads(misc, writes: int, wanted: str) -> None:
    def run(seed: int) -> None:
        machine = ptx.Machine(misc, 1, seed)
        cells, out = machine.alloc(0, 128, "cells"), machine.alloc(0, 128, "out")
        machine.launch(0, "increment", 1, 32, 0, pack(cells))
        machine.launch(0, "reads_only", 1, 32, 0, pack(cells, out, writes))
        machine.run()

    assert outcome(run).startswith(wanted)


@pytest.mark.parametrize(("at", "wanted"), [(7 - 3, 1000), (7 - 2, 1000)])
def test_spaces(misc, at: int, wanted: int) -> None:
    machine = ptx.Machine(misc, 2)
    out = machine.alloc(1, 128, "out")
    params = struct.pack("<Q6IiI", out, *range(100, 106), at, 0)[:36]
    machine.launch(1, "spaces", 1, 32, 128, params)
    machine.run()
    table = np.arange(32) % 4 + 1
    expected = 40 + table + 100 + at + wanted + 10000 + 100000
    assert (machine.array(out, np.uint32, 32) == expected).all()


def test_places_of_threads(misc) -> None:
    run = on_one_gpu(misc, "places", (4, 3, 5), 60 * 12, grid=(3, 2, 2))
    assert (run(0).reshape(12, 60) == 1000 * np.arange(12)[:, None] + np.arange(60)).all()


def test_scopes_of_inline_assembly(misc) -> None:
    assert (on_one_gpu(misc, "scopes", 32, 32)(0) == 2 * np.arange(32) + 6).all()


def switched(given: np.ndarray, lane: int) -> int:
    value = int(given[lane])
    for _ in range(lane & 7):
        value = {
            0: lambda v: v * 3 + 1,
            1: lambda v: v ^ 0x55,
            2: lambda v: v + int(given[v >> 8 & 31]),
            3: lambda v: int(f"{v:032b}"[::-1], 2),
            4: lambda v: v // 7 + 3,
            5: lambda v: v - 12345,
            6: lambda v: v.bit_count() * 1021,
        }.get(value % 9, lambda v: ~v)(value) & 0xFFFFFFFF
    return value


def test_divergence(misc) -> None:
    given = np.random.default_rng(5).integers(0, 2**32, 32, dtype=np.uint32)
    out = on_one_gpu(misc, "switches", 32, 32, given)(6)
    assert (out == [switched(given, lane) for lane in range(32)]).all()
