"""What the CUDA driver says of itself and its GPUs.

It imports nothing of this package, because it also runs as a script: whoever only wants to know
must not start CUDA in this process, which could not fork any more.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from typing import Any

_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_PATIENCE_S = 60


def look() -> dict[str, Any]:
    """Asks the driver in this process, which starts CUDA in it.

    Returns:
        driver: its CUDA version, 13000 for 13.0, or None; error: why not all is known, or None;
        devices: name and capability of each GPU.
    """
    report: dict[str, Any] = {"driver": None, "error": None, "devices": []}
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        report["error"] = str(error)
        return report
    version, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    report["driver"] = version.value
    code = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    if code:
        report["error"] = _name(library, code)
    report["devices"] = [_device(library, index) for index in range(count.value)]
    return report


def look_elsewhere() -> dict[str, Any]:
    """Asks the driver in a process of its own."""
    command = [sys.executable, "-I", "-S", __file__]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_PATIENCE_S, check=True, text=True
        )
        report: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"driver": None, "error": f"asking the driver failed: {error}", "devices": []}
    return report


def _device(library: ctypes.CDLL, index: int) -> dict[str, Any]:
    device, value, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in _CAPABILITY:
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    return {"name": name.value.decode(errors="replace"), "capability": capability}


def _name(library: ctypes.CDLL, code: int) -> str:
    name = ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(name))
    return f"{(name.value or b'unknown error').decode()} ({code})"


if __name__ == "__main__":
    json.dump(look(), sys.stdout)
