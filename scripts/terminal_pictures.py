#!/usr/bin/env python3
"""Draws what the command prints as SVG, for the README and the tutorial.

    python scripts/terminal_pictures.py           # draw docs/assets/*.svg again
    python scripts/terminal_pictures.py convert   # only this one

A picture loads no fonts and holds its text a second time, for tests and for those who do not see it.
tests/docs/test_terminal_pictures.py compares the text with what the command prints.
"""

from __future__ import annotations

import argparse
import html
import io
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.text import Text

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "assets"
COLUMNS = 116

PICTURES = {
    "convert": "amp-transpile models/rocm_convnet.onnx --inputs models/rocm_convnet.inputs.npz --dim batch=256",
}
"""Picture -> the command that it shows, run in a folder that holds `models/`."""

_SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<desc>{{description}}</desc>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px; }}
.{unique_id}-title {{ font-size: 16px; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(PICTURES)} (default: all)")
    names = parser.parse_args().names or list(PICTURES)
    if unknown := set(names) - set(PICTURES):
        parser.error(f"unknown picture {', '.join(sorted(unknown))}; known: {', '.join(PICTURES)}")
    for name in names:
        picture = FOLDER / f"{name}.svg"
        picture.write_text(drawn(name, printed(PICTURES[name])), encoding="utf-8")
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1024:.0f} kB")
    return 0


def printed(command: str) -> str:
    """Return what a command prints on a terminal, colours included."""
    script = command.replace("amp-transpile", f"{shlex.quote(sys.executable)} -m amp_transpiler", 1)
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        models = pathlib.Path(folder, "models")
        models.mkdir()
        for file in (ROOT / "models").glob("rocm_convnet.*"):
            (models / file.name).write_bytes(file.read_bytes())
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
    return done.stdout


def drawn(name: str, output: str) -> str:
    """Return the picture of a terminal with a command and its output."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text.assemble(("$ ", "bold"), PICTURES[name]))
    for line in output.splitlines():
        text = Text.from_ansi(line)
        text.rstrip()
        console.print(text)
    svg = console.export_svg(title="amp-transpile", code_format=_SVG, unique_id=name)
    plain = "\n".join(line.rstrip() for line in plain_text(output).splitlines())
    svg = svg.replace("{description}", html.escape(f"$ {PICTURES[name]}\n{plain}"))
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)


def plain_text(output: str) -> str:
    """Return what was printed without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", output)


def text_of(picture: pathlib.Path) -> str:
    """Return the text that a picture shows."""
    match = re.search(r"<desc>(.*?)</desc>", picture.read_text(encoding="utf-8"), re.DOTALL)
    assert match, f"{picture} was not drawn by scripts/terminal_pictures.py"
    return html.unescape(match[1])


if __name__ == "__main__":
    sys.exit(main())
