"""The project keeps the rules of layer_rules.py, and every rule finds a bad example."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from layer_rules import (
    MAX_LINES,
    MAX_MEDIAN,
    family_words,
    foreign_headers,
    named_machines,
    oracle_imports,
    wrong_imports,
    wrong_includes,
    wrong_names,
    wrong_sizes,
)

Check = Callable[[Path], Iterator[str]]

ROOT = Path(__file__).resolve().parent.parent
CSRC_CHECKS = (wrong_names, wrong_includes, foreign_headers, named_machines, family_words)
RULES = [
    *((check, "csrc") for check in CSRC_CHECKS),
    *((wrong_sizes, folder) for folder in ("csrc", "deep_ll", "tests", "benchmarks", "examples")),
    (wrong_imports, "deep_ll"),
    (oracle_imports, "deep_ll"),
]
BAD_EXAMPLES = [
    (wrong_names, {"util/a.hpp": ""}),
    (wrong_names, {"core/a.h": ""}),
    (wrong_includes, {"core/a.hpp": '#include "symm/b.hpp"', "symm/b.hpp": ""}),
    (wrong_includes, {"team/a.hpp": "#  include <ep/b.hpp>", "ep/b.hpp": ""}),
    (wrong_includes, {"ep/a.cpp": '#include "ring/b.hpp"', "ring/b.hpp": ""}),
    (wrong_includes, {"ep/a.cpp": '#include "bindings/b.hpp"', "bindings/b.hpp": ""}),
    (wrong_includes, {"team/a.hpp": '#include "team/b.cuh"', "team/b.cuh": ""}),
    (wrong_includes, {"team/a.cpp": '#include "team/b.cpp"', "team/b.cpp": ""}),
    (wrong_includes, {"team/a.cpp": '#include "b.hpp"', "team/b.hpp": ""}),
    (foreign_headers, {"bindings/a.cpp": "#include <torch/extension.h>"}),
    (foreign_headers, {"team/a.cpp": "#include <ATen/ATen.h>"}),
    (foreign_headers, {"ep/a.cpp": "#include <pybind11/pybind11.h>"}),
    (foreign_headers, {"symm/a.cpp": "#include <ucp/api/ucp.h>"}),
    (named_machines, {"ep/a.hpp": "int f();\n#ifdef __AVX2__\n#endif"}),
    (named_machines, {"symm/a.hpp": "# if 1\n#endif"}),
    (named_machines, {"ep/ep_tier.cpp": 'void f() { asm volatile("nop"); }'}),
    (named_machines, {"bindings/a.cpp": "int f() { return threadIdx.x; }"}),
    (family_words, {"team/a.hpp": "// a row, that is: a Token"}),
    (family_words, {"core/a.hpp": "int num_topk;"}),
    (wrong_sizes, {"ep/a.hpp": "\n" * (MAX_LINES + 1), "ep/b.hpp": "", "ep/c.hpp": ""}),
    (wrong_sizes, {"ep/a.hpp": "\n" * (MAX_MEDIAN + 1)}),
    (wrong_imports, {"runtime/a.py": "from deep_ll.buffer import Buffer", "buffer.py": ""}),
    (wrong_imports, {"runtime/a.py": "from deep_ll import buffer", "buffer.py": ""}),
    (wrong_imports, {"runtime/a.py": "from deep_ll import Buffer"}),
    (wrong_imports, {"runtime/a.py": "import deep_ll"}),
    (wrong_imports, {"buffer.py": "def f():\n    from . import errors"}),
    (wrong_imports, {"buffer.py": "import deep_ll.testing", "testing/__init__.py": ""}),
    (oracle_imports, {"reference.py": "from deep_ll.errors import DeepLLError"}),
    (oracle_imports, {"reference.py": "import ml_dtypes"}),
]
GOOD_EXAMPLE = {
    "core/a.hpp": "#pragma once\n#if 1\n#endif\n",
    "team/a.cuh": '#include "core/a.hpp"\nint x = threadIdx.x;  // tokenize is another word',
    "ep/a.hpp": '#include "core/a.hpp"\n/*\n#if 0\n*/ const char* token = "asm";  // no asm',
    "bindings/a.cpp": '#include <pybind11/pybind11.h>\n#include "ep/a.hpp"\n#if 1\n#endif\n',
    "README.md": "",
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("check", "folder"), RULES)
def test_project_keeps_the_rule(check: Check, folder: str) -> None:
    assert (ROOT / folder).is_dir()
    assert list(check(ROOT / folder)) == []


@pytest.mark.parametrize(("check", "files"), BAD_EXAMPLES)
def test_bad_example_is_found(check: Check, files: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, files)
    assert len(list(check(tmp_path))) == 1


@pytest.mark.parametrize("check", CSRC_CHECKS)
def test_good_example_passes(check: Check, tmp_path: Path) -> None:
    write(tmp_path, GOOD_EXAMPLE)
    assert list(check(tmp_path)) == []
