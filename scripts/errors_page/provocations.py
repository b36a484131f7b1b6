"""Which test provokes which message: the table tests/cli/provoked.tsv."""

from __future__ import annotations

import pathlib

from errors_page.raised import PACKAGE, listed

__all__ = ["TABLE", "merge", "provocations", "unprovoked"]

TABLE = PACKAGE.parent / "tests" / "cli" / "provoked.tsv"


def provocations(path: pathlib.Path = TABLE) -> dict[str, str]:
    """Return the class and text of a message -> the test that provokes it, without the test's parameters."""
    tests = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, test = line.partition("\t")
            message = key.split(" ", 1)[1] if key.split(": ", 1)[0].count(" ") else key
            tests[message.replace("ArgumentTypeError: ", "OptionError: ")] = test.partition("[")[0]
    return tests


def unprovoked() -> list[str]:
    """Return the messages that no test of the table provokes, with their modules."""
    known = provocations()
    return [row.key for row in listed() if f"{row.kind}: {row.text}" not in known]


def merge(path: pathlib.Path) -> list[str]:
    """Take a record over; messages that are gone are dropped. Return those that are left without a test."""
    known = {**provocations(path), **provocations()}
    wanted = sorted({f"{row.kind}: {row.text}" for row in listed()} & set(known))
    TABLE.write_text("".join(f"{message}\t{known[message]}\n" for message in wanted), encoding="utf-8")
    return unprovoked()
