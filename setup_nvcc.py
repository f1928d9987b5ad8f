"""Finds an nvcc that can compile the kernels for GPUs, or says why there is none and what helps."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from setuptools.errors import CompileError

# What is compiled for, and what of it is shipped. PTX serves the GPUs that have no machine code.
ARCHS = {
    "compute_80": ["sm_80", "compute_80"],
    "compute_90": ["sm_90a", "compute_90"],
    "compute_100a": ["sm_100a"],
}
OLDEST = (12, 8)  # the first that knows compute_100a

CURE = (
    "install the CUDA toolkit 12.8 or later, or its wheels with pip install 'deep_ll[cuda13-build]'"
)
LEFT_OUT = "deep_ll: the kernels for GPUs are left out, this build serves CPUs only:"


class NoCompilerError(Exception):
    """Why the kernels cannot be compiled here."""


class Nvcc(NamedTuple):
    """A compiler that was found, with the host compiler that it shall use."""

    command: list[str]
    version: str


def _candidates() -> Iterator[Path]:
    """Where an nvcc may be. One that the environment names is the only one."""
    if named := os.environ.get("CUDACXX"):
        yield Path(shutil.which(named) or named)
        return
    if home := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        yield Path(home, "bin", "nvcc")
        return
    if on_path := shutil.which("nvcc"):
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin/nvcc")
    for folder in dict.fromkeys([*sys.path, sysconfig.get_path("purelib")]):
        yield from sorted(Path(folder).glob("nvidia/cu*/bin/nvcc"), reverse=True)


def _check(path: Path, host: list[str]) -> Nvcc:
    """The compiler at `path`, if it can do what is needed."""
    try:
        text = subprocess.check_output([path, "--version"], text=True, stderr=subprocess.STDOUT)
        known = subprocess.check_output([path, "--list-gpu-arch"], text=True).split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoCompilerError(f"{path} does not run: {error}") from error
    version = re.search(r"V(\d+)\.(\d+)[.\d]*", text)
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        found = version[0] if version else "of unknown version"
        raise NoCompilerError(f"{path} is {found}, older than {'.'.join(map(str, OLDEST))}")
    missing = {arch.rstrip("a") for arch in ARCHS} - set(known)
    if missing:
        raise NoCompilerError(f"{path} does not know {', '.join(sorted(missing))}")
    return Nvcc([str(path), *host], version[0][1:])


def _try_out(nvcc: Nvcc, scratch: Path) -> None:
    """Fails where it cannot work with the C++ compiler that is here."""
    scratch.mkdir(parents=True, exist_ok=True)
    probe = scratch / "probe.cu"
    probe.write_text("#include <concepts>\n__global__ void probe() {}\n", encoding="utf-8")
    command = [*nvcc.command, "-std=c++20", "-ptx", f"-arch={[*ARCHS][-1]}", str(probe)]
    result = subprocess.run(
        [*command, "-o", str(probe.with_suffix(".ptx"))], capture_output=True, text=True
    )
    if result.returncode != 0:
        raise NoCompilerError(f"{nvcc.command[0]} cannot work here: {result.stderr.strip()}")


def find_nvcc(scratch: Path) -> Nvcc:
    """The first compiler that will do."""
    named = os.environ.get("CXX", "").split()
    host = ["-ccbin", named[0]] if named and "NVCC_CCBIN" not in os.environ else []
    reasons = []
    for path in _candidates():
        if not path.is_file():
            reasons.append(f"there is no {path}")
            continue
        try:
            nvcc = _check(path, host)
            _try_out(nvcc, scratch)
        except NoCompilerError as error:
            reasons.append(str(error))
            continue
        return nvcc
    raise NoCompilerError("; ".join(reasons))


def choose_nvcc(scratch: Path) -> Nvcc | None:
    """What DEEP_LL_CUDA asks for: `require`, `off`, or `auto`, which takes what is there."""
    wish = os.environ.get("DEEP_LL_CUDA") or "auto"
    if wish not in ("auto", "require", "off"):
        raise CompileError(f"DEEP_LL_CUDA is {wish!r}: set it to auto, require or off")
    if wish == "off":
        return None
    try:
        return find_nvcc(scratch)
    except NoCompilerError as error:
        if wish == "require":
            raise CompileError(f"DEEP_LL_CUDA=require, but {error}; {CURE}") from error
        print(f"{LEFT_OUT} {error}; {CURE}", file=sys.stderr)
        return None
