"""Sort Paddle's public names into those that the package hands out and those that it does not, with the reason.

    python scripts/paddle_names.py --write    # write docs/paddle_names.md again
    python scripts/paddle_names.py --check    # exit with 1 if it is not what this would write

The names are those that the page holds, at first those of Paddle 3.3. Names that have come since move to the others by
themselves; one that is missing without a reason stops the script: add it to REASONS in
`amp_transpiler/paddle/framework/missing_names.py`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import pathlib
import re
import sys

from amp_transpiler.paddle.framework.missing_names import REASONS, why_not

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "paddle_names.md"
TITLE = """# Paddle's names: functions on tensors, methods of variables, `nn.functional`, `linalg`

Written by `scripts/paddle_names.py` and held to the code by `tests/paddle/test_names.py`. Names that end in `_` compute
what those without it do, as in Paddle's static mode: nothing is overwritten. Every function takes Paddle's `name=`,
which has no effect.
"""
SECTIONS = {
    "paddle": "Names of `paddle` itself.",
    "Tensor": "Methods and attributes of variables.",
    "nn.functional": "Functions of layers.",
    "linalg": "Linear algebra.",
}


@functools.cache
def handed_out(section: str) -> frozenset[str]:
    """Return the names of a section that the package has."""
    if section == "Tensor":
        graph = importlib.import_module("amp_transpiler.graph.program")
        methods = importlib.import_module("amp_transpiler.paddle.tensor.methods")
        own = (name for name in dir(graph.Variable) if not name.startswith("_"))
        return frozenset({*own, *methods.METHODS, *methods.PROPERTIES})
    module = "amp_transpiler.paddle" if section == "paddle" else f"amp_transpiler.paddle.{section}"
    return frozenset(importlib.import_module(module).__all__)


def known_names(text: str) -> dict[str, list[str]]:
    """Return section -> Paddle's names, as a page has them."""
    parts = re.split(r"^## `(?:paddle\.)?([\w.]+)`\n", text, flags=re.MULTILINE)[1:]
    return {
        section: sorted(set(re.findall(r"`(\w+)`", body.split("\n\n", 1)[1])), key=lambda n: (n.lower(), n))
        for section, body in zip(parts[::2], parts[1::2], strict=True)
    }


def page(names: dict[str, list[str]]) -> str:
    """Return the page.

    Raises:
        LookupError: a name is missing without a reason.
    """
    text = TITLE
    for section, meaning in SECTIONS.items():
        title = section if section in ("paddle", "Tensor") else f"paddle.{section}"
        have = [name for name in names[section] if name in handed_out(section)]
        missing = [name for name in names[section] if name not in handed_out(section)]
        if unexplained := [name for name in missing if why_not(name) is None]:
            raise LookupError(f"{title}: no reason is given why there is no {', '.join(unexplained)}: see REASONS")
        text += f"\n## `{title}`\n\n{meaning} Here are {len(have)} of {len(names[section])}.\n\n"
        text += " ".join(f"`{name}`" for name in have) + "\n\n| not here | why |\n|---|---|\n"
        for reason in REASONS:
            rows = [f"`{name}`" for name in missing if why_not(name) == reason]
            text += f"| {' '.join(rows)} | {reason} |\n" if rows else ""
    return text


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page is old")
    asked = parser.parse_args()
    old = PAGE.read_text(encoding="utf-8")
    new = page(known_names(old))
    if asked.write:
        PAGE.write_text(new, encoding="utf-8")
    if asked.check and new != old:
        sys.stderr.write(f"{PAGE.name} is not what the package hands out: run scripts/paddle_names.py --write\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
