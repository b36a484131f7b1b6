"""Sort Paddle's public names into those that the package hands out and those that it does not, with the reason.

    python scripts/paddle_names.py --write    # write docs/paddle_names.md again
    python scripts/paddle_names.py --check    # exit with 1 if it is not what this would write, or too little is there

The names are those that the page holds, at first those of Paddle 3.3, and for classes and programs those of
docs/paddle_layers.md. Names that have come since move to the others by themselves; one that is missing without a
reason stops the script: add it to REASONS in `amp_transpiler/paddle/framework/missing_names.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import operator
import pathlib
import re
import sys
from collections.abc import Sequence

from amp_transpiler.paddle.framework.missing_names import APART, REASONS, why_not
from amp_transpiler.paddle.framework.refusals import Refusal

DOCS = pathlib.Path(__file__).parent.parent / "docs"
PAGE, LAYERS_PAGE = DOCS / "paddle_names.md", DOCS / "paddle_layers.md"
GOAL = 0.95
TITLE = """# Paddle's names: functions on tensors, methods of variables, `nn.functional`, `linalg`

Written by `scripts/paddle_names.py` and held to the code by `tests/paddle/test_names.py`. Names that end in `_` compute
what those without it do, as in Paddle's static mode: nothing is overwritten. Every function takes Paddle's `name=`,
which has no effect. `tests/paddle/test_every_name.py` holds that each name has a test of its values, and of its
gradient where it has one.

## How much of Paddle is here

Apart are names that no static graph has: those of dynamic mode, of classes and places of tensors, and of hardware that
ONNX programs do not run on. Classes and what belongs to programs are listed in [Paddle's layers](paddle_layers.md).

| module | Paddle's names | apart | for static graphs | here | share in % |
|---|---|---|---|---|---|
"""
ASKED = """
## Names that scripts use

What Paddle's own tests and thirteen programs of users asked for, before any of it was here.{counted}

{names}
"""
SECTIONS = {
    "paddle": "Names of `paddle` itself.",
    "Tensor": "Methods and attributes of variables.",
    "nn.functional": "Functions of layers.",
    "linalg": "Linear algebra.",
}
# reasons on the page of layers for names that count apart
LAYERS_APART = {
    "dynamic mode's",
    "programs run on CPUs and CUDA devices",
    "it runs the loss several times a step, by a Python function. Use Adam or Rprop",
}


@functools.cache
def handed_out(section: str) -> frozenset[str]:
    """Return the names of a section that the package has."""
    if section == "Tensor":
        graph = importlib.import_module("amp_transpiler.program.program")
        methods = importlib.import_module("amp_transpiler.paddle.tensor.methods")
        members = (name for name in dir(graph.Variable) if not name.startswith("_"))
        return frozenset({*members, *methods.METHODS, *methods.PROPERTIES})
    module = "amp_transpiler.paddle" if section == "paddle" else f"amp_transpiler.paddle.{section}"
    return frozenset(importlib.import_module(module).__all__)


def known_names(text: str) -> dict[str, list[str]]:
    """Return section -> Paddle's names, as a page has them."""
    parts = re.split(r"^## `(?:paddle\.)?([\w.]+)`\n", text, flags=re.MULTILINE)[1:]
    return {
        section: sorted(set(re.findall(r"`(\w+)`", body.split("\n\n", 1)[1])), key=lambda n: (n.lower(), n))
        for section, body in zip(parts[::2], parts[1::2], strict=True)
    }


def asked_names(text: str) -> list[str]:
    """Return the names that scripts use, with their modules, as a page has them."""
    body = text.split("## Names that scripts use", 1)[1].split("\n\n", 2)[2].split("\n## ", 1)[0]
    names = {name.removeprefix("paddle.") for name in re.findall(r"`([\w.]+)`", body)}
    return sorted(names, key=lambda n: (n.lower(), n))


def is_there(path: str) -> bool:
    """Return whether a name with its module, `nn.functional.relu` or `Tensor.mean`, is handed out and not refused."""
    if path.startswith("Tensor."):
        variable = importlib.import_module("amp_transpiler.program.program").Variable
        name = path.removeprefix("Tensor.")
        return name in handed_out("Tensor") or (name.startswith("__") and hasattr(variable, name))
    try:
        member = operator.attrgetter(path)(importlib.import_module("amp_transpiler.paddle"))
    except AttributeError:
        return False
    return not isinstance(member, Refusal)


@dataclasses.dataclass(frozen=True)
class Count:
    """How many names a module of Paddle has, how many of them no static graph has, and how many are here."""

    module: str
    names: int
    apart: int
    here: int

    @property
    def of_static_graphs(self) -> int:
        """How many names static graphs have."""
        return self.names - self.apart

    def row(self) -> str:
        """Return the row of the page's table."""
        share = 100 * self.here / self.of_static_graphs
        return (
            f"| {self.module} | {self.names} | {self.apart} | {self.of_static_graphs} | {self.here} | {share:.1f} |\n"
        )


def layer_names(text: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return module -> the names that the page of layers has as available, and those missing with their reasons."""
    parts = re.split(r"^### `paddle\.([\w.]+)`$", text, flags=re.MULTILINE)[1:]
    by_module = {}
    for section, body in zip(parts[::2], parts[1::2], strict=True):
        listed, _, table = body.partition("| not available")
        missing = re.findall(r"^\| `(\w+)` \| (.+) \|$", table, flags=re.MULTILINE)
        by_module[section] = re.findall(r"`(\w+)`", listed), dict(missing)
    return by_module


def counts(names: dict[str, list[str]]) -> list[Count]:
    """Return the count of each module, those of functions first."""
    of_modules = []
    for section in SECTIONS:
        missing = [name for name in names[section] if name not in handed_out(section)]
        apart = sum(why_not(name) in APART for name in missing)
        title = section if section in ("paddle", "Tensor") else f"paddle.{section}"
        of_modules.append(Count(f"`{title}`", len(names[section]), apart, len(names[section]) - len(missing)))
    for module, (here, missed) in layer_names(LAYERS_PAGE.read_text(encoding="utf-8")).items():
        apart = sum(reason in LAYERS_APART for reason in missed.values())
        of_modules.append(Count(f"`paddle.{module}`", len(here) + len(missed), apart, len(here)))
    return of_modules


def total(found: Sequence[Count]) -> Count:
    """Return the sum."""
    return Count("all", *(sum(getattr(c, part) for c in found) for part in ("names", "apart", "here")))


def page(names: dict[str, list[str]], asked: Sequence[str]) -> str:
    """Return the page.

    Raises:
        LookupError: a name is missing without a reason.
    """
    modules = "".join(_module(section, names[section]) for section in SECTIONS)
    of_modules = counts(names)
    missed = [name for name in asked if not is_there(name)]
    if unexplained := [name for name in missed if why_not(name.rpartition(".")[2]) is None]:
        raise LookupError(f"no reason is given why there is no {', '.join(unexplained)}: see REASONS")
    counted = f" Here are {len(asked) - len(missed)} of {len(asked)}." + "".join(
        f" `{name}`: {why_not(name.rpartition('.')[2])}." for name in missed
    )
    rows = "".join(count.row() for count in [*of_modules, total(of_modules)])
    return TITLE + rows + ASKED.format(counted=counted, names=" ".join(f"`{_shown(name)}`" for name in asked)) + modules


def _shown(path: str) -> str:
    return f"paddle.{path}" if "." in path and not path.startswith("Tensor.") else path


def _module(section: str, names: Sequence[str]) -> str:
    title = section if section in ("paddle", "Tensor") else f"paddle.{section}"
    have = [name for name in names if name in handed_out(section)]
    missing = [name for name in names if name not in handed_out(section)]
    if unexplained := [name for name in missing if why_not(name) is None]:
        raise LookupError(f"{title}: no reason is given why there is no {', '.join(unexplained)}: see REASONS")
    text = f"\n## `{title}`\n\n{SECTIONS[section]} Here are {len(have)} of {len(names)}.\n\n"
    text += " ".join(f"`{name}`" for name in have) + "\n\n| not here | why |\n|---|---|\n"
    for reason in REASONS:
        rows = [f"`{name}`" for name in missing if why_not(name) == reason]
        apart = ". Counts apart" if reason in APART else ""
        text += f"| {' '.join(rows)} | {reason}{apart} |\n" if rows else ""
    return text


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page is old, or shares are too low")
    asked = parser.parse_args()
    old = PAGE.read_text(encoding="utf-8")
    names = known_names(old)
    new = page(names, asked_names(old))
    if asked.write:
        PAGE.write_text(new, encoding="utf-8")
    if not asked.check:
        return 0
    if new != old:
        sys.stderr.write(f"{PAGE.name} is not what the package hands out: run scripts/paddle_names.py --write\n")
    everything = total(counts(names))
    enough = everything.here >= GOAL * everything.of_static_graphs
    if not enough:
        sys.stderr.write(f"{everything.here} of {everything.of_static_graphs} names are here: {GOAL:.0%} is the goal\n")
    return int(new != old or not enough)


if __name__ == "__main__":
    sys.exit(main())
