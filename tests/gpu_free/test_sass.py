"""The compiled kernels keep the rules for machine code and PTX, and every rule can fail."""

import functools
import tempfile
from pathlib import Path

import faults
import pytest
from sass import code, document, mutants, occupancy, ptx_rules, rules, table, tools

setup_cuda = tools.build_module("setup_cuda")
setup_nvcc = tools.build_module("setup_nvcc")

CHOSEN = faults.chosen(mutants.MUTANTS)

needs_tools = pytest.mark.skipif(tools.missing() != "", reason=tools.missing())
needs_kernels = pytest.mark.skipif(
    not (tools.KERNELS / "ep.json").exists(), reason="no kernels for GPUs are built: no nvcc"
)


@functools.cache
def nvcc() -> str:
    """The compiler, or the test is skipped."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            return setup_nvcc.find_nvcc(Path(scratch)).command[0]
        except setup_nvcc.NoCompilerError as error:
            pytest.skip(f"no nvcc: {error}")


@needs_kernels
def test_kernels_are_those_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tools.ROOT)
    assert tools.description()["sources"] == setup_cuda.digest(), "csrc has changed: make build"


@needs_tools
@needs_kernels
@pytest.mark.parametrize("tier", setup_cuda.TIERS)
def test_machine_code_keeps_the_rules(tier: str) -> None:
    kernels = table.kernels_of(tier)
    assert set(kernels) == {"sm_80", "sm_90a", "sm_100a"}
    assert all(set(found) == {"dispatch", "combine", "credit"} for found in kernels.values())
    long_rows = setup_cuda.TIERS[tier] not in range(1, 5000)
    for arch, found in kernels.items():
        assert list(rules.broken(found, arch, long_rows)) == [], arch


@needs_tools
@needs_kernels
@pytest.mark.parametrize("tier", ["any", "h7168"])
def test_ptx_keeps_the_rules(tier: str, tmp_path: Path) -> None:
    found = tools.unpack(tools.KERNELS / f"ep_{tier}.fatbin", tmp_path)
    for arch in ("compute_80", "compute_90"):
        text = found[arch].read_text(encoding="utf-8")
        assert set(ptx_rules.opcodes(text)) == {"dispatch", "combine", "credit"}
        assert list(ptx_rules.broken(text)) == []


@needs_kernels
def test_512_threads_fit_and_nothing_is_spilled() -> None:
    for tier in tools.description()["tiers"].values():
        for kernel in tier["kernels"].values():
            for arch, use in kernel["uses"].items():
                assert use["registers"] <= 128, (kernel["name"], arch)


@needs_tools
@needs_kernels
@pytest.mark.parametrize("tier", setup_cuda.TIERS)
def test_table_is_kept(tier: str) -> None:
    kept = table.read()
    if kept["nvcc"] != tools.description()["nvcc"]:
        pytest.skip(f"the table is of nvcc {kept['nvcc']}")
    assert table.differences(kept["tiers"][tier], table.figures(tier)) == []


@needs_tools
@pytest.mark.parametrize("mutant", CHOSEN, ids=str)
def test_each_rule_finds_its_wrong(mutant: mutants.Mutant, tmp_path: Path) -> None:
    csrc = mutants.plant(mutant, tools.ROOT / "csrc", tmp_path)
    output = tools.compile_one(nvcc(), csrc, "sm_90a", tmp_path / f"mutant{mutant.suffix}")
    if mutant.suffix == ".ptx":
        found = list(ptx_rules.broken(output.read_text(encoding="utf-8")))
    else:
        found = list(rules.broken(code.parse(tools.disassemble(output)), "sm_90a"))
    assert found == [(mutant.kernel, mutant.finds)]


@pytest.mark.parametrize(
    "left_out", [mutant for mutant in mutants.MUTANTS if mutant not in CHOSEN], ids=str
)
def test_wrong_can_be_put_in(left_out: mutants.Mutant, tmp_path: Path) -> None:
    """Of those that are not: the source has what they change."""
    mutants.plant(left_out, tools.ROOT / "csrc", tmp_path)


@needs_tools
@needs_kernels
def test_bulk_copies_in_code_for_older_gpus_would_be_found() -> None:
    found = list(rules.broken(table.kernels_of("any")["sm_90a"], "sm_80"))
    assert {says for _, says in found} == {"no bulk copies before Hopper"}


def test_every_rule_has_a_wrong() -> None:
    shown = {mutant.finds for mutant in mutants.MUTANTS} | {"no bulk copies before Hopper"}
    assert {rule.says for rule in rules.RULES} <= shown
    assert set(ptx_rules.RULES) <= shown


def test_document_has_these_numbers() -> None:
    text = document.FILE.read_text(encoding="utf-8")
    assert document.filled(text) == text, "python tests/gpu_free/sass/document.py --write"
    assert f"nvcc {table.read()['nvcc']}." in text


@pytest.mark.parametrize("gpu", [*occupancy.GPUS, occupancy.SMALL], ids=lambda gpu: gpu.arch)
def test_occupancy_is_that_of_the_header(gpu: occupancy.Gpu, tmp_path: Path) -> None:
    folders = [Path(nvcc()).resolve().parents[1] / "include", Path("/usr/local/cuda/include")]
    include = next((path for path in folders if (path / "cuda_occupancy.h").exists()), None)
    if include is None:
        pytest.skip("no cuda_occupancy.h")
    program = occupancy.build_program(include, tmp_path)
    for registers in (28, 64, 80, 95, 128):
        for dynamic in (0, 30_000, 66_048, 132_096):
            block = occupancy.Block(512, registers, 640 + dynamic)
            by_header = occupancy.blocks_by_header(program, gpu, block, 640)
            assert occupancy.blocks(gpu, block) == by_header, (registers, dynamic)
