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
# Instead of NVSHMEM's headers: the calls stay calls, which the simulated GPUs carry out. One minor
# version of NVSHMEM for each route (team/gpu/network.cuh).
CALLS = Path(__file__).resolve().parent / "nvshmem_calls"
ROUTES = {"counts": 4, "queues": 7}
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
WHY_NOT = "nvcc is not here: there is no PTX to run"


def _network_flags(route: str) -> list[str]:
    """For kernels that have peers behind a network; none without a route."""
    if not route:
        return []
    version = f"-DNVSHMEM_VENDOR_MINOR_VERSION={ROUTES[route]}"
    inline = "-DDEEP_LL_CALL=static __device__ __forceinline__"
    return ["-rdc=true", "-DDEEP_LL_NETWORK", version, inline, f"-I{CALLS}"]


def compile_ptx(csrc: Path, arch: str = "sm_90a", hidden: int = 0, route: str = "") -> str:
    """The PTX of ep_gpu.cu for rows of `hidden` channels; 0: any."""
    tier = f"h{hidden}" if hidden else "any"
    marks = [f"-arch={arch}", f"-I{csrc}", f"-DDEEP_LL_TIER={tier}", f"-DDEEP_LL_HIDDEN={hidden}"]
    marks += _network_flags(route)
    with tempfile.NamedTemporaryFile(suffix=".ptx") as output:
        command = [str(NVCC), *FLAGS, *marks, "-o", output.name, str(csrc / "ep" / "ep_gpu.cu")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return Path(output.name).read_text(encoding="utf-8")


def kept_ptx(arch: str = "sm_90a", hidden: int = 0, route: str = "") -> Path:
    """The PTX of this checkout, kept by what it was made from."""
    sources = sorted(p for p in CSRC.rglob("*") if p.suffix in (".hpp", ".cuh", ".cu"))
    sources += sorted(CALLS.iterdir()) if route else []
    mark = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    mark.update(f"{FLAGS} {arch} {hidden} {_network_flags(route)}".encode())
    kept = Path(tempfile.gettempdir(), f"deep_ll-ptx-{mark.hexdigest()[:16]}.ptx")
    if not kept.exists():
        unfinished = kept.with_suffix(f".{os.getpid()}")
        unfinished.write_text(compile_ptx(CSRC, arch, hidden, route), encoding="utf-8")
        unfinished.rename(kept)
    return kept


@functools.cache
def program(arch: str = "sm_90a", hidden: int = 0, route: str = "") -> ptx.Program:
    """The loaded kernels."""
    return ptx.load(kept_ptx(arch, hidden, route).read_text(encoding="utf-8"))
