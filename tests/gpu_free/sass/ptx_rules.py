"""The rules for PTX, which shows orders, scopes and roundings as they were written."""

import re
from collections.abc import Iterator

OPCODE = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z]\w*(?:\.[\w:]+)+)", re.MULTILINE)
ENTRY = re.compile(
    r"\.entry _ZN7deep_ll\d+[a-z0-9]+?\d+([a-z_]+)EN\w+\(.*?^}", re.MULTILINE | re.DOTALL
)

# Whatever has an order or a scope is one of these: one body each in team/gpu/memory.cuh.
ORDERED = {
    "ld.relaxed.sys.global.u64",
    "ld.acquire.sys.global.u64",
    "st.release.sys.global.u64",
    "st.release.sys.global.u32",
    "fence.acq_rel.sys",
    "st.relaxed.sys.global.u64",
    "ld.relaxed.gpu.global.u32",
    "ld.acquire.gpu.global.u32",
    "st.release.gpu.global.u32",
    "atom.add.release.gpu.global.u32",
    "atom.shared.min.s32",
    "fence.proxy.async.shared::cta",
}
HAS_ORDER = re.compile(r"(ld|st|atom|red|fence|membar)\b.*")
ORDER = re.compile(r"\.(relaxed|acquire|release|acq_rel|sc|volatile|mmio|sys|gpu|cluster|cta)\b")


def opcodes(ptx: str) -> dict[str, list[str]]:
    """The opcodes of each kernel."""
    return {entry[1]: OPCODE.findall(entry[0]) for entry in ENTRY.finditer(ptx)}


def is_ordered(op: str) -> bool:
    """Whether it says or implies an order."""
    if re.match(r"(atom|red|fence|membar)\b", op):
        return True
    return HAS_ORDER.fullmatch(op) is not None and ORDER.search(op) is not None


def in_full_words(op: str) -> bool:
    """A peer's word is read and written whole, though the assembler may read half of it."""
    return not re.match(r"(ld|st)\.(relaxed|acquire|release)\.sys", op) or op in ORDERED


def as_on_cpus(op: str) -> bool:
    """Same bits as on a CPU: one rounding, to nearest, no flush to zero."""
    if re.match(r"(add|sub|mul|div|fma|sqrt|rcp)\b.*\.f32$", op) is None:
        return True
    return re.fullmatch(r"(add|sub|mul|div|fma)\.rn\.f32", op) is not None


RULES = {
    "orders and scopes only as memory.cuh has them": lambda ops: all(
        op in ORDERED for op in ops if is_ordered(op)
    ),
    "one rounding, to nearest": lambda ops: all(as_on_cpus(op) for op in ops),
    "no local memory": lambda ops: not any(".local" in op for op in ops),
    "read-only loads do not fill L1": lambda ops: all(
        "no_allocate" in op for op in ops if re.match(r"ld\.global\.nc\b", op)
    ),
}
# Kernels that must not contract: a dispatch only scales and rounds.
NO_FMA = ("dispatch", "credit")


def broken(ptx: str) -> Iterator[tuple[str, str]]:
    """Kernel and rule, wherever one does not hold."""
    for kernel, ops in sorted(opcodes(ptx).items()):
        for says, holds in RULES.items():
            if not holds(ops):
                yield kernel, says
        if kernel in NO_FMA and any(op.startswith("fma.") for op in ops):
            yield kernel, "multiplies and adds apart"
