"""Checks of the environment: values that cannot be, names that nobody reads, contradictions."""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Iterator

from deep_ll import env
from deep_ll.commands.doctor.lines import BROKEN, OK, WARNING, Line, Machine
from deep_ll.errors import ArgumentError
from deep_ll.runtime import machine as this_machine

_OWN = "DEEP_LL_"
_PREFIXES = (_OWN, "NVSHMEM_", "UCX_", "GLOO_", "NCCL_", "CUDA_VISIBLE_DEVICES")
_OTHERS = ("DEEP_LL_CUDA", "DEEP_LL_NATIVE")  # for the build
_UCX = "DEEP_LL_UCX_"  # settings of UCX for this library alone
_LEAST_DEPTH = 128  # of NVSHMEM's queues
_TRUE = ("1", "y", "yes", "t", "true", "on")


def values(machine: Machine) -> list[Line]:
    """What is set, and whether it can be understood."""
    names = sorted(name for name in os.environ if name.startswith(_PREFIXES))
    found = ", ".join(f"{name}={os.environ[name]}" for name in names) or "nothing set"
    try:
        env.settings()
    except ArgumentError as error:
        return [Line("environment", BROKEN, str(error), "set it so, or unset it")]
    return [Line("environment", OK, found)]


def unread(machine: Machine) -> list[Line]:
    """Names with our prefix that nobody reads."""
    known = [*(variable.name for variable in env.VARIABLES), *_OTHERS]
    lines = []
    for name in sorted(os.environ):
        if name.startswith(_OWN) and not name.startswith(_UCX) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            cure = f"did you mean {close[0]}?" if close else "unset it"
            lines.append(Line(name, WARNING, "nobody reads this variable", cure))
    return lines


def contradictions(machine: Machine) -> list[Line]:
    """Settings that cannot work here, or not together."""
    return [*_threads(), *_interfaces(), *_gpus(machine), *_nvshmem(machine)]


def _threads() -> Iterator[Line]:
    threads, cores = env.settings().num_threads, this_machine.num_cores()
    if threads is not None and threads > cores:
        cure = "at most cores / ranks on this host"
        yield Line("DEEP_LL_NUM_THREADS", WARNING, f"{threads} threads a rank, {cores} cores", cure)


def _interfaces() -> Iterator[Line]:
    there = {name for _, name in socket.if_nameindex()}
    for name in ("GLOO_SOCKET_IFNAME", "DEEP_LL_UCX_NET_DEVICES"):
        asked = [each for each in os.environ.get(name, "").split(",") if each and each != "all"]
        # UCX names ports of RDMA cards as card:port.
        missing = [each for each in asked if each not in there and ":" not in each]
        if missing:
            cure = f"there are {', '.join(sorted(there))}"
            yield Line(name, BROKEN, f"no interface {', '.join(missing)}", cure)


def _gpus(machine: Machine) -> Iterator[Line]:
    device = env.settings().device
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    has_gpu = all(each.ok for each in machine.survey if each.name in ("driver", "gpu"))
    if device == "cuda" and not has_gpu:
        cure = "unset DEEP_LL_DEVICE, or see the lines of gpu: above"
        yield Line("DEEP_LL_DEVICE", BROKEN, "cuda, but there is no GPU", cure)
    if visible in ("", "-1") and machine.gpu_wanted and device != "cpu":
        cure = "unset it, or DEEP_LL_DEVICE=cpu if that is meant"
        yield Line("CUDA_VISIBLE_DEVICES", WARNING, "hides all GPUs", cure)


def _nvshmem(machine: Machine) -> Iterator[Line]:
    if not machine.gpu_wanted:
        return
    p2p_off = os.environ.get("NVSHMEM_DISABLE_P2P", "").strip().lower() in _TRUE
    ibgda = os.environ.get("NVSHMEM_IB_ENABLE_IBGDA", "").strip().lower() in _TRUE
    has_cards = bool(machine.folders("sys/class/infiniband"))
    transport = os.environ.get("NVSHMEM_REMOTE_TRANSPORT", "")
    if p2p_off and transport == "none":
        cure = "unset one of them: there is no way to any peer"
        yield Line("NVSHMEM_DISABLE_P2P", BROKEN, "1, with NVSHMEM_REMOTE_TRANSPORT=none", cure)
    elif p2p_off and not has_cards:
        cure = "unset it: peers' memory is the only way here"
        yield Line("NVSHMEM_DISABLE_P2P", BROKEN, "1, and no RDMA card", cure)
    if ibgda and not has_cards:
        cure = "unset it: it needs an mlx5 card"
        yield Line("NVSHMEM_IB_ENABLE_IBGDA", WARNING, "set, and no RDMA card", cure)
    depth = os.environ.get("NVSHMEM_QP_DEPTH", "")
    if depth.isdecimal() and int(depth) < _LEAST_DEPTH:
        cure = f"{_LEAST_DEPTH} at least; 2 * (tokens a rank + 1) for all of a dispatch to fit"
        yield Line("NVSHMEM_QP_DEPTH", WARNING, f"{depth}, too few for NVSHMEM", cure)


CHECKS = (values, unread, contradictions)
