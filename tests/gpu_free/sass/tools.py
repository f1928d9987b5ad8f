"""The compiler and the disassemblers, and what they make of a unit or a fatbin."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]
KERNELS = ROOT / "deep_ll" / "_kernels"
CURE = "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"


def build_module(name: str) -> ModuleType:
    """setup_cuda or setup_nvcc: flags and sizes are written down there."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    return importlib.import_module(name)


def tool(name: str) -> str | None:
    """A disassembler of the wheels, else of PATH."""
    for folder in dict.fromkeys([sysconfig.get_path("purelib"), *sys.path]):
        for found in sorted(Path(folder).glob(f"nvidia/cu*/bin/{name}"), reverse=True):
            if os.access(found, os.X_OK):
                return str(found)
    return shutil.which(name)


def missing() -> str:
    """Why compiled kernels cannot be read here; empty: they can."""
    absent = [name for name in ("cuobjdump", "nvdisasm") if tool(name) is None]
    return f"{' and '.join(absent)} missing: {CURE}" if absent else ""


def _run(*command: object, cwd: Path | None = None) -> str:
    path = f"{Path(tool('nvdisasm') or '.').parent}{os.pathsep}{os.environ.get('PATH', '')}"
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"PATH": path},
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


def unpack(fatbin: Path, folder: Path) -> dict[str, Path]:
    """The cubin or the PTX of each architecture in it."""
    _run(tool("cuobjdump"), "-xelf", "all", "-xptx", "all", fatbin, cwd=folder)
    found = [*folder.glob("*.cubin"), *folder.glob("*.ptx")]
    names = {path: path.stem.rsplit(".", 1)[-1] for path in found}
    return {
        name if path.suffix == ".cubin" else name.replace("sm_", "compute_"): path
        for path, name in names.items()
    }


def disassemble(cubin: Path) -> str:
    """Instructions with their encoding: it tells how long each holds up the next."""
    return _run(tool("nvdisasm"), "-c", "-hex", cubin)


def compile_one(nvcc: str, csrc: Path, arch: str, output: Path) -> Path:
    """One cubin or PTX of the unit in another copy of csrc, for rows of any size."""
    flags = ["-std=c++20", "-O3", "-fmad=false", f"-I{csrc}"]
    tier = ["-DDEEP_LL_TIER=any", "-DDEEP_LL_HIDDEN=0"]
    kind = "-ptx" if output.suffix == ".ptx" else "-cubin"
    _run(nvcc, *flags, *tier, f"-arch={arch}", kind, "-o", output, csrc / "ep" / "ep_gpu.cu")
    return output


def description() -> dict:
    """What the build says of its kernels."""
    return json.loads((KERNELS / "ep.json").read_text(encoding="utf-8"))
