"""Reads PTX text: module variables, kernels, and the statements of their bodies, scope by scope."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from .errors import Unknown

# Directives that end with their line and say nothing to an interpreter.
LINE_DIRECTIVE = re.compile(r"^[ \t]*\.(version|target|address_size|loc|file)\b[^\n]*", re.M)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
TOKEN = re.compile(r'"[^"]*"|::|[^;{}:"]+|.', re.S)
NAME = re.compile(r"[\w$%]+")
VARIABLE = re.compile(
    r"(?P<extern>\.extern\s+)?(?:\.(?:visible|weak|common)\s+)*\.(?P<space>global|const|shared)\s+"
    r"(?:\.align\s+(?P<align>\d+)\s+)?(?:\.attribute\(.*?\)\s+)?\.(?P<type>\w+)\s+(?P<name>[\w$]+)"
    r"(?P<count>(?:\[\d*\])*)\s*(?:=\s*(?P<value>.*))?$",
    re.S,
)
PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+(?:\.ptr[^,]*?\s)?"
    r"(?:\.align\s+\d+\s+)?(?P<name>[\w$]+)(?:\[(?P<count>\d+)\])?\s*$"
)
ARGUMENT = re.compile(r"\.param\s+\.(?P<type>\w+)\s+(?P<name>[\w$]+)$")  # of a call, or its result
REGISTER = re.compile(r"\.reg\s+\.(?P<type>\w+)\s+(?P<names>.*)$", re.S)
BITS = {"pred": 1}


def bits_of(type_name: str) -> int:
    """The width of a type; 1 for a predicate."""
    width = re.search(r"\d+", type_name)
    return BITS[type_name] if type_name in BITS else int(width[0]) if width else 0


@dataclass(frozen=True)
class Register:
    slot: int
    bits: int


@dataclass(frozen=True)
class Parameter:
    offset: int
    size: int


@dataclass(frozen=True)
class Variable:
    """A variable of the module. A size of 0 is `extern`: the launch says how much."""

    name: str
    space: str
    align: int
    size: int
    value: bytes


class Scope:
    """Names between two braces. Inline assembly repeats names, so each scope has its own."""

    def __init__(self, parent: "Scope | None" = None) -> None:
        self.parent = parent
        self.registers: dict[str, Register] = {}
        self.labels: dict[str, int] = {}
        self.tables: dict[str, list[str]] = {}
        # Slot 0 is where unwanted results go. Scopes beside each other share slots.
        self.next_slot = parent.next_slot if parent else 1
        self.most = [1] if parent is None else parent.most

    def declare(self, name: str, bits: int) -> Register:
        self.registers[name] = Register(self.next_slot, bits)
        self.next_slot += 1
        self.most[0] = max(self.most[0], self.next_slot)
        return self.registers[name]

    def find(self, kind: str, name: str):
        scope: Scope | None = self
        while scope is not None:
            if name in (names := getattr(scope, kind)):
                return names[name]
            scope = scope.parent
        return None


@dataclass
class Statement:
    text: str  # an instruction, or a label's name
    line: int
    scope: Scope
    is_label: bool = False


@dataclass
class Function:
    name: str
    params: dict[str, Parameter]
    scope: Scope = field(default_factory=Scope)
    statements: list[Statement] = field(default_factory=list)
    shared: list[Variable] = field(default_factory=list)


@dataclass
class Module:
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)


def _blank(match: re.Match) -> str:
    return "\n" * match[0].count("\n") or " "


def _pieces(text: str) -> Iterator[tuple[str, str, int]]:
    """Yields (what, text, line): statements, labels, and the braces of scopes."""
    held, line, begun, depth = "", 1, 1, 0
    for match in TOKEN.finditer(text):
        token = match[0]
        if not held.strip():
            held, begun = "", line + len(token[: len(token) - len(token.lstrip())].split("\n")) - 1
        line += token.count("\n")
        opens_body = token == "{" and depth == 0 and (not held.strip() or _is_header(held))
        if depth == 0 and (opens_body or token in ("}", ";")):
            if held.strip() or token == ";":
                yield "statement", " ".join(held.split()), begun
            if token != ";":
                yield token, "", line
            held = ""
        elif token == ":" and depth == 0 and NAME.fullmatch(held.strip()):
            yield "label", held.strip(), begun
            held = ""
        else:
            depth += (token == "{") - (token == "}")
            held += token


def _is_header(held: str) -> bool:
    return re.match(r"\s*(\.\w+\s+)*\.(entry|func)\b", held) is not None


def parse(text: str) -> Module:
    module, scope = Module(), None
    function: Function | None = None
    text = LINE_DIRECTIVE.sub("", COMMENT.sub(_blank, text))
    for what, piece, line in _pieces(text):
        if what == "{":
            scope = Scope(scope) if scope else function.scope
        elif what == "}":
            scope = scope.parent
            function = function if scope else None
        elif scope is None:
            function = _outside(module, piece, line)
        elif what == "label":
            function.statements.append(Statement(piece, line, scope, is_label=True))
        elif piece:
            _inside(module, function, Statement(piece, line, scope))
    return module


def _outside(module: Module, piece: str, line: int) -> Function | None:
    if (header := re.match(r"(?:\.\w+\s+)*\.entry\s+([\w$]+)\s*(?:\((.*?)\))?", piece)) is not None:
        module.functions.append(Function(header[1], _parameters(header[2] or "", line)))
        return module.functions[-1]
    if re.match(r"(\.\w+\s+)*\.func\b", piece):
        # Declarations are harmless; a call of one is what the decoder refuses.
        return Function("", {})
    if (variable := _variable(piece, line)) is not None:
        module.variables[variable.name] = variable
    return None


def _parameters(text: str, line: int) -> dict[str, Parameter]:
    params, at = {}, 0
    for piece in filter(None, (part.strip() for part in text.split(","))):
        if (match := PARAMETER.match(piece)) is None:
            raise Unknown(f"line {line}: parameter {piece!r}")
        element = bits_of(match["type"]) // 8
        align, size = int(match["align"] or element), element * int(match["count"] or 1)
        at = (at + align - 1) // align * align
        params[match["name"]] = Parameter(at, size)
        at += size
    return params


def _variable(piece: str, line: int) -> Variable | None:
    if (match := VARIABLE.match(piece)) is None:
        if re.match(r"(\.\w+\s+)*\.(global|const|shared|local|tex)", piece):
            raise Unknown(f"line {line}: {piece}")
        return None
    element = bits_of(match["type"]) // 8
    count = 1
    for dimension in re.findall(r"\[(\d*)\]", match["count"]):
        count *= int(dimension or 0)
    value = b""
    if match["value"]:
        numbers = re.findall(r"[\w.+-]+", match["value"])
        value = b"".join(_bytes(number, element, piece, line) for number in numbers)
    return Variable(
        match["name"], match["space"], int(match["align"] or element), element * count, value
    )


def _bytes(number: str, size: int, piece: str, line: int) -> bytes:
    try:
        return literal(number, size).to_bytes(8, "little")[:size]
    except ValueError:
        raise Unknown(f"line {line}: initialiser of {piece}") from None


def literal(text: str, size: int = 8) -> int:
    """The bits of a number as PTX writes it."""
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return int(text[2:], 16)
    return int(text.rstrip("U"), 0) & (2**64 - 1 if size == 8 else 2 ** (8 * size) - 1)


def _inside(module: Module, function: Function, statement: Statement) -> None:
    text, scope = statement.text, statement.scope
    if (match := ARGUMENT.match(text)) is not None:
        scope.declare(match["name"], bits_of(match["type"]))
    elif (match := REGISTER.match(text)) is not None:
        for name in (part.strip() for part in match["names"].split(",")):
            many = re.fullmatch(r"([\w$%]+)<(\d+)>", name)
            names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
            for each in names:
                scope.declare(each, bits_of(match["type"]))
    elif text.startswith(".branchtargets"):
        label = function.statements.pop()
        names = text.removeprefix(".branchtargets").split(",")
        scope.tables[label.text] = [name.strip() for name in names]
    elif (variable := _variable(text, statement.line)) is not None:
        module.variables[variable.name] = variable
    elif text.startswith(".pragma"):
        pass
    elif text.startswith("."):
        raise Unknown(f"line {statement.line}: {text}")
    else:
        function.statements.append(statement)
