"""Builds deep_ll._native from csrc/: one pybind11 extension for every CPU of an architecture.

Units named *_tier.cpp hold the hot loops. They are compiled once per CPU level ("tier"), each into
a namespace of its own; the library chooses at run time. The kernels for GPUs: setup_cuda.py. All
other settings: pyproject.toml.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

# A build backend runs this file without its folder being on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))
import setup_cuda
import setup_network
import setup_nvcc

CSRC = Path("csrc")
SYSTEM_HEADERS = Path("/usr/include")
NO_UCX = (
    "note: there are no headers of UCX, so this build cannot reach ranks of other hosts. They come "
    "with pip install libucx-cu13; then build again"
)
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]
# The same bits on every tier need: no contraction into FMA that the code did not ask for.
# Vector code needs: no errno and no trapping in float operations.
MATH = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
COMMON = ["-std=c++20", "-O3", *MATH, "-fPIC", "-fvisibility=hidden", "-pthread", *WARNINGS]

TIERS = {
    "x86_64": {
        "v2": ["-march=x86-64-v2"],
        "v3": ["-march=x86-64-v3"],
        "v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    },
    "aarch64": {"base": []},
}

PROBE = "#include <atomic>\n#include <concepts>\nstatic_assert(__cpp_lib_atomic_ref);\n"
INSTALL = "install it with: apt-get install {} (Debian, Ubuntu) or dnf install {} (Fedora, RHEL)"
NO_CODE = re.compile(r"DW\.ref\.|__clang_call_terminate$")  # weak, but the same for every tier


def tiers() -> dict[str, list[str]]:
    """Name and flags of each CPU level to build for."""
    machine = platform.machine()
    if not sys.platform.startswith("linux") or machine not in TIERS:
        known = " and ".join(TIERS)
        raise CompileError(f"deep_ll needs Linux on {known}, this is {sys.platform} on {machine}")
    native = {"native": ["-march=native"]} if os.environ.get("DEEP_LL_NATIVE") == "1" else {}
    return TIERS[machine] | native


def find_compiler() -> list[str]:
    """The command of a C++ compiler that can build this, with its version checked."""
    command = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(command[0]) is None:
        hint = INSTALL.format("g++", "gcc-c++")
        raise CompileError(f"no C++ compiler: {command[0]} is missing; {hint}, or set CXX")
    last_tier = list(TIERS[platform.machine()].values())[-1]
    probe = [*command, "-std=c++20", *last_tier, "-x", "c++", "-fsyntax-only", "-"]
    result = subprocess.run(probe, input=PROBE, capture_output=True, text=True)
    if result.returncode != 0:
        hint = INSTALL.format("g++-12", "gcc-c++") + ", then set CXX=g++-12"
        raise CompileError(f"{command[0]} lacks C++20, g++ 11 has it; {hint}\n{result.stderr}")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise CompileError(f"no Python.h: {INSTALL.format('python3-dev', 'python3-devel')}")
    return command


def ucx_headers() -> Path | None:
    """Where UCX's headers are: in the package libucx-cu* of this Python, else the system's.

    The library itself is found at run time. None: the link to other hosts is left out.
    """
    package = importlib.util.find_spec("libucx")
    found = (
        [Path(place, "include") for place in (package.submodule_search_locations or ())]
        if (package)
        else []
    )
    found += [Path("/usr/local/include"), SYSTEM_HEADERS]
    return next((place for place in found if (place / "ucp/api/ucp.h").is_file()), None)


def weak_symbols_outside(tier: str, object_file: Path) -> list[str]:
    """Weak symbols that the linker could take from this object for another tier."""
    listing = subprocess.check_output(["nm", "-C", "--defined-only", object_file], text=True)
    symbols = re.findall(r"^[0-9a-f]+ [WVu] (.+)$", listing, re.MULTILINE)
    return [name for name in symbols if f"::{tier}::" not in name and not NO_CODE.match(name)]


class TieredBuild(build_ext):
    """Compiles what changed, in parallel, and links it."""

    def finalize_options(self) -> None:
        """Keeps objects in one place: an editable install and a later rebuild share them."""
        super().finalize_options()
        self.build_temp = "build/objects"

    def build_extension(self, ext: Extension) -> None:
        """Builds and links all units of csrc/."""
        cxx = find_compiler()
        levels = list(tiers())
        jobs = [
            (Path(source), tier)
            for source in ext.sources
            for tier in (levels if source.endswith("_tier.cpp") else [None])
        ]
        Path(self.build_temp).mkdir(parents=True, exist_ok=True)
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as workers:
            kernels = self._start_kernels(workers, target.parent / "_kernels")
            objects = list(workers.map(lambda job: self._compile(cxx, *job), jobs))
            kernels()
        extra = shlex.split(os.environ.get("LDFLAGS", ""))
        self._run(
            [*cxx, "-shared", "-pthread", *map(str, objects), "-ldl", *extra, "-o", str(target)]
        )

    def copy_extensions_to_source(self) -> None:
        """After a build in place: brings the kernels there too."""
        super().copy_extensions_to_source()
        kernels = Path("deep_ll", "_kernels")
        shutil.rmtree(kernels, ignore_errors=True)
        if (built := Path(self.build_lib) / kernels).is_dir():
            shutil.copytree(built, kernels)

    def _start_kernels(self, workers: ThreadPoolExecutor, target: Path) -> Callable[[], None]:
        """Begins to compile the kernels for GPUs. What it returns waits for them."""
        nvcc = setup_nvcc.choose_nvcc(Path(self.build_temp))
        if nvcc is None:
            # Kernels of an earlier build would not fit what is built now.
            shutil.rmtree(target, ignore_errors=True)
            return lambda: None
        build = setup_cuda.KernelBuild(nvcc, Path(self.build_temp), self._run, self.force)
        tiers = workers.map(build.compile, setup_cuda.TIERS)
        network = setup_network.NetworkBuild(nvcc, Path(self.build_temp), self._run, self.force)
        modules = workers.map(network.compile, setup_network.trees())

        def install() -> None:
            build.install(list(tiers), target)
            network.install(list(modules), target)

        return install

    def _compile(self, cxx: list[str], source: Path, tier: str | None) -> Path:
        flags = [*COMMON, f"-I{CSRC}", *shlex.split(os.environ.get("CXXFLAGS", ""))]
        if tier is not None:
            flags += [f"-DDEEP_LL_TIER={tier}", *tiers()[tier]]
        ucx = ucx_headers()
        if ucx is not None and (source.parent.name == "ucx" or source.stem == "link"):
            flags += ["-DDEEP_LL_HAVE_UCX=1"]
            # Named once more, that folder would come before the compiler's own.
            flags += ["-isystem", str(ucx)] if ucx != SYSTEM_HEADERS else []
        if source.parent.name == "bindings":
            flags += [f"-DDEEP_LL_HAVE_{name.upper()}=1" for name in tiers()]
            flags += ["-isystem", pybind11.get_include(), "-isystem", sysconfig.get_path("include")]
        command = [*cxx, *flags, "-c", str(source)]
        # The name holds the command: other flags or another compiler make another object.
        mark = f"{zlib.crc32(' '.join(command).encode()):08x}"
        name = "-".join([source.parent.name, source.stem, tier or "all", mark])
        output = Path(self.build_temp, f"{name}.o")
        if self.force or not _is_fresh(output, source):
            partial = output.with_suffix(f".{os.getpid()}.tmp")
            self._run([*command, "-o", str(partial)])
            partial.rename(output)
        leaks = weak_symbols_outside(tier, output) if tier is not None else []
        if leaks:
            raise CompileError(
                f"{source}, tier {tier}: other tiers could get the code of these weak symbols, "
                f"inline them or put them into the tier's namespace: {', '.join(leaks)}"
            )
        return output

    def _run(self, command: list[str]) -> str:
        if self.verbose:
            print(shlex.join(command), flush=True)
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise CompileError(f"{shlex.join(command)}\n{result.stderr}")
        return result.stderr


def _is_fresh(output: Path, source: Path) -> bool:
    if not output.exists():
        return False
    inputs = [source, *CSRC.rglob("*.hpp")]
    return output.stat().st_mtime > max(path.stat().st_mtime for path in inputs)


if __name__ == "__main__":
    if ucx_headers() is None:
        print(NO_UCX, file=sys.stderr)
    units = sorted(CSRC.rglob("*.cpp"))
    sources = [str(path) for path in units if path.parent.name != "ucx" or ucx_headers()]
    headers = [str(path) for path in sorted(CSRC.rglob("*.hpp"))]
    native_module = Extension("deep_ll._native", sources, depends=[*headers, "setup.py"])
    setup(ext_modules=[native_module], cmdclass={"build_ext": TieredBuild})
