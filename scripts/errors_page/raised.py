"""The errors that the package raises, read from its source: one record a message."""

from __future__ import annotations

import ast
import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterator

from amp_transpiler import errors

__all__ = ["PACKAGE", "Raised", "all_raised", "listed", "module_of", "raised_at"]

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "amp_transpiler"

OURS = (
    *(name for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, errors.AmpError)),
    "ArgumentTypeError",  # the parser makes an OptionError of it
)
PYTHONS = ("TypeError", "AttributeError", "ImportError")
"""Python's own errors, which only public functions raise for users."""

_PUBLIC = ("paddle.", "systems.", "compat.", "lazy", "files.loading", "graph.regions", "program.variable_operators")
_BESIDE = {
    "paddle.static.pickled TypeError": "raised and caught in one file: a damaged array",
}


FAULTS = {
    "files.durable": "OutputError",
    "files.external_data": "ModelError",
    "program.fed_shapes": "InputError",
    "graph.form_check": "ModelError",
    "graph.misfit_messages": "MisfitError",
    "graph.user_patterns": "OptionError",
    "files.source_check": "ModelError",
    "graph.verifier": "VerificationError",
    "runtime.cuda": "EnvironmentProblem",
    "runtime.run_errors": "InputError",
    "wheels": "EnvironmentProblem",
}
"""Modules whose functions return the text of an error -> the class of the error that is raised with it."""

_WORDS = 3  # a text of fewer is no message

# Functions that only write their argument: a placeholder is named after that.
_SEEN_THROUGH = {"str", "repr", "sorted", "list", "visible", "join", "first_few", "len", "type", "int"}


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Raised:
    """A message in the source.

    Attributes:
        module: where it is raised, such as `files.loading`.
        kind: the class of the exception.
        text: the message; what is filled in stands in angle brackets.
        first: the line of the call.
        last: the last line of the call.
    """

    module: str
    kind: str
    text: str
    first: int = dataclasses.field(compare=False)
    last: int = dataclasses.field(compare=False)

    @property
    def pattern(self) -> re.Pattern[str]:
        """What matches the message in a text; alternatives such as `yes/no` are not told apart."""
        return re.compile(".*?".join(map(re.escape, re.split(r"<[^<>]*>", self.text))), re.DOTALL)

    @property
    def key(self) -> str:
        """What names the message while lines move."""
        return f"{self.module} {self.kind}: {self.text}"


def all_raised() -> list[Raised]:
    """Return the messages of the package, by module and line."""
    return list(_all_raised())


@functools.cache  # the source is parsed once a process
def _all_raised() -> tuple[Raised, ...]:
    return tuple(
        row for path in sorted(PACKAGE.rglob("*.py")) for row in sorted(_raised_in(path), key=lambda row: row.first)
    )


def listed() -> list[Raised]:
    """Return the messages that users may see: those of our classes, and Python's own where functions are public."""
    messages = []
    for row in all_raised():
        public = row.module.startswith(_PUBLIC) and f"{row.module} {row.kind}" not in _BESIDE
        if row.kind in OURS or public:
            messages.append(dataclasses.replace(row, kind=row.kind.replace("ArgumentTypeError", "OptionError")))
    return messages


def raised_at(rows: list[Raised], module: str, line: int) -> Raised | None:
    """Return the message of a call that covers a line; the innermost one."""
    covering = [row for row in rows if row.module == module and row.first <= line <= row.last]
    return max(covering, key=lambda row: row.first, default=None)


def module_of(path: pathlib.Path) -> str:
    """Return a file's module without the package's name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _raised_in(path: pathlib.Path) -> Iterator[Raised]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = module_of(path)
    known = _constants(tree)
    raised = {id(node.exc) for node in ast.walk(tree) if isinstance(node, ast.Raise)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            kind = _name(node.func)
            text = _template(node.args[0], known) if node.args else ""
            if kind in OURS or (kind in PYTHONS and id(node) in raised):
                yield _row(module, kind, text, node)
        if module in FAULTS and isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
            for text in _texts(node.value, known):
                if len(re.findall(r"[A-Za-z]{2,}", re.sub(r"<[^<>]*>", "", text))) >= _WORDS:
                    yield _row(module, FAULTS[module], text, node)


def _row(module: str, kind: str, text: str, node: ast.expr | ast.stmt) -> Raised:
    return Raised(module, kind, " ".join(text.split()), node.lineno, node.end_lineno or node.lineno)


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the texts that a module gives a name."""
    texts = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = _template(node.value, {}) if isinstance(node.value, (ast.Constant, ast.JoinedStr)) else ""
            if isinstance(node.value, (ast.JoinedStr, ast.Constant)) and text:
                texts[node.targets[0].id] = text
    return texts


def _texts(node: ast.expr, known: dict[str, str]) -> Iterator[str]:
    """Yield the texts that an expression may be."""
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body, known)
        yield from _texts(node.orelse, known)
    elif isinstance(node, (ast.Constant, ast.JoinedStr)) and not isinstance(getattr(node, "value", ""), (int, bytes)):
        yield _template(node, known)
    elif isinstance(node, ast.Tuple):
        for part in node.elts:
            yield from _texts(part, known)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _template(node: ast.expr, known: dict[str, str]) -> str:
    """Return the text of an expression: what is only known when it runs in angle brackets."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part, known) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _template(node.value, known)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left, known) + _template(node.right, known)
    if isinstance(node, ast.IfExp) and isinstance(node.body, ast.Constant) and isinstance(node.orelse, ast.Constant):
        return "/".join(filter(None, (_template(node.body, known), _template(node.orelse, known))))
    return f"<{_placeholder(node)}>"


def _placeholder(node: ast.expr) -> str:
    """Return a word for a value that is filled in."""
    if isinstance(node, ast.Name):
        return node.id.strip("_")
    if isinstance(node, ast.Attribute):
        return node.attr.strip("_")
    if isinstance(node, (ast.Subscript, ast.Starred)):
        return _placeholder(node.value)
    if isinstance(node, ast.Call):
        if _name(node.func) in _SEEN_THROUGH and node.args:
            return _placeholder(node.args[0])
        return _name(node.func).strip("_") or "..."
    return "..."
