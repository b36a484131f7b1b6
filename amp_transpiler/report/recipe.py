"""Keeps a conversion in a file, the recipe, to be replayed on the model or on the next export of it.

It holds the options that differ from their defaults, the precision of every node that has one, the digest of the model
and the versions of the packages that decided. In TOML:

    format = 1

    [made_from]
    model = "resnet.onnx"
    sha256 = "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"

    [options]
    tolerance = "1%"

    [nodes]
    "/conv1/Conv" = { op = "Conv", precision = "low", reason = "level auto: lower precision wherever possible" }
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from typing import Any, Literal, cast

import tomli_w

from amp_transpiler.errors import InputError, visible
from amp_transpiler.files.durable import write_file
from amp_transpiler.graph.dtypes import float_format
from amp_transpiler.phrases import counted, first_few
from amp_transpiler.precision.policy import Settled
from amp_transpiler.precision.reasons import Reason
from amp_transpiler.precision.user_lists import UserLists
from amp_transpiler.report.as_json import package_versions
from amp_transpiler.report.precision import kind_of
from amp_transpiler.report.record import DecisionRow, ReportRecord

__all__ = ["Recipe", "RecordedNode", "as_settings", "digest", "recipe_beside", "save_recipe"]

FORMAT = 1
_FIRST_PREFERENCE = "low"  # of a recipe that names none: there was no other when it was made
_MOST_NAMED = 3
_LONGEST, _LONGEST_WORD = 10_000, 200  # characters of a pattern, and of a word
_DEEPEST = 1000  # dots of a line; TOML's own reader takes time in the square of them


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST


def _is_word(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_WORD


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))


def _is_limits(value: object) -> bool:
    return isinstance(value, dict) and all(_is_text(item) or _is_number(item) for item in value.values())


def _is_lists(value: object) -> bool:
    return isinstance(value, dict) and set(value) <= set(_LISTS) and all(map(_is_list, value.values()))


_LISTS = ("white", "black", "black_var")
_FORMS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "text": (_is_text, "text"),
    "word": (_is_word, "a short text"),
    "flag": (_is_flag, "true or false"),
    "count": (_is_count, "a whole number"),
    "number": (_is_number, "a number"),
    "list": (_is_list, "a list of texts"),
    "table": (_is_table, "a table of texts"),
    "counts": (_is_counts, "a table of whole numbers"),
    "limits": (_is_limits, "a table of numbers and texts"),
    "lists": (_is_lists, "a table of the lists white, black and black_var"),
}
"""Form of a value -> whether it is one, and what messages call it."""


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedNode:
    """Records the decision about a node.

    Attributes:
        op: its operator, with its domain unless that is ONNX's own.
        precision: `low` or `high`.
        reason: one sentence.
    """

    op: str
    precision: Literal["low", "high"]
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """Records a conversion so that it can be replayed.

    Attributes:
        options: parameter of `transpile` -> its value, as TOML can hold it.
        nodes: node name -> what was decided about it.
        model: where the model came from.
        sha256: the digest of the model's file; empty if it came from memory.
        versions: package -> its version.
    """

    options: Mapping[str, Any]
    nodes: Mapping[str, RecordedNode]
    model: str = ""
    sha256: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, report: ReportRecord) -> Recipe:
        """Return the recipe of a conversion."""
        nodes = {
            row.name: RecordedNode(row.op, kind, row.reason)
            for row in report.decisions
            if (kind := kind_of(row.precision)) != "untouched"
        }
        versions = {name: str(version) for name, version in package_versions().items() if name != "json_format"}
        return cls(report.settings, nodes, report.source, digest(report.source), versions)

    def text(self) -> str:
        """Return the recipe as the text of a file."""
        record = {
            "format": FORMAT,
            "made_from": {"model": self.model, "sha256": self.sha256},
            "versions": dict(self.versions),
            "options": dict(self.options),
            "nodes": {name: dataclasses.asdict(node) for name, node in self.nodes.items()},
        }
        return tomli_w.dumps(record)

    @classmethod
    def read(cls, path: str | os.PathLike[str], forms: Mapping[str, Sequence[str]]) -> Recipe:
        """Read a recipe.

        Args:
            path: the file.
            forms: the options that it may hold -> the forms that their values may have.

        Raises:
            InputError: there is no such file, or it is no recipe.
        """
        name = visible(os.fspath(path))
        if pathlib.Path(path).exists() and not pathlib.Path(path).is_file():
            raise InputError(f"recipe {name}: is no regular file")
        try:
            text = pathlib.Path(path).read_text(encoding="utf-8")
            if max((line.count(".") for line in text.splitlines()), default=0) > _DEEPEST:
                raise InputError(f"recipe {name}: cannot be read: a line has more than {_DEEPEST} dots")
            record = tomllib.loads(text)
        except RecursionError as error:
            raise InputError(f"recipe {name}: cannot be read: it is nested too deeply") from error
        except (OSError, ValueError) as error:  # no TOML, no UTF-8, a number of thousands of digits
            raise InputError(f"recipe {name}: cannot be read: {visible(str(error), 100)}") from error
        if not _is_count(record.get("format")) or record["format"] != FORMAT:
            version = visible(str(record.get("format", "none")), 40)
            raise InputError(f"recipe {name}: its format is {version}, expected {FORMAT}: write it anew, --save-recipe")
        options = _table(record, "options", name)
        if unknown := sorted(set(options) - set(forms)):
            shown = visible(unknown[0], 40)
            raise InputError(f"recipe {name}: unknown option '{shown}'; expected some of {', '.join(forms)}")
        for option, value in options.items():
            forms_of_option = [_FORMS[form] for form in forms[option]]
            if not any(fits(value) for fits, _ in forms_of_option):
                shown, expected = visible(repr(value), 60), " or ".join(words for _, words in forms_of_option)
                raise InputError(f"recipe {name}: option {option!r} is {shown}, expected {expected}")
        made_from = _table(record, "made_from", name)
        nodes = {key: _node(key, entry, name) for key, entry in _table(record, "nodes", name).items()}
        versions = {key: str(value) for key, value in _table(record, "versions", name).items()}
        return cls(options, nodes, str(made_from.get("model", "")), str(made_from.get("sha256", "")), versions)

    def arguments(self) -> dict[str, Any]:
        """Return the options as `transpile` takes them."""
        options = {"prefer": _FIRST_PREFERENCE, **self.options}
        if isinstance(lists := options.get("amp_lists"), Mapping):
            options["amp_lists"] = UserLists(*(frozenset(lists.get(kind, ())) for kind in _LISTS))
        return options

    def settled(self) -> dict[str, Settled]:
        """Return the decisions as a policy takes them."""
        return {name: Settled(node.precision, _as_in_recipe(node.reason)) for name, node in self.nodes.items()}

    def misfits(self, decisions: Sequence[DecisionRow], sha256: str) -> list[str]:
        """Say in what the recipe does not fit a model that was converted by it; nothing if it fits wholly.

        Args:
            decisions: the rows of the report.
            sha256: the digest of the model's file, or an empty text.
        """
        rows = {row.name: row for row in decisions}
        has_precision = [row for row in decisions if kind_of(row.precision) != "untouched"]
        others = [row.name for row in has_precision if row.name in self.nodes and self.nodes[row.name].op != row.op]
        gone = [name for name in self.nodes if name not in rows]
        new = [row.name for row in has_precision if row.name not in self.nodes]
        changed = [
            row.name
            for row in has_precision
            if row.name in self.nodes
            and row.name not in others
            and self.nodes[row.name].precision != kind_of(row.precision)
        ]
        counts = [
            _counted(gone, "only in the recipe"),
            _counted(new, "only in the model, decided anew"),
            _counted(others, "with another operator than in the recipe"),
            _counted(changed, "without the recipe's precision, which they cannot have"),
        ]
        said = [text for text in counts if text]
        if said and self.sha256 and sha256 and self.sha256 != sha256:
            said.insert(0, f"the recipe was made from another file ({self.model})")
        return said


def recipe_beside(model: str | os.PathLike[str]) -> pathlib.Path:
    """Return where the recipe of a model that is written goes: `OUT.recipe.toml` for `OUT.onnx`."""
    return pathlib.Path(model).with_suffix(".recipe.toml")


def save_recipe(report: ReportRecord, path: str | os.PathLike[str]) -> None:
    """Write the recipe of a conversion.

    Raises:
        OutputError: it cannot be written.
    """
    write_file(os.fspath(path), Recipe.of(report).text().encode("utf-8", errors="backslashreplace"))


def digest(model: str) -> str:
    """Return the SHA-256 of a model's file, without its external data; an empty text if there is no such file."""
    path = pathlib.Path(model)
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def as_settings(options: Mapping[str, Any], recorded: Collection[str]) -> dict[str, Any]:
    """Return options as TOML can hold them.

    Args:
        options: parameter of `transpile` -> its value.
        recorded: those that a recipe holds; the preference is told apart.
    """
    return {name: _plain(name, value) for name, value in options.items() if name in recorded and name != "prefer"}


def _plain(name: str, value: Any) -> Any:
    """Return a value as TOML can hold it."""
    if name == "dtype":  # a name, or numpy's type
        return float_format(value).name
    if name in ("custom_op_types", "float32_inputs"):
        return _ports(name, value)
    if isinstance(value, UserLists):
        kinds = (value.custom_white_list, value.custom_black_list, value.black_varnames)
        return {kind: sorted(names) for kind, names in zip(_LISTS, kinds, strict=True) if names}
    if isinstance(value, Mapping):
        return {str(key): _plain(name, item) for key, item in value.items()}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Iterable):
        value = sorted(value) if isinstance(value, AbstractSet) else value
        return [_plain(name, item) for item in value]
    return repr(value)  # no value that `transpile` takes


def _ports(name: str, value: Any) -> dict[str, str] | None:
    """Return what is declared of the ports of operators, as texts by operator; few conversions have that."""
    if name == "float32_inputs":
        from amp_transpiler.precision.float32_inputs import checked_inputs

        return checked_inputs(value)
    from amp_transpiler.precision.custom_types import checked_custom_types

    return checked_custom_types(value)


def _table(record: Mapping[str, Any], key: str, name: str) -> dict[str, Any]:
    table = record.get(key, {})
    if not isinstance(table, dict):
        raise InputError(f"recipe {name}: {key!r} is {visible(repr(table), 60)}, expected a table")
    return table


def _node(key: str, entry: Any, name: str) -> RecordedNode:
    if not isinstance(entry, dict) or entry.get("precision") not in ("low", "high"):
        raise InputError(
            f"recipe {name}: node '{visible(key, 60)}' is {visible(repr(entry), 60)}, expected "
            "{ op = ..., precision = 'low' | 'high' }"
        )
    precision = cast(Literal["low", "high"], entry["precision"])
    return RecordedNode(str(entry.get("op", "")), precision, str(entry.get("reason", "")))


def _as_in_recipe(words: str) -> Reason:
    return Reason("recipe", {"words": words}) if words else Reason("recipe-silent")


def _counted(names: Sequence[str], what: str) -> str:
    if not names:
        return ""
    named = first_few([f"'{name}'" for name in names], _MOST_NAMED)
    return f"{counted(len(names), 'node')} {what}: {named}"
