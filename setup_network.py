"""Compiles the kernels that reach peers over a network, against the NVSHMEM that is here.

Its device library is linked into them and must be of the minor version of the host library that a
process loads, so there is a module for each tree of NVSHMEM: `_kernels/net_3.4.fatbin`, and what is
in it as `net_3.4.json`. They serve rows of any size.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from setuptools.errors import CompileError

import setup_cuda
from setup_nvcc import ARCHS, Nvcc

TIER = "any"
OLDEST = (3, 4, 5)
# Calls leave kernels fewer registers. Bytes stored and loaded, as the assembler counts them: 532 is
# the most that was seen (combine, sm_80).
MOST_SPILLED = 600
LEFT_OUT = (
    "deep_ll: the kernels for GPUs of several hosts are left out: there is no NVSHMEM 3.4.5 or "
    "later. pip install 'deep_ll[cuda13]' and build again, or name its folder in DEEP_LL_NVSHMEM"
)


class Tree(NamedTuple):
    """A NVSHMEM: the folder with include/ and lib/, and its version."""

    folder: Path
    version: str

    @property
    def minor(self) -> str:
        """As "3.4"."""
        return ".".join(self.version.split(".")[:2])


def _tree(folder: Path) -> Tree | None:
    header = folder / "include" / "non_abi" / "nvshmem_version.h"
    if not header.is_file() or not (folder / "lib" / "libnvshmem_device.a").is_file():
        return None
    text = header.read_text(encoding="utf-8")
    parts = [
        re.search(rf"NVSHMEM_VENDOR_{part}_VERSION (\d+)", text)
        for part in ("MAJOR", "MINOR", "PATCH")
    ]
    return Tree(folder, ".".join(part[1] if part else "0" for part in parts))


def trees() -> list[Tree]:
    """What DEEP_LL_NVSHMEM names: folders, `off`, or `auto`: the package of this Python.

    Raises:
        CompileError: there is no NVSHMEM in a folder that was named, or too old a one, or two of
            one minor version.
    """
    wish = os.environ.get("DEEP_LL_NVSHMEM") or "auto"
    if wish == "off":
        return []
    if wish == "auto":
        folders = dict.fromkeys([*sys.path, sysconfig.get_path("purelib")])
        found = [_tree(Path(folder, "nvidia", "nvshmem")) for folder in folders]
        usable = [tree for tree in found if tree is not None and _is_new(tree)]
        if not usable:
            print(LEFT_OUT, file=sys.stderr)
        return usable[:1]
    named = {}
    for folder in wish.split(os.pathsep):
        tree = _tree(Path(folder))
        if tree is None or not _is_new(tree):
            what = f"NVSHMEM {tree.version}" if tree else "no NVSHMEM (include/, lib/)"
            raise CompileError(
                f"DEEP_LL_NVSHMEM={wish}: {what} in {folder}, 3.4.5 or later is needed"
            )
        if tree.minor in named:
            raise CompileError(f"DEEP_LL_NVSHMEM={wish}: two trees of NVSHMEM {tree.minor}")
        named[tree.minor] = tree
    return list(named.values())


def _is_new(tree: Tree) -> bool:
    return tuple(map(int, tree.version.split("."))) >= OLDEST


def _codes() -> list[str]:
    """Machine code only: NVSHMEM's library has nothing else to link with."""
    return [
        f"-gencode=arch={text},code={code}"
        for text, made in ARCHS.items()
        for code in made
        if code.startswith("sm_")
    ]


def _flags() -> list[str]:
    return [
        *["-std=c++20", "-O3", f"-I{setup_cuda.CSRC}", "-Werror", "all-warnings", "-fmad=false"],
        *["-rdc=true", "-DDEEP_LL_NETWORK", f"-DDEEP_LL_TIER={TIER}", "-DDEEP_LL_HIDDEN=0"],
        *["-Xptxas", "-v"],
        *_codes(),
    ]


def _told(text: str) -> dict[str, dict[str, dict[str, int]]]:
    """What the assembler says of each kernel, for each architecture: registers, bytes spilled."""
    pattern = (
        rf"Compiling entry function '_ZN7deep_ll{len(TIER)}{TIER}\d+([a-z_]+)E\w+' for '(\w+)'"
        r".*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers"
    )
    kernels: dict[str, dict[str, dict[str, int]]] = {}
    for kernel, arch, stores, loads, registers in re.findall(pattern, text, re.DOTALL):
        use = {"registers": int(registers), "spilled": int(stores) + int(loads)}
        kernels.setdefault(kernel, {})[arch] = use
    return kernels


class NetworkBuild:
    """Compiles and links a module for each tree into `build_temp` where something changed."""

    def __init__(self, nvcc: Nvcc, build_temp: Path, run: setup_cuda.Run, force: bool) -> None:
        self.nvcc, self.run, self.force = nvcc, run, force
        self.folder = build_temp / "gpu"

    def compile(self, tree: Tree) -> tuple[Path, dict[str, Any]]:
        """The fatbin of a tree, and what is in it.

        Raises:
            CompileError: a kernel spills more registers than is known.
        """
        name = f"net_{tree.minor}"
        command = [*self.nvcc.command, *_flags(), "-isystem", str(tree.folder / "include")]
        archive = tree.folder / "lib" / "libnvshmem_device.a"
        linked = [f"-L{archive.parent}", "-lnvshmem_device"]
        mark = _mark(f"{command} {self.nvcc.version} {Path(__file__).read_text()}", archive)
        fatbin = self.folder / f"{name}-{mark}.fatbin"
        described = fatbin.with_suffix(".json")
        sources = setup_cuda.digest()
        if self.force or not setup_cuda.is_fresh(described, sources):
            fatbin.parent.mkdir(parents=True, exist_ok=True)
            partial, alone = (fatbin.with_suffix(f".{os.getpid()}{end}") for end in ("", ".fatbin"))
            # In two steps: to link from the source, nvcc would compile it for the host as well.
            told = self.run(
                [*command, "--threads=0", "-fatbin", str(setup_cuda.UNIT), "-o", str(alone)]
            )
            link = [*self.nvcc.command, *_codes(), "-dlink", "-fatbin", str(alone), *linked]
            self.run([*link, "-o", str(partial)])
            alone.unlink()
            facts = {
                "file": f"{name}.fatbin",
                "nvshmem": tree.version,
                "sources": sources,
                "kernels": _told(told),
            }
            _refuse_spills(facts["kernels"])
            partial.rename(fatbin)
            described.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        return fatbin, json.loads(described.read_text(encoding="utf-8"))

    def install(self, built: list[tuple[Path, dict[str, Any]]], target: Path) -> None:
        """Writes them beside the plain kernels; those of earlier builds go."""
        for old in target.glob("net_*"):
            old.unlink()
        for fatbin, facts in built:
            shutil.copyfile(fatbin, target / facts["file"])
            described = (target / facts["file"]).with_suffix(".json")
            described.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _mark(command: str, archive: Path) -> str:
    size, time = archive.stat().st_size, archive.stat().st_mtime_ns
    return f"{zlib.crc32(f'{command} {size} {time}'.encode()):08x}"


def _refuse_spills(kernels: dict[str, dict[str, dict[str, int]]]) -> None:
    spilled = [
        f"{kernel} for {arch} {use['spilled']}"
        for kernel, archs in kernels.items()
        for arch, use in archs.items()
        if use["spilled"] > MOST_SPILLED
    ]
    if spilled or not kernels:
        raise CompileError(
            f"kernels for networks spill more than {MOST_SPILLED} bytes of registers: "
            f"{', '.join(spilled) or 'nothing is known of them'}"
        )
