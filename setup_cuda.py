"""Compiles the kernels for GPUs, csrc/ep/ep_gpu.cu, where there is an nvcc.

Each row size that is known by heart is a tier: a fatbin `_kernels/ep_TIER.fatbin` with machine code
and PTX for setup_nvcc.ARCHS. `_kernels/ep.json` says what is in them. A process loads the one that
it needs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setup_nvcc import ARCHS, Nvcc

CSRC = Path("csrc")
UNIT = CSRC / "ep" / "ep_gpu.cu"

# Channels of a row; 0: any, read from the launch.
TIERS = {
    "any": 0,
    "h2048": 2048,
    "h4096": 4096,
    "h5120": 5120,
    "h6144": 6144,
    "h7168": 7168,
}


FLAGS = [
    *["-std=c++20", "-O3", f"-I{CSRC}", "-Werror", "all-warnings"],
    # The same bits as on CPUs: nothing is contracted that the code did not ask for.
    "-fmad=false",
    # A spill would be silent and slow: it is an error.
    *["-Xptxas", "-v,-warn-spills,-warn-lmem-usage,-Werror"],
    *[f"-gencode=arch={text},code=[{','.join(made)}]" for text, made in ARCHS.items()],
]

Run = Callable[[list[str]], str]  # a command; returns what it said


def sources() -> list[Path]:
    """All that the unit may include."""
    found = [UNIT, *CSRC.rglob("*.hpp"), *CSRC.rglob("*.cuh")]
    return sorted(path for path in found if not {"host", "bindings"} & set(path.parts))


def _told(text: str, tier: str) -> dict[str, dict[str, dict[str, int]]]:
    """What the assembler says of each kernel, for each architecture: registers, shared memory."""
    pattern = (
        rf"Compiling entry function '_ZN7deep_ll{len(tier)}{tier}\d+([a-z_]+)E\w+' for '(\w+)'"
        r".*?Used (\d+) registers.*?(\d+) bytes smem"
    )
    kernels: dict[str, dict[str, dict[str, int]]] = {}
    for kernel, arch, registers, shared in re.findall(pattern, text, re.DOTALL):
        use = {"registers": int(registers), "shared": int(shared)}
        kernels.setdefault(kernel, {})[arch] = use
    return kernels


class KernelBuild:
    """Compiles tiers into `build_temp` where something changed; then puts them into a package."""

    def __init__(self, nvcc: Nvcc, build_temp: Path, run: Run, force: bool) -> None:
        self.nvcc = nvcc
        self.folder = build_temp / "gpu"
        self.run = run
        self.force = force
        self.sources = digest()

    def compile(self, tier: str) -> tuple[str, Path, dict[str, Any]]:
        """The fatbin of a tier, and what is in it."""
        marks = [f"-DDEEP_LL_TIER={tier}", f"-DDEEP_LL_HIDDEN={TIERS[tier]}"]
        command = [*self.nvcc.command, *FLAGS, *marks, "--threads=0", "-fatbin", str(UNIT)]
        # Another command, compiler or version of this file makes another object.
        key = f"{command} {self.nvcc.version} {Path(__file__).read_text(encoding='utf-8')}"
        mark = f"{zlib.crc32(key.encode()):08x}"
        fatbin = self.folder / f"ep_{tier}-{mark}.fatbin"
        described = fatbin.with_suffix(".json")
        if self.force or not is_fresh(described, self.sources):
            scratch = self.folder / f"{tier}-{os.getpid()}"
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            packed = scratch / fatbin.name
            told = self.run([*command, f"--keep-dir={scratch}", "--keep", "-o", str(packed)])
            facts = self._describe(tier, told, next(scratch.glob("*compute_90*.ptx")))
            packed.rename(fatbin)
            described.write_text(json.dumps(facts), encoding="utf-8")
            shutil.rmtree(scratch)
        return tier, fatbin, json.loads(described.read_text(encoding="utf-8"))

    def _describe(self, tier: str, told: str, ptx: Path) -> dict[str, Any]:
        entry = r"\.entry (_ZN7deep_ll\w+?)\(\s*\.param \.align \d+ \.b8 \w+\[(\d+)\]\s*\)"
        sizes = dict(re.findall(entry, ptx.read_text(encoding="utf-8")))
        kernels = {}
        for kernel, uses in sorted(_told(told, tier).items()):
            (name,) = [name for name in sizes if f"{len(kernel)}{kernel}E" in name]
            kernels[kernel] = {"name": name, "params_bytes": int(sizes[name]), "uses": uses}
        about = {"file": f"ep_{tier}.fatbin", "hidden": TIERS[tier], "sources": self.sources}
        return about | {"kernels": kernels}

    def install(self, tiers: list[tuple[str, Path, dict[str, Any]]], target: Path) -> None:
        """Writes `target`, the package's folder of kernels."""
        target.mkdir(parents=True, exist_ok=True)
        for _, fatbin, facts in tiers:
            shutil.copyfile(fatbin, target / facts["file"])
        facts_of_all = {
            "nvcc": self.nvcc.version,
            "sources": self.sources,
            "archs": [made for shipped in ARCHS.values() for made in shipped],
            "tiers": {tier: facts for tier, _, facts in tiers},
        }
        text = json.dumps(facts_of_all, indent=1) + "\n"
        (target / "ep.json").write_text(text, encoding="utf-8")


def digest() -> str:
    """Names the text that kernels are made from."""
    whole = hashlib.sha256()
    for path in sources():
        whole.update(path.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()


def is_fresh(described: Path, wanted: str) -> bool:
    """Whether what is described there was made from this text."""
    if not described.exists():
        return False
    return bool(json.loads(described.read_text(encoding="utf-8"))["sources"] == wanted)
