#!/usr/bin/env python3
"""Make the package's tables of ONNX Runtime's releases from the dumps that `kernel_dump.py` writes.

    python lab/kernel_tables.py FOLDER

Reads every FOLDER/RELEASE.json and writes `amp_transpiler/targets/data/releases.json`; the README beside that file says
what it means. Kernels of an operator that serve the same schema versions and differ in the types of one parameter
become one row, so every combination of types in a row is really registered. A row, and a version of a schema, that not
every release has is marked with the releases that do.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TABLES = pathlib.Path(__file__).parents[1] / "amp_transpiler" / "targets" / "data" / "releases.json"
PROVIDERS = {"CUDAExecutionProvider": "cuda", "CPUExecutionProvider": "cpu"}
OPEN = 2147483647  # the last version of an open-ended registration
ORDER = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "bool")
LETTERS = "abcdefghijklmnopqrstuvwxyz"

Types = dict[str, frozenset[str]]
Row = tuple[tuple[int, int], Types]
Of = collections.defaultdict[str, dict[str, list[int]]]  # operator -> text of a row -> positions of releases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    dumps = [json.loads(path.read_text()) for path in parser.parse_args().folder.glob("*.json")]
    dumps.sort(key=lambda dump: number(dump["release"]))
    names = [".".join(dump["release"].split(".")[:2]) for dump in dumps]
    sets = Sets()
    kernels: dict[str, Of] = {provider: collections.defaultdict(dict) for provider in PROVIDERS.values()}
    schemas: Of = collections.defaultdict(dict)
    for position, dump in enumerate(dumps):
        for provider, short in PROVIDERS.items():
            for operator, rows in merged(dump["kernels"].get(provider, [])).items():
                for row in rows:
                    kernels[short][operator].setdefault(row_text(row, sets), []).append(position)
        for domain, name, since, deprecated in dump["schemas"]:
            text = f"{since}{'x' if deprecated else ''}"
            schemas[f"{domain or 'ai.onnx'}::{name}"].setdefault(text, []).append(position)
    tables: dict[str, Mapping[str, Any]] = {
        "releases": {
            name: {"wheel": dump["release"], "opset": dump["opset"], "ir": dump["ir"]}
            for name, dump in zip(names, dumps, strict=True)
        },
        "types": sets.as_dict(),
        "schemas": {operator: marked(rows, names, "|") for operator, rows in sorted(schemas.items())},
        **{
            short: {operator: marked(rows, names, ";") for operator, rows in sorted(table.items())}
            for short, table in kernels.items()
        },
    }
    TABLES.write_text(as_text(tables), encoding="utf-8")
    print(f"{TABLES}: {len(names)} releases, {names[0]} to {names[-1]}, {TABLES.stat().st_size} bytes")


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def merged(rows: Iterable[Sequence[Any]]) -> dict[str, list[Row]]:
    """Group the kernels by operator, and join those of the same versions that differ in one constraint."""
    merged_rows: dict[str, list[Row]] = collections.defaultdict(list)
    for domain, name, (first, last), constraints in rows:
        types = {parameter: frozenset(map(type_name, allowed)) for parameter, allowed in constraints.items()}
        merged_rows[f"{domain or 'ai.onnx'}::{name}"].append(((first, last), types))
    return {operator: joined(of) for operator, of in merged_rows.items()}


def joined(rows: list[Row]) -> list[Row]:
    """Join rows until no two of the same versions differ in one constraint only."""
    # The order decides which rows meet first, so it goes by content: equal registrations give equal rows.
    rows = sorted(rows, key=lambda row: (-row[0][0], row[0][1], sorted((k, sorted(v)) for k, v in row[1].items())))
    again = True
    while again:
        again = False
        for index, (versions, types) in enumerate(rows):
            for other, (also, others) in enumerate(rows[:index]):
                if also == versions and (both := union(others, types)) is not None:
                    rows[other] = (versions, both)
                    del rows[index]
                    again = True
                    break
            if again:
                break
    return rows


def union(one: Types, two: Types) -> Types | None:
    """Return the union of two rows that differ in one parameter at most; None for others."""
    if one.keys() != two.keys():
        return None
    differing = [parameter for parameter in one if one[parameter] != two[parameter]]
    return None if len(differing) > 1 else {parameter: one[parameter] | two[parameter] for parameter in one}


def type_name(text: str) -> str:
    text = text.replace("tensor(float)", "tensor(float32)").replace("tensor(double)", "tensor(float64)")
    return text[len("tensor(") : -1] if text.startswith("tensor(") else text


class Sets:
    """Names for sets of types: the number of members and letters."""

    def __init__(self) -> None:
        self._names: dict[frozenset[str], str] = {}
        self._counts: collections.Counter[int] = collections.Counter()

    def name(self, types: frozenset[str]) -> str:
        if len(types) == 1:
            return next(iter(types))
        if types not in self._names:
            size, index = len(types), self._counts[len(types)]
            self._counts[size] += 1
            self._names[types] = f"{size}{LETTERS[index // 26 - 1] if index > 25 else ''}{LETTERS[index % 26]}"
        return self._names[types]

    def as_dict(self) -> dict[str, str]:
        def rank(type_: str) -> tuple[int, str]:
            return (ORDER.index(type_) if type_ in ORDER else len(ORDER), type_)

        return {name: " ".join(sorted(types, key=rank)) for types, name in self._names.items()}


def row_text(row: Row, sets: Sets) -> str:
    (first, last), types = row
    versions = f"{first}-" if last == OPEN else str(first) if first == last else f"{first}-{last}"
    return " ".join([versions, *(f"{parameter}={sets.name(types[parameter])}" for parameter in sorted(types))])


def marked(rows: Mapping[str, list[int]], names: Sequence[str], separator: str) -> str:
    """Join rows, each with the releases that have it where these are not all."""
    last = len(names) - 1
    texts = []
    for text, positions in rows.items():
        spans = [[position] for position in positions[:1]]
        for position in positions[1:]:
            if position == spans[-1][-1] + 1:
                spans[-1].append(position)
            else:
                spans.append([position])
        pairs = [(names[s[0]] if s[0] else "", names[s[-1]] if s[-1] != last else "") for s in spans]
        whole = pairs == [("", "")]
        texts.append(text if whole else f"{text}@{','.join('-'.join(pair) for pair in pairs)}")
    return separator.join(texts)


def as_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the tables as JSON with a line for every entry, which shows well what a change changes."""
    parts = []
    for title, table in tables.items():
        lines = (f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}" for key, value in table.items())
        parts.append(f"{json.dumps(title)}:{{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
