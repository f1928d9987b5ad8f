"""Registers, instructions and fences of each kernel, as they were when last looked at.

`python tests/gpu_free/sass/table.py --write` takes what is built now.
"""

import functools
import json
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sass import code, hot, tools

FILE = Path(__file__).with_name("table.json")
TOLERANCE = 0.02  # of the number of instructions: small changes shift it


@functools.cache
def kernels_of(tier: str) -> dict[str, dict[str, code.Kernel]]:
    """The machine code in a tier's fatbin: of each architecture, each kernel."""
    with tempfile.TemporaryDirectory() as folder:
        found = tools.unpack(tools.KERNELS / f"ep_{tier}.fatbin", Path(folder))
        return {
            arch: code.parse(tools.disassemble(path))
            for arch, path in sorted(found.items())
            if path.suffix == ".cubin"
        }


def figures(tier: str) -> dict[str, dict[str, dict[str, int]]]:
    """What is counted, for each kernel and architecture."""
    built = tools.description()["tiers"][tier]["kernels"]
    counted: dict[str, dict[str, dict[str, int]]] = {}
    for arch, kernels in kernels_of(tier).items():
        for name, kernel in sorted(kernels.items()):
            counted.setdefault(name, {})[arch] = {
                **built[name]["uses"][arch],
                "instructions": len(kernel.code),
                "fences": kernel.count(r"MEMBAR\.ALL\.(GPU|SYS)"),
                # Of addresses whose kind the compiler does not know: each access asks the hardware.
                "generic": kernel.count(r"(LD|ST)\.E.*"),
                **{f"cycles of {loop}": n for loop, n in hot.cycles(kernel).items()},
            }
    return counted


def differences(kept: dict, now: dict) -> list[str]:
    """What is no longer as it was."""
    found = []
    for kernel, archs in now.items():
        for arch, counted in archs.items():
            before = kept.get(kernel, {}).get(arch, {})
            for what in sorted(counted.keys() | before.keys()):
                old, new = before.get(what), counted.get(what)
                rough = what == "instructions" or what.startswith("cycles")
                if old == new or (rough and old and new and abs(new - old) <= TOLERANCE * old):
                    continue
                found.append(f"{kernel} {arch} {what}: {old} -> {new}")
    return found


def read() -> dict:
    """The table that is kept."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def write() -> None:
    """Keeps what is built now."""
    built = tools.description()
    table = {"nvcc": built["nvcc"], "tiers": {tier: figures(tier) for tier in built["tiers"]}}
    FILE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    if tools.missing():
        sys.exit(tools.missing())
    write()
