"""The environment, read here and nowhere else. A bad value raises; the README's table is made from
this.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from typing import NamedTuple

import torch

from deep_ll.errors import ArgumentError


@dataclass(frozen=True)
class Variable:
    """One environment variable: what it is called, what holds without it, what it does."""

    name: str
    default: str
    meaning: str


VARIABLES = (
    Variable(
        "DEEP_LL_TIMEOUT_S",
        "100",
        "seconds a call waits for peers before it raises PeerTimeout; 0: for ever",
    ),
    Variable(
        "DEEP_LL_NUM_THREADS",
        "auto",
        "threads of a rank; auto: the cores it may use / the ranks on this host",
    ),
    Variable(
        "DEEP_LL_CPU_LEVEL",
        "auto",
        "kernels to run: v2, v3 or v4 (x86-64 levels), base, native; auto: the best",
    ),
    Variable(
        "DEEP_LL_STREAMING",
        "auto",
        "stores past the caches: always, never, auto: when a call's rows outgrow them",
    ),
    Variable(
        "DEEP_LL_DEVICE",
        "auto",
        "where buffers are: cpu, cuda, auto: a GPU if torch has one (not for thread ranks)",
    ),
    Variable(
        "DEEP_LL_NUM_SMS",
        "32",
        "multiprocessors that a kernel on a GPU uses",
    ),
    Variable(
        "DEEP_LL_FORCE_LINK",
        "0",
        "for checks, on GPUs: 1: the kernels for networks are used for all peers, mapped ones too",
    ),
    Variable(
        "NVSHMEM_DISABLE_P2P",
        "0",
        "1: peers' memory is not mapped, all goes over the network",
    ),
    Variable(
        "NVSHMEM_QP_DEPTH",
        "1024",
        "what `Buffer.nvshmem_qp_depth` says: messages of a GPU that a queue pair to a peer holds",
    ),
    Variable(
        "DEEP_LL_RANKS_PER_NODE",
        "0",
        "each so many ranks count as a node, between which no memory is mapped; 0: by "
        "what can be mapped",
    ),
    Variable(
        "DEEP_LL_TRACE",
        "none",
        "on CPUs: a folder into which each rank writes what it did when (docs/observing.md)",
    ),
    Variable(
        "DEEP_LL_FAULT",
        "none",
        "for tests, on CPUs: POINT:kill@N or POINT:stop@N, what this process does to itself at the "
        "N-th visit of a point (csrc/team/host/faults.hpp)",
    ),
    Variable(
        "DEEP_LL_LIBUCP",
        "auto",
        "path of the libucp.so.0 to reach other hosts with; auto: one that is loaded already, else "
        "that of the package libucx, else the system's",
    ),
)


class Fault(NamedTuple):
    """Where a process kills or stops itself."""

    point: str
    signal: int
    visit: int


@dataclass(frozen=True)
class Settings:
    """The environment's values, parsed."""

    timeout_s: float
    num_threads: int | None
    cpu_level: str
    streaming: bool | None
    device: str
    num_sms: int
    force_link: bool
    disable_p2p: bool | None
    ranks_per_node: int
    libucp: str
    qp_depth: int
    trace: str | None
    fault: Fault | None


def markdown_table() -> str:
    """All variables as the README shows them."""
    rows = [f"| `{v.name}` | {v.default} | {v.meaning} |" for v in VARIABLES]
    return "\n".join(["| variable | default | meaning |", "| --- | --- | --- |", *rows])


def settings() -> Settings:
    """Reads the environment.

    Raises:
        ArgumentError: a value that cannot be understood; the message names variable, value and what
            it may be.
    """
    return Settings(
        timeout_s=_timeout(_text("DEEP_LL_TIMEOUT_S")),
        num_threads=_threads(_text("DEEP_LL_NUM_THREADS")),
        cpu_level=_level(_text("DEEP_LL_CPU_LEVEL")),
        streaming=_streaming(_text("DEEP_LL_STREAMING")),
        device=_device(_text("DEEP_LL_DEVICE")),
        num_sms=_from_one("DEEP_LL_NUM_SMS"),
        force_link=_switch("DEEP_LL_FORCE_LINK"),
        disable_p2p=_disable_p2p(os.environ.get("NVSHMEM_DISABLE_P2P", "")),
        ranks_per_node=_ranks_per_node(_text("DEEP_LL_RANKS_PER_NODE")),
        libucp=_libucp(_text("DEEP_LL_LIBUCP")),
        qp_depth=_from_one("NVSHMEM_QP_DEPTH"),
        trace=_trace(_text("DEEP_LL_TRACE")),
        fault=_fault(_text("DEEP_LL_FAULT")),
    )


def device(asked: torch.device | str | None, settings: Settings, in_process: bool) -> torch.device:
    """Where a buffer is to be: as asked, else as the environment says, else on a GPU if there is
    one.

    Raises:
        ArgumentError: neither a CPU nor a GPU.
    """
    name = str(asked) if asked is not None else settings.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() and not in_process else "cpu"
    try:
        place = torch.device(name)
    except RuntimeError as error:
        raise ArgumentError(f"device={name!r}: it must be cpu or cuda") from error
    if place.type not in ("cpu", "cuda"):
        raise ArgumentError(f"device={name!r}: it must be cpu or cuda")
    return place


def _text(name: str) -> str:
    default = next(variable.default for variable in VARIABLES if variable.name == name)
    return os.environ.get(name) or default


def _refuse(name: str, value: str, allowed: str) -> ArgumentError:
    return ArgumentError(f"{name}={value!r} in the environment: it must be {allowed}")


def _timeout(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise _refuse("DEEP_LL_TIMEOUT_S", value, "a number of seconds, 0 for no limit")
    return seconds


def _threads(value: str) -> int | None:
    if value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise _refuse("DEEP_LL_NUM_THREADS", value, "auto or a number from 1")
    return int(value)


def _level(value: str) -> str:
    if value not in ("auto", "v2", "v3", "v4", "base", "native"):
        raise _refuse("DEEP_LL_CPU_LEVEL", value, "auto, v2, v3, v4, base or native")
    return "" if value == "auto" else value


def _device(value: str) -> str:
    if value not in ("auto", "cpu", "cuda"):
        raise _refuse("DEEP_LL_DEVICE", value, "auto, cpu or cuda")
    return value


def _switch(name: str) -> bool:
    value = _text(name)
    if value not in ("0", "1"):
        raise _refuse(name, value, "0 or 1")
    return value == "1"


def _disable_p2p(value: str) -> bool | None:
    if value not in ("", "0", "1"):
        raise _refuse("NVSHMEM_DISABLE_P2P", value, "0 or 1")
    return value == "1" if value else None


def _ranks_per_node(value: str) -> int:
    if not value.isdecimal():
        raise _refuse("DEEP_LL_RANKS_PER_NODE", value, "a number")
    return int(value)


def _from_one(name: str) -> int:
    value = _text(name)
    if not value.isdecimal() or int(value) < 1:
        raise _refuse(name, value, "a number from 1")
    return int(value)


def _libucp(value: str) -> str:
    return "" if value == "auto" else value


def _trace(value: str) -> str | None:
    return None if value == "none" else value


def _fault(value: str) -> Fault | None:
    if value == "none":
        return None
    found = re.fullmatch(r"([a-z_.]+):(kill|stop)@([1-9][0-9]*)", value)
    if found is None:
        raise _refuse("DEEP_LL_FAULT", value, "none, POINT:kill@N or POINT:stop@N")
    point, what, visit = found.groups()
    return Fault(point, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[what], int(visit))


def _streaming(value: str) -> bool | None:
    choices = {"auto": None, "always": True, "never": False}
    if value not in choices:
        raise _refuse("DEEP_LL_STREAMING", value, "auto, always or never")
    return choices[value]
