"""The mutants of a module, which of them a seed draws, and how they look."""

from __future__ import annotations

import ast
import collections
import dataclasses
import difflib
import hashlib
import itertools
import pathlib
from collections.abc import Iterator

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from mutation.operators import operators
from mutation.rules import excluded

__all__ = ["Mutant", "all_mutants", "drawn"]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of a module.

    Its name holds as long as its line does: line numbers are no part of it.
    """

    function: str  # qualified name of the innermost function around it; empty: the module itself
    line: int
    spot: str  # function, text of the line, column and number among equal ones
    operator: str
    occurrence: int  # of the operator in the module
    index: int  # of several mutants that an operator has at one spot

    @property
    def name(self) -> str:
        return f"{self.spot}|{self.operator}|{self.index}"

    def applied(self, source: str) -> str | None:
        """Return the mutated module, or None where the change is none or no Python."""
        changed = mutate_code(source, operators()[self.operator], self.occurrence)
        if changed is None or changed == source:
            return None
        try:
            compile(changed, "mutant", "exec")
        except SyntaxError:
            return None
        return str(changed)


def changed_lines(source: str, mutated: str) -> tuple[str, str]:
    """Return the lines that differ, before and after, without indentation."""
    before, after = source.splitlines(), mutated.splitlines()
    gone, come = [], []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            gone += before[a:b]
            come += after[c:d]
    return tuple("\n".join(line.strip() for line in part) for part in (gone, come))  # type: ignore[return-value] # two


def all_mutants(path: pathlib.Path) -> tuple[list[Mutant], int]:
    """Return the mutants of a module, and the number of those that a rule leaves out."""
    source = path.read_text(encoding="utf-8")
    stretches = excluded(source)
    lines = source.splitlines()
    functions = _functions(source)
    left_out = 0
    mutants = []
    spots: dict[tuple[str, str, int], list[tuple[int, int]]] = collections.defaultdict(list)
    for operator, occurrence, index, (line, column) in _places(source):
        if any(start <= (line, column) < end for start, end in stretches):
            left_out += 1
            continue
        function = functions.get(line, "")
        text = lines[line - 1].strip()
        # Equal lines of one function are told apart by their order.
        equal = spots[function, text, column]
        if (line, column) not in equal:
            equal.append((line, column))
        number = sorted(equal).index((line, column))
        indent = len(lines[line - 1]) - len(lines[line - 1].lstrip())
        spot = f"{function}|{text}|{column - indent}|{number}"
        mutants.append(Mutant(function, line, spot, operator, occurrence, index))
    return mutants, left_out


def _places(source: str) -> Iterator[tuple[str, int, int, tuple[int, int]]]:
    """Yield operator, occurrence in the module, index at the node, and place, in the order of cosmic-ray's visitor."""
    nodes = list(ast_nodes(get_ast(source)))
    for name, operator in operators().items():
        occurrence = 0
        for node in nodes:
            for index, (start, _) in enumerate(operator.mutation_positions(node)):
                yield name, occurrence, index, start
                occurrence += 1


def _functions(source: str) -> dict[int, str]:
    """Return the qualified name of the innermost function of each line that is in one."""
    by_line: dict[int, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                name = prefix + child.name
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                by_line.update(dict.fromkeys(range(first, (child.end_lineno or child.lineno) + 1), name))
                inner = name + ".<locals>."
            elif isinstance(child, ast.ClassDef):
                inner = f"{prefix}{child.name}."
            visit(child, inner)

    visit(ast.parse(source), "")
    return by_line


def drawn(mutants: list[Mutant], source: str, module: str, seed: int, count: int | None) -> list[Mutant]:
    """Return a sample of those that are Python, in the order of the draw.

    A second mutant of a spot comes after the first one of every spot. What is drawn depends on the seed and the
    mutants' names alone, so a changed line changes the fate of no other one.
    """

    def rank(text: str) -> bytes:
        return hashlib.sha256(f"{seed}|{module}|{text}".encode()).digest()

    by_spot: dict[str, list[Mutant]] = collections.defaultdict(list)
    for mutant in sorted(mutants, key=lambda mutant: rank(mutant.name)):
        by_spot[mutant.spot].append(mutant)
    turns = [(turn, rank(spot), mutant) for spot, some in by_spot.items() for turn, mutant in enumerate(some)]
    order = (mutant for _, _, mutant in sorted(turns, key=lambda entry: entry[:2]))
    return list(itertools.islice((mutant for mutant in order if mutant.applied(source) is not None), count))
