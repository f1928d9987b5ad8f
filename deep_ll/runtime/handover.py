"""Hands the memory of each rank to the ranks of the same host.

The memory is a sealed memfd: it has no name, so nothing is left when ranks die at any moment; it
does not depend on the size of /dev/shm; its size cannot be changed, so a peer cannot be killed by
shrinking it. It goes over an abstract Unix socket (SCM_RIGHTS) to processes of the same user that
know the owner's secret, which travels through the group.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import secrets
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deep_ll.runtime.group import Group
    from deep_ll.runtime.paths import Wish

_SECRET_BYTES = 32
_PATIENCE_S = 60.0  # for one step of the hand-over


@dataclass(frozen=True)
class Memory:
    """A file descriptor of sealed memory."""

    fd: int


@dataclass(frozen=True)
class Card:
    """Where a rank hands out its memory, and what to say there."""

    address: str = field(default_factory=lambda: f"\0deep_ll-{secrets.token_hex(16)}")
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(_SECRET_BYTES))


@contextlib.contextmanager
def sealed_memory(num_bytes: int) -> Iterator[Memory]:
    """Memory that other processes can map: only its user's, of fixed size. Pages cost nothing
    until touched.
    """
    fd = os.memfd_create("deep_ll", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, num_bytes)
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        )
        yield Memory(fd)
    finally:
        os.close(fd)


class Taken(NamedTuple):
    """What a rank got of each peer.

    Attributes:
        fds: descriptors of their memory; None: this rank's own, or none.
        pids: of the processes that gave them, as seen from here; 0: not seen.
        why_not: why there is no memory; "" otherwise.
    """

    fds: list[int | None]
    pids: list[int]
    why_not: list[str]


@contextlib.contextmanager
def exchange(group: Group, fd: int, wish: Wish) -> Iterator[Taken]:
    """Gives `fd` to the peers that the wish allows and takes theirs. Collective; never fails for
    lack of a peer's memory, but says why it is not there.
    """
    with contextlib.ExitStack() as cleanup, serving(fd, group.size) as card:
        cards = group.all_gather(card)
        taken = Taken([None] * group.size, [0] * group.size, [""] * group.size)
        for peer in (p for p in range(group.size) if p != group.rank):
            taken.why_not[peer] = wish.against(group.rank, peer)
            if taken.why_not[peer]:
                continue
            try:
                own, taken.pids[peer] = take(cards[peer])
                taken.fds[peer] = own
                cleanup.callback(os.close, own)
            except OSError as error:
                taken.why_not[peer] = f"its memory cannot be mapped ({error})"
        group.all_gather(None)  # nobody takes any more
        yield taken


@contextlib.contextmanager
def serving(fd: int, num_peers: int) -> Iterator[Card]:
    """Gives `fd` to whoever shows the card."""
    card = Card()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(card.address)
        listener.listen(num_peers)
        server = threading.Thread(target=_serve, args=(listener, card.secret, fd), daemon=True)
        server.start()
        try:
            yield card
        finally:
            _stop(card)
            server.join(_PATIENCE_S)


def _serve(listener: socket.socket, secret: bytes, fd: int) -> None:
    """Answers peers until somebody says the secret without wanting the memory."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            if _answer(connection, secret, fd):
                return


def _answer(connection: socket.socket, secret: bytes, fd: int) -> bool:
    connection.settimeout(_PATIENCE_S)
    if _owner_of(connection).uid != os.geteuid():
        return False
    said = connection.recv(_SECRET_BYTES + 1, socket.MSG_WAITALL)
    if not hmac.compare_digest(said[:_SECRET_BYTES], secret):
        return False
    if said[_SECRET_BYTES:] == b"!":
        return True
    socket.send_fds(connection, [b"."], [fd])
    return False


class _Owner(NamedTuple):
    """The process at the other end."""

    pid: int
    uid: int
    gid: int


def _owner_of(connection: socket.socket) -> _Owner:
    size = struct.calcsize("3i")
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return _Owner(*struct.unpack("3i", said))


def _connect(card: Card) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_PATIENCE_S)
        connection.connect(card.address)
        if _owner_of(connection).uid != os.geteuid():
            raise PermissionError("another user's process answers")
    except BaseException:
        connection.close()
        raise
    return connection


def take(card: Card) -> tuple[int, int]:
    """A descriptor of the memory, and the process it is from."""
    with _connect(card) as connection:
        connection.sendall(card.secret + b"?")
        _, fds, _, _ = socket.recv_fds(connection, 1, 1)
        if not fds:
            raise ConnectionRefusedError("it was refused")
        return fds[0], _owner_of(connection).pid


def _stop(card: Card) -> None:
    with contextlib.suppress(OSError), _connect(card) as connection:
        connection.sendall(card.secret + b"!")
