"""Compiles the kernels of ptx_samples/ and runs them under several schedules."""

import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import ptx
import pytest

SAMPLES = Path(__file__).resolve().parent / "ptx_samples"
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
SEEDS = range(4)
MARKS = [
    pytest.mark.skipif(NVCC is None, reason="no nvcc here to make PTX with"),
    pytest.mark.timeout(300),  # the first test compiles the engine, on a busy machine for long
]


@cache
def sample(name: str) -> ptx.Program:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "sample.ptx"
        flags = ["-std=c++20", "-O3", "-arch=sm_90a", "-ptx"]
        subprocess.run([NVCC, *flags, SAMPLES / f"{name}.cu", "-o", made], check=True)
        return ptx.load(made.read_text(encoding="utf-8"))


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
