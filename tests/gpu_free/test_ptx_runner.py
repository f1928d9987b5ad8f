"""The PTX runner itself: lanes, faults, hangs, launches, spaces."""

import struct

import numpy as np
import ptx
import pytest
from ptx_runs import MARKS, on_one_gpu, outcome, pack, sample

pytestmark = MARKS


@pytest.fixture(scope="module")
def misc() -> ptx.Program:
    return sample("misc")


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
    misuse("half_a_barrier", "Hang", block=64, words=64),
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


def test_a_seed_is_a_schedule(misc) -> None:
    def steps(seed: int) -> int:
        machine = ptx.Machine(misc, 1, seed)
        arrays = [machine.alloc(0, 512, name) for name in ("in", "out")]
        machine.launch(0, "switches", 1, 128, 0, pack(*arrays))
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
