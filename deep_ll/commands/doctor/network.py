"""Checks of the way to other hosts on CPUs: interfaces and UCX."""

from __future__ import annotations

import subprocess
import sys

from deep_ll import _native, env
from deep_ll.commands.doctor.lines import ABSENT, BROKEN, OK, WARNING, Line, Machine
from deep_ll.runtime import link, network

_INSTALL = "pip install 'deep_ll[net]'"
_PATIENCE_S = 60
# In a process of its own: UCX puts hooks and signal handlers into the one that loads it.
_ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1] or "libucp.so.0")
library.ucp_get_version_string.restype = ctypes.c_char_p
print(library.ucp_get_version_string().decode())
"""


def interfaces(machine: Machine) -> list[Line]:
    """What other hosts can be reached by."""
    addresses = network.here().addresses
    if not addresses:
        return [Line("interfaces", ABSENT, "none but the loopback: no other hosts")]
    return [Line("interfaces", OK, ", ".join(f"{n} {a}" for n, a in addresses.items()))]


def ucx(machine: Machine) -> list[Line]:
    """The library that carries rows between hosts, and whether this build can use it."""
    needed = is_link_needed()
    path = link.library_path(env.settings().libucp)
    version, problem = _version(path)
    where = path or "the system's"
    if not version:
        state = BROKEN if needed else ABSENT
        found = f"cannot be loaded from {where}: {problem}"
        if not needed:
            return [Line("ucx", state, "none; only ranks on several hosts need it")]
        return [Line("ucx", state, found, f"{_INSTALL}, or DEEP_LL_LIBUCP=/path/libucp.so.0")]
    if not _native.HAVE_UCX:
        cure = f"{_INSTALL}, then build deep_ll again"
        found = f"{version} ({where}), but deep_ll was built without its headers"
        return [Line("ucx", BROKEN if needed else WARNING, found, cure)]
    return [Line("ucx", OK, f"{version} ({where})")]


def is_link_needed() -> bool:
    """Whether the environment forbids ranks of this host to map each other's memory."""
    settings = env.settings()
    return bool(settings.disable_p2p or settings.ranks_per_node)


def _version(path: str) -> tuple[str, str]:
    """The library's version, or why there is none."""
    command = [sys.executable, "-I", "-S", "-c", _ASK, path]
    done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, text=True)
    if done.returncode == 0:
        return done.stdout.strip(), ""
    return "", (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]


CHECKS = (interfaces, ucx)
