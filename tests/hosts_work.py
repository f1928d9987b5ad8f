"""The program that test_nodes.py runs on each host.

`hosts_work.py fork HOST PER_HOST ADDRESS PORT` makes the ranks of one host itself; without
arguments it is one rank, started by torchrun.
"""

import os
import socket
import sys
import time
import traceback
import warnings
from pathlib import Path

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
    main()
