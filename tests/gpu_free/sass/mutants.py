"""Small wrongs in the kernels' text, each with the one rule that has to find it."""

import re
import shutil
from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """In `file`, `right` becomes `wrong`. Only `kernel` is compiled."""

    finds: str
    kernel: str
    file: str
    right: str
    wrong: str
    suffix: str = ".cubin"

    def __str__(self) -> str:
        return f"{self.finds} ({self.kernel}{self.suffix})".replace(" ", "_")


MEMORY, SIGNAL, LEAGUE, COPY, CAST, SUM = (
    f"team/gpu/{name}.cuh" for name in ("memory", "signal", "league", "copy", "quantize", "reduce")
)
WIDE_STORE = (
    '"st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};"',
    '"st.global.L1::no_allocate.v2.u32 [%0], {%1,%2};'
    ' st.global.L1::no_allocate.v2.u32 [%0+8], {%3,%4};"',
)
LOOK = "!reached(load_relaxed_sys(word), awaited.epoch)"
PUBLISHED = "store_release_sys(to,"
SUM_CHANNELS = "#pragma unroll\n        for (int c = 0; c < 4; ++c) {\n            sum"

MUTANTS = [
    Mutant(
        "publishes with a system-scope release",
        *("credit", MEMORY, "st.release.sys.global.u64", "st.release.gpu.global.u64"),
    ),
    Mutant(
        "publishes with a system-scope release",
        *("dispatch", SIGNAL, "if constexpr (kWords > 1) fence_release_sys();", ""),
    ),
    Mutant(
        "tells the host with a system-scope release",
        *("credit", MEMORY, "st.release.sys.global.u32", "st.relaxed.sys.global.u32"),
    ),
    Mutant(
        "blocks meet with a GPU-scope release",
        *("combine", MEMORY, "atom.add.release.gpu", "atom.add.relaxed.gpu"),
    ),
    Mutant("polls without fences", "credit", SIGNAL, LOOK, LOOK.replace("relaxed", "acquire")),
    Mutant(
        "each wait for a peer ends in an acquire",
        *("credit", SIGNAL, "epoch_of(load_acquire_sys", "epoch_of(load_relaxed_sys"),
    ),
    Mutant(
        "blocks meet in a loop without fences",
        *("combine", LEAGUE, "((load_relaxed_gpu(", "((load_acquire_gpu("),
    ),
    Mutant(
        "blocks meet, then acquire",
        *("combine", LEAGUE, "stop |= load_acquire_gpu(", "stop |= load_relaxed_gpu("),
    ),
    Mutant(
        "no sequentially consistent fence",
        *("credit", SIGNAL, PUBLISHED, f"__threadfence_system(); {PUBLISHED}"),
    ),
    Mutant(
        "no local memory",
        *("combine", SUM, SUM_CHANNELS, SUM_CHANNELS.replace("unroll", "unroll 1")),
    ),
    Mutant(
        "only a caller's rows come through the read-only path",
        *("dispatch", "ep/dispatch.hpp", "std::int32_t>(received[local])"),
        "std::int32_t>(__ldg(received + local))",
    ),
    Mutant(
        "outputs of peers never come through the read-only path",
        *("combine", SUM, "x[i] = load16(", "x[i] = load_constant16("),
    ),
    Mutant(
        "keeps eight loads of outputs under way",
        *("combine", SUM, "kSumBatch = 8", "kSumBatch = 2"),
    ),
    Mutant(
        "keeps eight loads of a token under way",
        *("dispatch", CAST, "kCastBatch = 8", "kCastBatch = 2"),
    ),
    Mutant("stores rows 16 bytes at a time", "combine", MEMORY, *WIDE_STORE),
    Mutant(
        "casts to FP8 in hardware",
        *("dispatch", CAST, "__CUDA_ARCH__ >= 890", "__CUDA_ARCH__ >= 8900"),
    ),
    Mutant(
        "rows travel by bulk copies",
        *("combine", MEMORY, "__CUDA_ARCH__ >= 900", "__CUDA_ARCH__ >= 9000"),
    ),
    Mutant(
        "seals rows before they are copied in bulk",
        *("dispatch", COPY, "if constexpr (kHasBulk) seal_shared();", ""),
    ),
    Mutant(
        "bulk copies are complete before blocks meet",
        *("combine", MEMORY, "cp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group.read 0;"),
    ),
    # What machine code does not show.
    Mutant(
        "orders and scopes only as memory.cuh has them",
        *("credit", MEMORY, "ld.relaxed.sys.global.u64", "ld.volatile.global.u64", ".ptx"),
    ),
    Mutant(
        "one rounding, to nearest",
        *("dispatch", CAST, "__fdiv_rn(kE4m3Max, most)", "__fdividef(kE4m3Max, most)", ".ptx"),
    ),
    Mutant(
        "read-only loads do not fill L1",
        *("dispatch", MEMORY, "ld.global.nc.L1::no_allocate", "ld.global.nc", ".ptx"),
    ),
    Mutant(
        "multiplies and adds apart",
        *("dispatch", CAST, "__fmul_rn(low_bf16(x.w[i]), forward)"),
        *("__fmaf_rn(low_bf16(x.w[i]), forward, 0.0f)", ".ptx"),
    ),
]


def plant(mutant: Mutant, csrc: Path, folder: Path) -> Path:
    """A copy of csrc with this wrong, and with one kernel only."""
    copy = folder / "csrc"
    shutil.copytree(csrc, copy)
    file = copy / mutant.file
    text = file.read_text(encoding="utf-8")
    assert mutant.right in text, f"{mutant.file} has no {mutant.right!r}: mend the mutant"
    file.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
    unit = copy / "ep" / "ep_gpu.cu"
    text = unit.read_text(encoding="utf-8")
    for kernel in re.findall(r"^__global__.*?^}\n", text, re.MULTILINE | re.DOTALL):
        if f" {mutant.kernel}(" not in kernel:
            text = text.replace(kernel, "")
    unit.write_text(text, encoding="utf-8")
    return copy
