"""Compiles twin.cpp, once per content."""

import functools
import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"
HOST = ("faults", "pool", "watch", "where")
UNITS = (*(f"team/host/{name}.cpp" for name in HOST), "symm/doorbell.cpp", "core/check.cpp")
FLAGS = ["-std=c++20", "-O2", "-g1", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden"]


@functools.cache
def library() -> Path:
    """The shared library with `twin_launch`."""
    sources = [Path(__file__), HERE / "twin.cpp", *sorted(CSRC.rglob("*.[ch]pp"))]
    content = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    target = Path(tempfile.gettempdir()) / f"deep_ll-twin-{os.getuid()}-{content[:16]}.so"
    if not target.exists():
        unfinished = target.with_suffix(f".{os.getpid()}")
        units = [HERE / "twin.cpp", *(CSRC / unit for unit in UNITS)]
        command = [*shlex.split(os.environ.get("CXX") or "g++"), *FLAGS, "-shared", "-pthread"]
        subprocess.run([*command, f"-I{CSRC}", *units, "-o", unfinished], check=True)
        unfinished.rename(target)
    return target
