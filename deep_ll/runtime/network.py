"""Which network interface leads to the hosts of other ranks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from deep_ll.runtime import machine

_LOOPBACK = "lo"
_SIOCGIFADDR = 0x8915
_IFREQ_BYTES = 40
_ANY_PORT = 9  # nothing is sent


@dataclass(frozen=True)
class Place:
    """Where a rank is, for the others.

    Attributes:
        host: a name of its network namespace that no other host has.
        addresses: IPv4 address of each interface that others could reach.
    """

    host: str
    addresses: dict[str, str]


def here() -> Place:
    """This process's place."""
    namespace = os.stat("/proc/self/ns/net").st_ino
    names = [name for _, name in socket.if_nameindex() if name != _LOOPBACK]
    addresses = {name: _address_of(name) for name in names}
    return Place(
        f"{machine.host_name()}/{namespace}", {name: a for name, a in addresses.items() if a}
    )


def device_to(own: Place, others: Sequence[Place]) -> str | None:
    """The interface to use: the loopback if all are on this host, else the first that a route to
    another host begins with. None: there is no such route.
    """
    abroad = [place for place in others if place.host != own.host]
    if not abroad:
        return _LOOPBACK
    mine = {address: name for name, address in own.addresses.items()}
    for place in abroad:
        # An address that this host has too is private to each host, as that of a bridge.
        for address in (a for a in place.addresses.values() if a not in mine):
            source = _source_towards(address)
            if source in mine:
                return mine[source]
    return None


def _address_of(interface: str) -> str:
    """Its IPv4 address; "" if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):
        request = struct.pack(f"{_IFREQ_BYTES}s", interface.encode()[:15])
        answer = fcntl.ioctl(asked, _SIOCGIFADDR, request)
        return socket.inet_ntoa(answer[20:24])
    return ""


def _source_towards(address: str) -> str:
    """The own address that packets to this one would carry; "" if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((address, _ANY_PORT))
        return str(probe.getsockname()[0])
    return ""
