"""Compiles the fake driver, once per content."""

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

_HERE = Path(__file__).parent
_SOURCES = ("devices.c", "driver.c", "events.c", "launch.c")


def folder() -> Path:
    """Where a libcuda.so.1 of these sources is: a folder for LD_LIBRARY_PATH."""
    content = b"".join((_HERE / name).read_bytes() for name in (*_SOURCES, "fake.h"))
    key = f"deep_ll-fake-cuda-{os.getuid()}-{hashlib.sha256(content).hexdigest()[:16]}"
    place = Path(tempfile.gettempdir()) / key
    if not (place / "libcuda.so.1").exists():
        place.mkdir(mode=0o700, exist_ok=True)
        _compile(place)
    return place


def _compile(place: Path) -> None:
    unfinished = place / f"unfinished-{os.getpid()}.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-fvisibility=hidden"]
    compiler = os.environ.get("CC", "cc")
    sources = [_HERE / name for name in _SOURCES]
    subprocess.run([compiler, *flags, "-o", unfinished, *sources, "-ldl", "-lpthread"], check=True)
    # In one step, because tests may run side by side.
    unfinished.rename(place / "libcuda.so.1")
