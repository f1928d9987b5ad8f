"""Compiles ranks.cpp with the units of csrc/ for a sanitizer, and runs it."""

import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE.parents[1] / "csrc"
COMMON = ["-std=c++20", "-O1", "-g1", "-ffp-contract=off", "-pthread"]
# Units that hold the model and the programs: nobody else's memory.
PLAIN_UNITS = {"model.cpp", "program.cpp"}
JOBS = 2
# A level of the processor that has FMA, where this one does.
HAS_V3 = platform.machine() == "x86_64" and {"avx2", "bmi2", "fma"} <= set(
    Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
)
SANITIZERS = {
    # NOTE [builtins]: GCC expands a memcpy of a fixed size without telling the sanitizer; as a
    # call it is seen.
    "thread": ["-fsanitize=thread", "-fno-builtin", "-Wno-tsan"],
    "address": [
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        *(["-march=x86-64-v3"] if HAS_V3 else []),
    ],
}
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1 exitcode=66",
    "ASAN_OPTIONS": "detect_leaks=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


@dataclass(frozen=True)
class Result:
    code: int  # -1: it did not end in time
    text: str


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX") or "g++")


def units(csrc: Path) -> list[Path]:
    """What is linked: all of csrc/ but Python's side of the bindings, and UCX's of the link."""
    left_out = {"bindings", "ucx"}
    layers = [path for path in sorted(csrc.rglob("*.cpp")) if path.parent.name not in left_out]
    return [*layers, csrc / "bindings" / "exchange.cpp", *sorted(HERE.glob("*.cpp"))]


class Build:
    """A program, in a folder of its own."""

    def __init__(self, sanitizer: str, folder: Path, csrc: Path = CSRC) -> None:
        self.flags = SANITIZERS[sanitizer]
        self.folder, self.csrc = folder, csrc
        self.program = folder / "ranks"
        folder.mkdir(parents=True, exist_ok=True)

    def make(
        self,
        jobs: int,
        base: "Build | None" = None,
        changed: Iterable[str] = (),
        kept: Container[str] = (),
    ) -> "Build":
        """Compiles and links; what does not depend on the `changed` files, or is `kept`, is taken
        from `base`."""
        objects, stale = [], []
        for unit in units(self.csrc):
            name = f"{unit.parent.name}-{unit.stem}.o"
            if base is not None and (name in kept or not base.depends(name, changed)):
                objects.append(base.folder / name)
            else:
                objects.append(self.folder / name)
                stale.append((unit, self.folder / name))
        with ThreadPoolExecutor(jobs) as workers:
            list(workers.map(lambda job: self._compile(*job), stale))
        link = [*compiler(), *self.flags, "-pthread", "-Wl,--wrap=syscall", *objects]
        _call([*link, "-o", self.program])
        return self

    def _compile(self, unit: Path, target: Path) -> None:
        flags = ["-O2"] if unit.name in PLAIN_UNITS else self.flags
        paths = [f"-I{self.csrc}", f"-I{HERE}"]
        _call([*compiler(), *COMMON, *flags, *paths, "-MMD", "-c", unit, "-o", target])

    def depends(self, name: str, changed: Iterable[str]) -> bool:
        """Whether an object was made from any of the files, which are named from csrc/."""
        made_from = (self.folder / name).with_suffix(".d").read_text(encoding="utf-8").split()
        return any(str(self.csrc / file) in made_from for file in changed)

    def run(self, arguments: str, timeout_s: float) -> Result:
        command = [*_without_randomness(), str(self.program), *arguments.split()]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=os.environ | OPTIONS, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            return Result(-1, f"did not end within {timeout_s} s")
        return Result(done.returncode, done.stdout + done.stderr)


def why_not(sanitizer: str, folder: Path) -> str | None:
    """Why this machine cannot run a sanitized program; None: it can."""
    source, program = folder / "probe.cpp", folder / "probe"
    source.write_text("int main() { return 0; }\n", encoding="utf-8")
    flags = SANITIZERS[sanitizer]
    made = subprocess.run(
        [*compiler(), *flags, source, "-o", program], capture_output=True, text=True
    )
    if made.returncode != 0:
        return f"no -fsanitize={sanitizer} here (GCC's libtsan, libasan, libubsan): {made.stderr}"
    ran = subprocess.run([*_without_randomness(), program], capture_output=True, text=True)
    return None if ran.returncode == 0 else f"sanitized programs do not run here: {ran.stderr}"


def _without_randomness() -> list[str]:
    """A prefix for sanitizers that fear a kernel with much address space randomisation."""
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    if not bits.exists() or int(bits.read_text(encoding="utf-8")) <= 28:
        return []
    setarch = shutil.which("setarch")
    works = setarch is not None and subprocess.run([setarch, "-R", "true"]).returncode == 0
    return [setarch, "-R"] if setarch is not None and works else []


def copy_with(edits: Iterable[tuple[str, str, str]], folder: Path) -> Path:
    """A copy of csrc/ where in each named file one text, found exactly once, is another."""
    csrc = folder / "csrc"
    shutil.copytree(CSRC, csrc)
    for file, old, new in edits:
        text = (csrc / file).read_text(encoding="utf-8")
        found = _places(text, old)
        assert len(found) == 1, (
            f"{file} has {old!r} {len(found)} times: the source moved, adapt the mutant"
        )
        start, end = found[0]
        (csrc / file).write_text(text[:start] + new + text[end:], encoding="utf-8")
    return csrc


def _places(text: str, wanted: str) -> list[tuple[int, int]]:
    """Where a piece of code is, however its lines are broken."""
    pattern = r"\s*".join(map(re.escape, re.findall(r"\w+|\S", wanted)))
    return [match.span() for match in re.finditer(pattern, text)]


def _call(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stderr}"
