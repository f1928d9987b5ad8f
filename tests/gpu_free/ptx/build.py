"""Compiles the engine, once for each state of its source, and finds its functions."""

import ctypes
import hashlib
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "engine"
CACHE = Path(__file__).resolve().parents[3] / "build" / "ptx_runner"
# Contraction would round otherwise than a GPU does; some loops run over thousands of clocks.
FLAGS = [
    "-std=c++20",
    "-O2",
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-fPIC",
    *("-Wall", "-Wextra", "-Wshadow", "-Werror"),
]
JOBS = 2

SIGNATURES = {
    "ptx_handler": (ctypes.c_int64, [ctypes.c_char_p]),
    "ptx_program": (ctypes.c_void_p, []),
    "ptx_program_free": (None, [ctypes.c_void_p]),
    "ptx_program_fill": (None, [ctypes.c_void_p, *[ctypes.c_void_p, ctypes.c_uint64] * 3]),
    "ptx_program_text": (None, [ctypes.c_void_p, ctypes.c_char_p]),
    "ptx_program_entry": (None, [ctypes.c_void_p, ctypes.c_char_p, *[ctypes.c_uint32] * 3]),
    "ptx_machine": (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64],
    ),
    "ptx_machine_free": (None, [ctypes.c_void_p]),
    "ptx_error": (ctypes.c_char_p, [ctypes.c_void_p]),
    "ptx_options": (None, [ctypes.c_void_p, ctypes.c_void_p]),
    "ptx_alloc": (
        ctypes.c_uint64,
        [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_char_p],
    ),
    "ptx_data": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]),
    "ptx_symbols": (None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]),
    "ptx_network": (
        None,
        [
            *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64),
            *(ctypes.c_int64, ctypes.c_uint32),
        ],
    ),
    "ptx_launch": (
        None,
        [
            *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32),
            *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64),
        ],
    ),
    "ptx_run": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]),
}


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX") or "g++")


def _call(command: list) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(map(str, command))}\n{done.stderr}")


def _compile(folder: Path) -> Path:
    """Makes the library in a folder of this process; whoever is first gives it its place."""
    library = folder / "libptx.so"
    if library.exists():
        return library
    private = folder.with_name(f"{folder.name}.{os.getpid()}")
    private.mkdir(parents=True, exist_ok=True)
    units = sorted(SOURCE.glob("*.cpp"))
    objects = [private / f"{unit.stem}.o" for unit in units]
    with ThreadPoolExecutor(JOBS) as workers:
        jobs = [
            workers.submit(_call, [*_compiler(), *FLAGS, "-c", unit, "-o", made])
            for unit, made in zip(units, objects, strict=True)
        ]
        for job in jobs:
            job.result()
    _call([*_compiler(), "-shared", *objects, "-o", private / "libptx.so"])
    for made in objects:
        made.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    (private / "libptx.so").rename(library)
    private.rmdir()
    return library


@cache
def engine() -> ctypes.CDLL:
    text = " ".join([*_compiler(), *FLAGS]).encode()
    for path in sorted(SOURCE.iterdir()):
        text += path.name.encode() + path.read_bytes()
    library = ctypes.CDLL(str(_compile(CACHE / hashlib.sha256(text).hexdigest()[:16])))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@cache
def handler(name: str) -> int:
    """What executes an instruction of this name; 0: nothing does."""
    return engine().ptx_handler(name.encode())
