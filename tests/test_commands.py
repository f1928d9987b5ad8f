"""`python -m deep_ll`: its commands, their help; info."""

import inspect
import json

import pytest

import deep_ll
from deep_ll import commands
from deep_ll.__main__ import main
from deep_ll.commands.table import aligned


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert not caught.value.code
    told = " ".join(capsys.readouterr().out.split())
    for name in commands.NAMES:
        first = (inspect.getdoc(commands.load(name)) or "").splitlines()[0]
        assert f" {name} {first}" in told


@pytest.mark.parametrize("args", [(), ("no-such-command",), ("info", "--no-such-option")])
def test_wrong_arguments(args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert caught.value.code == 2
    assert "usage: python -m deep_ll" in capsys.readouterr().err


def test_info_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    told, expected = json.loads(capsys.readouterr().out), deep_ll.info()
    told.pop("available_bytes"), expected.pop("available_bytes")  # changes by itself
    assert told == expected


def test_info_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    values = {name: value.strip() for name, value in lines.items()}
    told = deep_ll.info()
    assert values["version"] == deep_ll.__version__
    assert values["cpu_levels"] == ", ".join(told["cpu_levels"])
    assert values["runtime host"] == "available"
    for finding in told["gpu"]["findings"]:
        assert finding["found"] in values[f"gpu needs {finding['name']}"]
        assert finding["cure"] in values[f"gpu needs {finding['name']}"]


def test_columns_are_aligned() -> None:
    assert aligned([("a", "bcd", "e"), ("fgh", "i"), ()]) == "a    bcd  e\nfgh  i\n"
    assert aligned([]) == ""
