"""The pages of `docs/`: what they cite is there. tests/test_code_blocks.py runs their examples."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BEHAVIOURS = {"paddle_behaviours.md": range(1, 53), "behaviours.md": range(53, 86)}


def rows(page):
    """List the rows of a page of behaviours: the numbers, and the cell with the tests."""
    found = []
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(r"[\d, -]*\d[\d, -]*", cells[0]):
            numbers = []
            for part in cells[0].split(","):
                first, _, last = part.strip().partition("-")
                numbers += range(int(first), int(last or first) + 1)
            found.append((numbers, cells[2]))
    return found


@pytest.mark.parametrize("page", BEHAVIOURS)
def test_every_behaviour_has_one_row(page):
    assert sorted(number for numbers, _ in rows(page) for number in numbers) == list(BEHAVIOURS[page])


def cited(cell):
    """The files and the tests that a cell names; files of `tests/` without that folder's name."""
    names = re.findall(r"`([^`]+)`", cell)
    files = [name for name in names if name.endswith(".py")]
    return files, [name for name in names if re.fullmatch(r"test_\w+", name)]


@pytest.mark.parametrize("page", BEHAVIOURS)
def test_what_a_row_cites_is_there(page):
    missing = []
    for numbers, cell in rows(page):
        files, tests = cited(cell)
        paths = [next((p for p in (ROOT / "tests" / name, ROOT / name) if p.is_file()), None) for name in files]
        missing += [(numbers, name) for name, path in zip(files, paths, strict=True) if path is None]
        source = "".join(path.read_text(encoding="utf-8") for path in paths if path is not None)
        missing += [(numbers, name) for name in tests if f"def {name}(" not in source]
    assert missing == []


def test_what_the_page_of_attacks_cites_is_there():
    lines = (DOCS / "robustness.md").read_text(encoding="utf-8").splitlines()
    cells = [line.strip("|").split("|")[-1] for line in lines if line.startswith("|") and "`" in line]
    missing = []
    for cell in cells:
        files, tests = cited(cell)
        sources = [(ROOT / "tests" / name).read_text(encoding="utf-8") for name in files]
        missing += [name for name in tests if not any(f"def {name}(" in source for source in sources)]
        assert tests, cell
    assert missing == []


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda path: path.name)
def test_relative_links_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda path: path.name)
def test_files_that_a_page_names_exist(path):
    names = re.findall(r"`((?:amp_transpiler|scripts|tests|docs|models)/[\w./]+)`", path.read_text(encoding="utf-8"))
    assert [name for name in names if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    "name", ["raf", "mxnet", "sambanova", "pytorch", "behaviours", "paddle_behaviours", "robustness", "statements"]
)
def test_the_readme_leads_to_every_page(name):
    assert f"(docs/{name}.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
