"""What is written down twice is the same in both places; the build refuses what it should."""

import importlib.util
import inspect
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import ModuleType

import pytest

import deep_ll
import deep_ll.env
from deep_ll import _native

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PUBLIC = [name for name in deep_ll.__all__ if callable(getattr(deep_ll, name))]

# A function that the linker may merge with its namesake of another unit.
TIER_UNIT = """
namespace deep_ll::NAMESPACE {
template <class T> __attribute__((noinline)) T twice(T x) { return x + x; }
}
float call(float x);
float call(float x) { return deep_ll::NAMESPACE::twice(x); }
"""


def load_setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deep_ll_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def normal(name: str) -> str:
    return re.split(r"[^\w-]", name)[0].lower().replace("_", "-")


def test_version_is_one() -> None:
    assert PROJECT["project"]["version"] == deep_ll.__version__


def test_readme_shows_the_environment() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert deep_ll.env.markdown_table() in readme


def test_only_env_reads_the_environment() -> None:
    readers = [
        path.name
        for path in sorted((ROOT / "deep_ll").rglob("*.py"))
        if re.search(r"os\.(environ|getenv)[^\n]*DEEP_LL", path.read_text(encoding="utf-8"))
    ]
    assert readers in ([], ["env.py"])


def test_environment_is_documented() -> None:
    names = {variable.name for variable in deep_ll.env.VARIABLES}
    source = (ROOT / "deep_ll" / "env.py").read_text(encoding="utf-8")
    assert names == set(re.findall(r"(?:DEEP_LL|NVSHMEM)_[A-Z0-9_]+", source))
    assert all(variable.default and variable.meaning for variable in deep_ll.env.VARIABLES)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_has_a_docstring(name: str) -> None:
    value = getattr(deep_ll, name)
    documented = {name: value}
    if inspect.isclass(value):
        members = {key: item for key, item in vars(value).items() if not key.startswith("_")}
        documented |= {
            f"{name}.{key}": item
            for key, item in members.items()
            if inspect.isroutine(item) or isinstance(item, property)
        }
    # Python writes a docstring of its own for data classes and named tuples: `Name(field, ...)`.
    bare = [
        key
        for key, item in documented.items()
        if not inspect.getdoc(item) or (inspect.getdoc(item) or "").startswith(f"{name}(")
    ]
    assert bare == []


def test_type_stub_names_what_the_extension_has() -> None:
    stub = (ROOT / "deep_ll" / "_native.pyi").read_text(encoding="utf-8")
    names = r"^(?:def |class )?([a-zA-Z]\w*)\b(?!: TypeAlias)\s*[(:]"
    declared = set(re.findall(names, stub, re.MULTILINE))
    assert declared == {name for name in vars(_native) if not name.startswith("_")}


def test_every_dependency_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {normal(line) for line in lines if "==" in line}
    asked = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    asked += chain.from_iterable(PROJECT["project"]["optional-dependencies"].values())
    assert {normal(name) for name in asked} <= pinned


@pytest.mark.parametrize(("namespace", "escapes"), [("v2", False), ("v3", True), ("v20", True)])
def test_build_finds_code_that_escapes_its_tier(
    namespace: str, escapes: bool, tmp_path: Path
) -> None:
    setup = load_setup()
    source, compiled = tmp_path / "unit.cpp", tmp_path / "unit.o"
    source.write_text(TIER_UNIT.replace("NAMESPACE", namespace), encoding="utf-8")
    subprocess.run([*setup.find_compiler(), "-c", source, "-o", compiled], check=True)
    name = f"float deep_ll::{namespace}::twice<float>(float)"
    assert setup.weak_symbols_outside("v2", compiled) == ([name] if escapes else [])


def test_missing_compiler_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = load_setup()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(setup.CompileError, match=r"no-such-compiler is missing.*apt-get install"):
        setup.find_compiler()
