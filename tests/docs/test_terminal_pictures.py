"""Pictures of a terminal show what the command prints today."""

import re
import shutil
import xml.etree.ElementTree as ET

import pytest

import terminal_pictures
from amp_transpiler.cli.command import main
from tests.test_code_blocks import as_pattern, moved, words


@pytest.mark.parametrize("name", terminal_pictures.PICTURES)
def test_a_picture_is_current(name, tmp_path, monkeypatch, capsys):
    (tmp_path / "models").mkdir()
    for file in (terminal_pictures.ROOT / "models").glob("rocm_convnet.*"):
        shutil.copy(file, tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(terminal_pictures.COLUMNS))
    command = terminal_pictures.PICTURES[name]
    assert main(command.split()[1:]) == 0
    shown = words(terminal_pictures.text_of(terminal_pictures.FOLDER / f"{name}.svg"))
    printed = words(f"$ {command}\n{capsys.readouterr().out}")
    same_words = re.fullmatch(as_pattern(shown), printed)
    outdated = f"run python scripts/terminal_pictures.py {name}"
    assert same_words, outdated
    assert not moved("README.md", shown, same_words), outdated


@pytest.mark.parametrize("name", terminal_pictures.PICTURES)
def test_a_picture_is_small_and_loads_nothing(name):
    path = terminal_pictures.FOLDER / f"{name}.svg"
    text = path.read_text(encoding="utf-8")
    ET.fromstring(text)
    assert "url(http" not in text
    assert "@import" not in text
    assert path.stat().st_size < 30_000


def test_a_picture_is_drawn_from_what_a_terminal_gets():
    svg = terminal_pictures.drawn("convert", "\x1b[1mverdict\x1b[0m  a < b")
    assert "a &lt; b" in svg
    assert "font-weight: bold" in svg
    assert "\x1b" not in svg
