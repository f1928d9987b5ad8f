"""The fatbins of this installation: where they are, and which GPUs they have code for."""

from __future__ import annotations

import functools
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[2] / "_kernels"

_MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")  # magic, version, header size, size of what follows
_ENTRY = struct.Struct("<HHIQ")  # kind, version, header size, size of what follows
_ARCH_AT = 28  # in an entry: 90 for sm_90
_FLAGS_AT = 40
_ELF = 2
_ONE_ARCH = 1 << 20  # flag: sm_90a, runs on no later GPU


class Image(NamedTuple):
    """Code for one architecture.

    Attributes:
        arch: 90 for compute capability 9.0.
        binary: machine code; else PTX, which the driver compiles.
        exact: made for this architecture alone ("sm_90a").
    """

    arch: int
    binary: bool
    exact: bool

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU of this compute capability can run it."""
        arch = capability[0] * 10 + capability[1]
        if self.exact:
            return arch == self.arch
        return arch >= self.arch and (not self.binary or self.arch // 10 == capability[0])

    def __str__(self) -> str:
        return f"{'sm' if self.binary else 'compute'}_{self.arch}{'a' if self.exact else ''}"


@functools.cache
def description(folder: Path = FOLDER) -> dict[str, Any]:
    """What the build wrote of its kernels: `tiers`, `archs`, `nvcc`. Empty without kernels."""
    path = folder / "ep.json"
    if not path.is_file():
        return {}
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


def fatbins(folder: Path = FOLDER) -> dict[str, Path]:
    """The file of each tier: kernels for rows of one size, or "any"."""
    tiers = description(folder).get("tiers", {})
    return {name: folder / tier["file"] for name, tier in tiers.items()}


def images(fatbin: bytes) -> list[Image]:
    """What a fatbin holds; nothing where its format is not the one known here.

    The format is not documented. It was read off what nvcc 13.0 writes, so this may only explain
    what is wrong: the driver decides.
    """
    if len(fatbin) < _HEADER.size or _HEADER.unpack_from(fatbin)[0] != _MAGIC:
        return []
    found, at = [], int(_HEADER.unpack_from(fatbin)[2])
    while at + _FLAGS_AT + 8 <= len(fatbin):
        kind, _, header_bytes, num_bytes = _ENTRY.unpack_from(fatbin, at)
        (arch,) = struct.unpack_from("<I", fatbin, at + _ARCH_AT)
        (flags,) = struct.unpack_from("<Q", fatbin, at + _FLAGS_AT)
        found.append(Image(arch, kind == _ELF, bool(flags & _ONE_ARCH)))
        if header_bytes == 0:
            return []
        at += header_bytes + num_bytes
    return found
