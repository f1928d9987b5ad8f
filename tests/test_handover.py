"""How ranks get each other's memory: sealed, to the right processes only, or not at all."""

import fcntl
import os
import socket

import pytest

from deep_ll.runtime import handover
from deep_ll.runtime.paths import Wish
from deep_ll.testing import run_ranks

NUM_BYTES = 1 << 16
ANY = Wish()


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


def take(group, spy, wish=ANY):
    """The inodes of this rank's memory and of what it got of its peer, and why it got none."""
    with (
        handover.sealed_memory(NUM_BYTES) as memory,
        handover.exchange(Spied(group, spy), memory.fd, wish) as taken,
    ):
        assert taken.fds[group.rank] is None
        assert taken.why_not[group.rank] == ""
        peer = taken.fds[1 - group.rank]
        assert (peer is None) == bool(taken.why_not[1 - group.rank])
        inode = None if peer is None else os.fstat(peer).st_ino
        return os.fstat(memory.fd).st_ino, inode, taken.why_not[1 - group.rank]


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
    (own0, peer0, why0), (own1, peer1, why1) = run_ranks(2, take, None)
    assert (own0, own1) == (peer1, peer0)
    assert (why0, why1) == ("", "")


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


def test_unreachable_rank_is_told() -> None:
    """Only to the rank that cannot reach it: the others know it from what they gather next."""

    def spy(rank, cards):
        nowhere = handover.Card()
        return [nowhere, cards[1]] if rank == 1 else cards

    (own0, peer0, why0), (own1, peer1, why1) = run_ranks(2, take, spy)
    assert (peer0, why0) == (own1, "")
    assert peer1 is None
    assert own0 is not None
    assert "cannot be mapped" in why1
    assert "refused" in why1


@pytest.mark.parametrize("wish", [Wish(refused="for a test"), Wish(ranks_per_node=1)], ids=str)
def test_nobody_asks_for_what_is_not_wished(wish: Wish) -> None:
    asked = []

    def spy(rank, cards):
        # Whoever asked there all the same would be told another reason.
        asked.append(rank)
        return [handover.Card(), handover.Card()]

    for _, peer, why in run_ranks(2, take, spy, wish):
        assert peer is None
        assert why == wish.against(0, 1)
    assert sorted(asked) == [0, 1]


def test_descriptors_are_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run_ranks(2, take, None)
    assert len(os.listdir("/proc/self/fd")) == before
