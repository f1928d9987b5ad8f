"""The program that test_nodes.py runs on each host.

`hosts_work.py fork HOST PER_HOST ADDRESS PORT` makes the ranks of one host itself; `hosts_work.py
again RANK ADDRESS PORT rejoin|begin` is one that does what it reads, `store PORT` the store where
these meet; without arguments it is one rank, started by torchrun.
"""

import os
import socket
import sys
import time
import traceback
import warnings
from pathlib import Path

import rejoin_work
import torch
import torch.distributed as dist
from cases import Case
from link_exchange_work import exchange
from topologies import ALL_LINK, Topology, nodes_of

MODES = [("fp8", "plain", False), ("bf16", "plain", True), ("fp8", "hook", False)]


def main() -> None:
    per_host = int(os.environ["LOCAL_WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    assert socket.gethostname() == f"host{dist.get_rank() // per_host}"
    for topology, modes in ((Topology(), MODES), (ALL_LINK, MODES[-1:])):
        for cast, mode, zero_copy in modes:
            case = Case(
                world=world, experts=2 * world, cast=cast, mode=mode, zero_copy=zero_copy, rounds=2
            )
            run(case, topology, per_host)
    dist.barrier()
    Path(os.environ["DONE"], f"{world}_{dist.get_rank()}").touch()
    dist.destroy_process_group()


def run(case: Case, topology: Topology, per_host: int) -> None:
    """Against the oracle; what is not said by the topology has to be found out."""
    start = time.monotonic()
    expected = nodes_of(per_host) if topology == Topology() else topology
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        exchange(dist.group.WORLD, case, topology, expected)
    if dist.get_rank() == 0:
        print(f"{topology} {case}: {time.monotonic() - start:.1f} s", flush=True)


def fork_ranks(host: int, per_host: int, address: str, port: str) -> int:
    """One import for all ranks of a host. 0: all went well."""
    pids = []
    for local in range(per_host):
        pid = os.fork()
        if pid == 0:
            os.environ.update(
                RANK=str(host * per_host + local),
                WORLD_SIZE=str(2 * per_host),
                LOCAL_WORLD_SIZE=str(per_host),
                MASTER_ADDR=address,
                MASTER_PORT=port,
            )
            leave()
        pids.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids)


class Host(rejoin_work.Worker):
    """One of two ranks a host, which find out by themselves what they can map."""

    def check_paths(self) -> None:
        kinds = nodes_of(2).kinds(self.rank, rejoin_work.CASE.world)
        assert [path.kind for path in self.buf.paths()] == kinds


def obey(rank: int, address: str, port: int, rejoin: bool) -> None:
    """Reads "round INDEX MASKED..." and "rejoin RANK" by lines, and answers each with one."""
    torch.set_num_threads(1)
    store = dist.TCPStore(address, port, is_master=False)
    one = Host(rank, store, Topology(), rejoin, 60.0)
    print("ready", flush=True)
    for line in sys.stdin:
        name, *numbers = line.split()
        first, *others = map(int, numbers)
        if name == "round":
            one.round(first, others)
        else:
            one.rejoin(first)
        print(name, flush=True)
    one.buf.destroy()


def leave() -> None:
    try:
        main()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["fork"]:
        sys.exit(fork_ranks(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6]))
    if sys.argv[1:2] == ["again"]:
        obey(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5] == "rejoin")
    elif sys.argv[1:2] == ["store"]:
        kept = dist.TCPStore("0.0.0.0", int(sys.argv[2]), is_master=True, wait_for_workers=False)
        print("ready", flush=True)
        sys.stdin.read()
    else:
        main()
