"""The architecture as checkers: each takes a folder and yields what is wrong in it, a line each.

Who may include whom, where compilers and lanes may be named, how long a file may be.
"""

import ast
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

FAMILIES = ("ep", "dcp", "ring")
CSRC_RANK = {"core": 0, "symm": 1, "team": 2, **dict.fromkeys(FAMILIES, 3), "bindings": 4}
# The suffix says who compiles: a header for both compilers must not need one of them.
HEADERS = {".hpp": {".hpp"}, ".cpp": {".hpp"}, ".cuh": {".hpp", ".cuh"}, ".cu": {".hpp", ".cuh"}}
# Modules that are not listed lie between the runtime and the buffer.
PYTHON_RANK = {"errors": 0, "env": 1, "_native": 1, "runtime": 2, "buffer": 4}
PYTHON_RANK |= {"reference": 5, "testing": 5, "__init__": 6}
PYTHON_RANK |= {"ops": 5, "commands": 7, "compat": 7, "__main__": 8}
UNLISTED_RANK = 3
ORACLE_IMPORTS = {"torch", "numpy", *sys.stdlib_module_names}
MAX_LINES = 450
MAX_MEDIAN = 200

COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
CONDITION = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef)\b.*", re.MULTILINE)
MACHINE = re.compile(
    r"\b(?:asm|__asm__|__asm|threadIdx|blockIdx|blockDim|gridDim|warpSize|lane_?id)\b"
)
# Also inside names: num_tokens is about tokens.
FAMILY_WORD = re.compile(r"(?<![a-z])(?:experts?|tokens?|topk)(?![a-z])", re.IGNORECASE)


def _sources(csrc: Path) -> dict[Path, str]:
    files = (path for path in sorted(csrc.rglob("*")) if path.is_file() and path.suffix != ".md")
    return {path.relative_to(csrc): path.read_text(encoding="utf-8") for path in files}


def wrong_names(csrc: Path) -> Iterator[str]:
    """Folders that are no layer, suffixes that do not say who compiles."""
    for path in _sources(csrc):
        if path.parts[0] not in CSRC_RANK:
            yield f"{path}: no layer is called {path.parts[0]}"
        if path.suffix not in HEADERS:
            yield f"{path}: the suffix must be one of {', '.join(HEADERS)}"


def wrong_includes(csrc: Path) -> Iterator[str]:
    """Arrows that point upward, sideways or to another compiler's file."""
    for path, text in _sources(csrc).items():
        for bracket, name in INCLUDE.findall(text):
            target = Path(name)
            if not (csrc / target).is_file():
                if bracket == '"':
                    yield f"{path}: {name} is not found; own headers are named from csrc/"
                continue
            if target.suffix not in HEADERS.get(path.suffix, ()):
                yield f"{path}: a {path.suffix} file cannot include {name}"
            here, there = path.parts[0], target.parts[0]
            if here != there and CSRC_RANK.get(there, 9) >= CSRC_RANK.get(here, 9):
                yield f"{path}: {here}/ must not include {name}"


def foreign_headers(csrc: Path) -> Iterator[str]:
    """Headers of torch, which has no place in csrc, of Python, which has one in bindings/, and of
    UCX, which only its part of the link knows.
    """
    for path, text in _sources(csrc).items():
        for _, name in INCLUDE.findall(text):
            if re.match(r"(torch|ATen|c10)/", name):
                yield f"{path}: {name}: pointers arrive as integers, csrc/ does not know torch"
            if re.match(r"pybind11/|Python\.h", name) and path.parts[0] != "bindings":
                yield f"{path}: {name} belongs into bindings/"
            if re.match(r"uc[pst]/", name) and path.parent != Path("symm/ucx"):
                yield f"{path}: {name} belongs into symm/ucx/"


def named_machines(csrc: Path) -> Iterator[str]:
    """Compilers, instructions and lanes outside core/ and team/, whose business they are."""
    for path, text in _sources(csrc).items():
        if path.parts[0] in ("core", "team"):
            continue
        code = COMMENT_OR_STRING.sub(" ", text)
        for match in MACHINE.finditer(code):
            yield f"{path}: {match[0]} belongs into a verb of team/"
        # The table of CPU levels is the one choice that the build makes.
        if path.parts[0] != "bindings" and not path.name.endswith("_tier.cpp"):
            for match in CONDITION.finditer(code):
                yield f"{path}: {match[0].strip()} belongs into core/target.hpp or team/"


def family_words(csrc: Path) -> Iterator[str]:
    """Words of one family in the layers that serve all of them, comments included."""
    for path, text in _sources(csrc).items():
        if CSRC_RANK.get(path.parts[0], 9) >= CSRC_RANK["ep"]:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for match in FAMILY_WORD.finditer(line):
                yield f"{path}:{number}: {match[0]} is a word of one family"


def wrong_sizes(folder: Path) -> Iterator[str]:
    """Files that are too long, and a folder whose usual file is."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in {".py", ".pyi", *HEADERS}]
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    for path, length in lines.items():
        if length > MAX_LINES:
            yield f"{path.relative_to(folder)}: {length} lines, at most {MAX_LINES}"
    median = statistics.median(lines.values()) if lines else 0
    if median > MAX_MEDIAN:
        yield f"{folder.name}: the median file has {median} lines, at most {MAX_MEDIAN}"


def _imports(path: Path) -> Iterator[str]:
    """Full names of what a module imports; what it takes from the package may be a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module == "deep_ll":
            yield from (f"deep_ll.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def wrong_imports(package: Path) -> Iterator[str]:
    """Imports that point upward; those for type checkers count, they are knowledge too."""
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package)
        part = file.with_suffix("").parts[0]
        for name in _imports(path):
            if name.startswith("."):
                yield f"{file}: {name}: write the full name, not a relative one"
            if name.split(".")[0] != "deep_ll":
                continue
            target = (*name.split("."), "__init__")[1]
            if not (package / target).is_dir() and not any(package.glob(f"{target}.*")):
                target = "__init__"  # a name that the package itself gives
            below, here = (PYTHON_RANK.get(name, UNLISTED_RANK) for name in (target, part))
            if target != part and below > here:
                yield f"{file}: {part} must not import {name}"


def oracle_imports(package: Path) -> Iterator[str]:
    """What the oracle takes from anyone but torch, numpy and Python: it must be another text."""
    oracle = package / "reference.py"
    for name in _imports(oracle) if oracle.is_file() else ():
        if name.split(".")[0] not in ORACLE_IMPORTS:
            yield f"reference.py must not import {name}"
