"""The loops in which kernels spend their time, found by what is in them."""

import re

from sass.code import Kernel

# The smallest loop of the kernel in which all of these occur.
LOOPS = {
    "dispatch": {
        "cast a row": [r"LDG\.E\.NA\.128\.CONSTANT", r"SHFL\.BFLY"],
        "stage a row": [r"LDG\.E\.NA\.128\.CONSTANT", r"STS\.128"],
        "put to one target": [r"UBLKCP\.G\.S|LDS\.128"],
    },
    "combine": {
        "add rows up": [r"LDG\.E\.NA\.128", r"FFMA"],
        "put a row": [r"UBLKCP\.S\.G|LDG\.E\.NA\.128", r"UBLKCP\.G\.S|STG\.E\.NA\.128"],
    },
    "credit": {"poll": [r"LDG\.E(\.64)?\.STRONG\.SYS"]},
}


def smallest(kernel: Kernel, patterns: list[str]) -> range | None:
    """The smallest loop with all of them."""
    fitting = [
        loop
        for loop in kernel.loops
        if all(any(re.fullmatch(p, kernel.code[i].op) for i in loop) for p in patterns)
    ]
    return min(fitting, key=len, default=None)


def cycles(kernel: Kernel) -> dict[str, int]:
    """Issue cycles of one turn of each hot loop."""
    found = {what: smallest(kernel, ops) for what, ops in LOOPS[kernel.name].items()}
    return {what: kernel.issue_cycles(loop) for what, loop in found.items() if loop is not None}
