"""The PTX of the kernels, as this checkout has them."""

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import ptx

CSRC = Path(__file__).resolve().parents[2] / "csrc"
FLAGS = ["-std=c++20", "-O3", "-fmad=false", "-ptx"]
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
WHY_NOT = "nvcc is not here: there is no PTX to run"


def compile_ptx(csrc: Path, arch: str = "sm_90a", hidden: int = 0) -> str:
    """The PTX of ep_gpu.cu for rows of `hidden` channels; 0: any."""
    tier = f"h{hidden}" if hidden else "any"
    marks = [f"-arch={arch}", f"-I{csrc}", f"-DDEEP_LL_TIER={tier}", f"-DDEEP_LL_HIDDEN={hidden}"]
    with tempfile.NamedTemporaryFile(suffix=".ptx") as output:
        command = [str(NVCC), *FLAGS, *marks, "-o", output.name, str(csrc / "ep" / "ep_gpu.cu")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return Path(output.name).read_text(encoding="utf-8")


def kept_ptx(arch: str = "sm_90a", hidden: int = 0) -> Path:
    """The PTX of this checkout, kept by what it was made from."""
    sources = sorted(p for p in CSRC.rglob("*") if p.suffix in (".hpp", ".cuh", ".cu"))
    mark = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    mark.update(f"{FLAGS} {arch} {hidden}".encode())
    kept = Path(tempfile.gettempdir(), f"deep_ll-ptx-{mark.hexdigest()[:16]}.ptx")
    if not kept.exists():
        unfinished = kept.with_suffix(f".{os.getpid()}")
        unfinished.write_text(compile_ptx(CSRC, arch, hidden), encoding="utf-8")
        unfinished.rename(kept)
    return kept


@functools.cache
def program(arch: str = "sm_90a", hidden: int = 0) -> ptx.Program:
    """The loaded kernels."""
    return ptx.load(kept_ptx(arch, hidden).read_text(encoding="utf-8"))
