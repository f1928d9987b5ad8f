"""The life of one rank process of a RankPool: join the group, then work until told to stop."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from deep_ll.testing.rank_errors import Failure

GROUP_TIMEOUT = timedelta(seconds=300)
PR_SET_PDEATHSIG = 1


def serve(rank: int, world_size: int, port: int, conn: Connection) -> None:
    """Answers every pickled ``(fn, args)`` of ``conn`` with a result or a Failure.

    The first answer, unasked, is the descriptor of the file that SIGUSR1 writes the stack to.
    """
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    # The pool reads this file through /proc, to tell where a rank hangs.
    stacks_fd = os.memfd_create("deep_ll-stacks")
    faulthandler.register(signal.SIGUSR1, file=stacks_fd, all_threads=False)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    joined = _answer(lambda: _join_group(rank, world_size, port, stacks_fd))
    conn.send_bytes(joined)
    if isinstance(pickle.loads(joined), Failure):
        return
    while True:
        try:
            payload = conn.recv_bytes()
        except EOFError:
            return
        if not payload:
            break
        conn.send_bytes(_answer(lambda: _call(payload)))  # noqa: B023 (called at once)
    dist.destroy_process_group()


def _join_group(rank: int, world_size: int, port: int, stacks_fd: int) -> int:
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=GROUP_TIMEOUT
    )
    return stacks_fd


def _call(payload: bytes) -> object:
    fn, args = pickle.loads(payload)
    return fn(dist.group.WORLD, *args)


def _answer(work: Callable[[], object]) -> bytes:
    # Not Connection.send(): torch would pass tensors as files in /dev/shm.
    try:
        return pickle.dumps(work())
    except BaseException as error:
        return pickle.dumps(Failure(error, traceback.format_exc()))


def _die_with_parent() -> None:
    """Ends this process when the fork server dies, or the process that owns the pool."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch(sentinel: int) -> None:
        wait([sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    # The owner is not the kernel's parent of this process (the fork server is), so no signal tells.
    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
