"""Figures of the README and the pages: each has its command in docs/figures.toml, and scripts/figures runs it again."""

import pathlib
import re

import pytest

import figures

PAGE = """# Page

Converted in 3 s, with {0}.

## Sizes

| model | MB | note |
| --- | --- | --- |
| one | 12 | of 2 |
| **two** | 1,200 | `3 s` |

As printed:

```
one: 12 MB
two: 7 casts
```
"""
TEXT = figures.Figure("took", "run", "README.md", 0.1, text="Converted in {} s", found=r"took ([\d.]+) s")
TABLE = figures.Figure("sizes", "run", "README.md", 0.1, table="## Sizes")
BLOCK = figures.Figure("block", "run", "README.md", 0.1, block="As printed:")
OUTPUT = "took 4.5 s\n| two | 1300 | `3 s` |\n| one | 12 | of 2 |\n"
COMMAND = """
[commands.run]
run = "cat printed"
date = 2020-01-01
commit = "0000000"
seconds = 1

[[figures]]
id = "took"
command = "run"
file = "README.md"
text = "Converted in {} s"
found = 'took ([\\d.]+) s'
tolerance = 0.5

[[exempt]]
file = "README.md"
text = "(?s)## Sizes.*"
reason = "none"
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(PAGE)
    (tmp_path / "docs/figures.toml").write_text(COMMAND)
    (tmp_path / "printed").write_text(OUTPUT)
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "TABLE", tmp_path / "docs/figures.toml")
    monkeypatch.setattr(figures, "_commit", lambda: "1234567")
    return tmp_path


def call(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["figures", *arguments])
    return figures.main()


def test_every_number_of_the_documents_has_its_command():
    assert not list(figures.Figures.read().faults()), "see the head of docs/figures.toml"


def test_every_command_has_a_date_a_commit_a_cost_and_files_that_are_there():
    for command in figures.Figures.read().commands.values():
        assert command.date.year >= 2026
        assert re.fullmatch("[0-9a-f]{7}", command.commit)
        assert command.seconds > 0
        for name in re.findall(r"(?:scripts|lab|examples|tests|models)/[\w./]+", command.run):
            assert (pathlib.Path(figures.__file__).parents[1] / name).exists() or "fp16" in name, name


@pytest.mark.parametrize("figure", [TEXT, TABLE, BLOCK], ids=lambda figure: figure.id)
def test_a_page_is_updated_in_its_place_alone(figure):
    old = figure.values(PAGE)
    assert figure.updated(PAGE, old) == PAGE
    new = [value.replace("3", "4").replace("12", "13") for value in old]
    assert figure.values(figure.updated(PAGE, new)) == new != old


@pytest.mark.parametrize(
    ("figure", "values"),
    [
        (TEXT, ["4.5"]),
        (TABLE, ["| one | 12 | of 2 |", "| two | 1300 | `3 s` |"]),
        (BLOCK, OUTPUT.splitlines()),
    ],
    ids=lambda value: getattr(value, "id", ""),
)
def test_numbers_are_found_in_what_a_command_prints(figure, values):
    assert figure.measured(OUTPUT, PAGE) == values


@pytest.mark.parametrize("figure", [TEXT, TABLE], ids=lambda figure: figure.id)
def test_what_a_command_does_not_print_is_missing(figure):
    assert figure.measured("| one | 1 | |", PAGE) is None


@pytest.mark.parametrize(
    ("old", "new", "tolerance", "far"),
    [
        ("12", "12", 0, False),
        ("12", "13", 0, True),
        ("12", "13", 0.1, False),
        ("1,200 nodes", "1200 nodes", 0, False),
        ("0.3 s, 5 nodes", "0.7 s, 5 nodes", 0, False),
        ("0.3 s, 5 nodes", "3 s, 5 nodes", 0, True),
        ("0.3 s, 5 nodes", "0.3 s, 6 nodes", 0, True),
        ("5 nodes", "5 casts", 1, True),
        ("5 nodes", "", 1, True),
    ],
)
def test_what_has_moved(old, new, tolerance, far):
    assert figures.moved(old, new, tolerance) == far


@pytest.mark.parametrize(
    ("text", "found", "found_on_a_page_of_measurements"),
    [
        ("2.5 MB and -50% in 0.3 s", ["2.5 MB", "-50%", "0.3 s"], ["2.5", "-50", "0.3"]),
        ("117 of 120", [], ["117", "120"]),
        ("2026-11-22, onnx 1.23.2, Python 3.11 to 3.13, ONNX Runtime 1.31", [], []),
        ("`--tolerance 1%`, float16, O2", [], []),
    ],
)
def test_numbers_that_need_a_command(text, found, found_on_a_page_of_measurements):
    assert [number for _, number in figures.numbers(text, measured=False)] == found
    assert [number for _, number in figures.numbers(text, measured=True)] == found_on_a_page_of_measurements


def test_a_number_without_a_command_and_a_text_that_is_gone_are_faults(repository):
    assert not list(figures.Figures.read().faults())
    (repository / "README.md").write_text(PAGE.format("7 casts"))
    assert list(figures.Figures.read().faults()) == [
        "README.md:3: '7 casts' has no row in docs/figures.toml, and no exemption there"
    ]
    (repository / "README.md").write_text("Quick.")
    assert list(figures.Figures.read().faults()) == ["took: README.md has no such text: Converted in {} s"]


def test_old_against_new_and_update(repository, monkeypatch, capsys):
    assert call(monkeypatch) == 0
    assert "near       took (README.md): 3  ->  4.5" in capsys.readouterr().out
    assert (repository / "README.md").read_text() == PAGE
    call(monkeypatch, "--update", "--only", "took")
    assert (repository / "README.md").read_text() == PAGE.replace("in 3 s", "in 4.5 s")
    table = figures.Figures.read().commands["run"]
    assert table.commit == "1234567"
    assert table.date.year >= 2026


@pytest.mark.parametrize(("printed", "said"), [("took 100 s\n", "MOVED"), ("", "NOT FOUND")])
def test_what_has_moved_or_is_gone_is_an_exit_status(repository, monkeypatch, capsys, printed, said):
    (repository / "printed").write_text(printed)
    assert call(monkeypatch) == 1
    assert said in capsys.readouterr().out
