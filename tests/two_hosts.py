"""Two hosts on one machine: namespaces for network, files, IPC and names, joined by a cable."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

MTU = 65535
ADDRESSES = ("10.77.0.1", "10.77.0.2")
# Its own /dev/shm, and nothing mounted here is seen outside. It ends with its parent.
HOLDER = """
mount --make-rprivate / && mount -t tmpfs -o size=64m tmpfs /dev/shm &&
hostname {name} && ip link set lo up && echo ready && exec sleep 900
"""


def why_not() -> str:
    """Why there can be none here; "" if there can."""
    if os.geteuid() != 0:
        return "needs root, to make namespaces"
    missing = [tool for tool in ("ip", "unshare", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: iproute2, util-linux)"
    with contextlib.suppress(OSError, subprocess.SubprocessError), two_hosts():
        return ""
    return "namespaces or virtual cables are not allowed here"


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """The hosts; afterwards nothing is left of them."""
    with contextlib.ExitStack() as cleanup:
        hosts = tuple(Host(index, cleanup) for index in range(2))
        # Made inside the first, so that nothing ever appears in the machine's own network.
        hosts[0].call(
            "ip", "link", "add", "eth0", "mtu", str(MTU), "type", "veth",
            "peer", "name", "eth0", "mtu", str(MTU), "netns", str(hosts[1].pid),
        )  # fmt: skip
        for host in hosts:
            host.call("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
            host.call("ip", "link", "set", "eth0", "up")
        yield hosts[0], hosts[1]


class Host:
    """One of them, as long as its holder lives."""

    def __init__(self, index: int, cleanup: contextlib.ExitStack) -> None:
        self.address = ADDRESSES[index]
        text = HOLDER.format(name=f"host{index}")
        # No --fork: the process that is known here is the one that holds the namespaces.
        spaces = ["unshare", "--net", "--mount", "--ipc", "--uts"]
        holder = subprocess.Popen(
            [*spaces, "sh", "-c", text],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        cleanup.callback(_end, holder)
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            raise OSError(f"host {index} did not come up")
        self.pid = holder.pid

    def inside(self, *command: str) -> list[str]:
        """The command, to be run there."""
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "-i", "-u", "--", *command]

    def call(self, *command: str) -> None:
        subprocess.run(self.inside(*command), check=True, capture_output=True, timeout=10)


def _end(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait(10)
    if holder.stdout is not None:
        holder.stdout.close()
