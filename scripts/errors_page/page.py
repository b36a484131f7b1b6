"""The page of errors as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from amp_transpiler.errors import topic_of, topics
from errors_page.raised import Raised, listed

__all__ = ["page"]

_BAR = "\\|"  # ends no cell

_HEAD = """\
# Errors

<!-- written by scripts/error_docs.py from the source: change the messages there, the topics in error_topics.toml -->

Every error that the package raises, by topic. An error of the command ends with a link to its topic, in a page that
comes with the package; in Python the link is the last line of the traceback. Words in angle brackets, such as `<path>`,
are filled in. A message says what is wrong, where, and what to do; each topic adds the usual cause and remedy.

| class | also a | meaning | exit status |
| --- | --- | --- | --- |
| `AmpError` | `Exception` | the base of all below | |
| `InputError` | `ValueError` | the model, an argument or a place is wrong; nothing was written | 2 |
| `ModelError` | `InputError` | the model cannot be read, or was invalid before anything was changed | 2 |
| `MisfitError` | `ModelError` | an operator does not fit its inputs | 2 |
| `OptionError` | `InputError` | an option or argument has a value that it cannot have | 2 |
| `WrongTypeError` | `OptionError`, `TypeError` | an argument is of a type that its parameter does not take | 2 |
| `OutputError` | `InputError` | the result cannot be written where it was asked for | 2 |
| `EnvironmentProblem` | `AmpError` | the installation is broken, or a device cannot be used | 2 |
| `CheckFailed` | `AmpError` | the result failed its check or tolerance; its `report` says by how much | 1 |
| `VerificationError` | `AmpError` | a pass produced a program that is not well typed: a bug here | 1 |
| `DistributedError` | `AmpError` | another process of a distributed run is lost, or runs something else | |
| `StepCheckFailed` | `AmpError` | a checked training step computes something else than its emulation | |
| `NotFiniteError` | `FloatingPointError` | a step made infinity or NaN, and was told to stop there | |

An error of any other class, exit status 3, is a bug: [please report it](#a-bug-in-this-package).
"""


def page() -> str:
    """Return the page."""
    rows = listed()
    parts = [_HEAD]
    for topic in topics():
        of_topic = [row for row in rows if topic_of(row.module, row.kind) == topic["anchor"]]
        parts.append(
            f"## {topic['title']}\n\n{topic['cause']}\n\n**What to do:** {topic['remedy']}\n\n{_table(of_topic)}"
        )
    return "\n".join(parts)


def _table(rows: Iterable[Raised]) -> str:
    lines = [f"| {_code(row.text)} | `{row.kind}` |" for row in dict.fromkeys(rows)]
    return "| message | class |\n| --- | --- |\n" + "\n".join(dict.fromkeys(lines)) + "\n"


def _code(text: str) -> str:
    """Return a text as code in a cell of a table."""
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{fence}{space}{text.replace('|', _BAR)}{space}{fence}"
