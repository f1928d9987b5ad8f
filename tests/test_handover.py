"""How ranks get each other's memory: sealed, to the right processes only, or not at all."""

import fcntl
import os
import socket

import pytest

import deep_ll
from deep_ll.runtime import handover
from deep_ll.testing import run_ranks

NUM_BYTES = 1 << 16


def test_memory_is_sealed_and_private() -> None:
    with handover.sealed_memory(NUM_BYTES) as memory:
        status = os.fstat(memory.fd)
        assert status.st_size == NUM_BYTES
        assert status.st_mode & 0o777 == 0o600
        assert status.st_blocks == 0  # nothing was touched
        seals = fcntl.fcntl(memory.fd, fcntl.F_GET_SEALS)
        assert seals & fcntl.F_SEAL_SHRINK
        assert seals & fcntl.F_SEAL_GROW
        assert seals & fcntl.F_SEAL_SEAL
        for size in (0, 2 * NUM_BYTES):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.fd, size)


class Spied:
    """A thread group that lets a test look at, and change, what ranks tell each other first."""

    in_process = False

    def __init__(self, group, spy) -> None:
        self.rank, self.size = group.rank, group.size
        self._group, self._spy = group, spy

    def all_gather(self, value):
        values = self._group.all_gather(value)
        if self._spy is not None:
            spy, self._spy = self._spy, None
            self._group.all_gather(None)  # all ranks answer by now
            values = spy(self.rank, values)
        return values


def take(group, spy):
    with (
        handover.sealed_memory(NUM_BYTES) as memory,
        handover.exchange(Spied(group, spy), memory.fd) as fds,
    ):
        own, peer = os.fstat(memory.fd), os.fstat(fds[1 - group.rank])
        assert fds[group.rank] is None
        return own.st_ino, peer.st_ino


def num_fds_given(address: str, secret: bytes) -> int:
    """How many descriptors a rank gives to who says this."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(5)
        connection.connect(address)
        try:
            connection.sendall(secret + b"?")
            return len(socket.recv_fds(connection, 16, 4)[1])
        except ConnectionError:
            return 0


def num_fds_given_to_user(uid: int, address: str, secret: bytes) -> int:
    pid = os.fork()  # the user of a thread alone cannot be changed
    if pid == 0:
        try:
            os.setuid(uid)
            os._exit(num_fds_given(address, secret))
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_ranks_get_each_others_memory() -> None:
    (own0, peer0), (own1, peer1) = run_ranks(2, take, None)
    assert (own0, own1) == (peer1, peer0)


def test_wrong_secret_gets_nothing() -> None:
    answers = []

    def spy(rank, cards):
        if rank == 0:
            address, secret = cards[1].address, cards[1].secret
            answers.append(num_fds_given(address, bytes(len(secret))))
            answers.append(num_fds_given(address, secret))
        return cards

    run_ranks(2, take, spy)
    assert answers == [0, 1]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user for a moment")
def test_another_user_gets_nothing() -> None:
    answers = []

    def spy(rank, cards):
        if rank == 0:
            card = (cards[1].address, cards[1].secret)
            answers.extend(num_fds_given_to_user(uid, *card) for uid in (65534, 0))
        return cards

    run_ranks(2, take, spy)
    assert answers == [0, 1]


def take_and_catch(group, spy):
    with pytest.raises(deep_ll.PeerError) as caught:
        take(group, spy)
    return str(caught.value)


def test_unreachable_rank_is_told_to_all() -> None:
    def spy(rank, cards):
        nowhere = handover.Card()
        return [nowhere, cards[1]] if rank == 1 else cards

    for message in run_ranks(2, take_and_catch, spy):
        assert "rank 1 cannot map the memory of rank 0" in message
        assert "one host" in message
