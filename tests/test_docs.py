"""The pages of `docs/`: what they cite is there. tests/test_code_blocks.py runs their examples."""

import functools
import itertools
import pathlib
import re

import pytest

import amp_transpiler as amp
import docs_hooks
import figures
import reference_pages
from tests.test_code_blocks import last_place

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BEHAVIOURS = {"evidence/paddle_behaviours.md": range(1, 53), "evidence/behaviours.md": range(53, 86)}


def rows(page):
    """List the rows of a page of behaviours: the numbers, and the cell with the tests."""
    table = []
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(r"[\d, -]*\d[\d, -]*", cells[0]):
            numbers = []
            for part in cells[0].split(","):
                first, _, last = part.strip().partition("-")
                numbers += range(int(first), int(last or first) + 1)
            table.append((numbers, cells[2]))
    return table


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
        missing += [(numbers, fault) for fault in misplaced(cell)]
    assert missing == []


@pytest.mark.parametrize("page", BEHAVIOURS)
def test_a_row_names_a_test_of_every_file_of_tests_that_it_cites(page):
    alone = []
    for numbers, cell in rows(page):
        names = [name for name in re.findall(r"`([^`]+)`", cell) if re.search(r"\.py$|^test_\w+$", name)]
        for name, follower in itertools.pairwise([*names, ""]):
            if (ROOT / "tests" / name).is_file() and not re.fullmatch(r"test_\w+", follower):
                alone.append((numbers, name))
    assert alone == []


def source_of(name):
    """The text of a file that a page cites, below `tests/` or not; None if there is none."""
    path = next((p for p in (ROOT / "tests" / name, ROOT / name) if p.is_file()), None)
    return None if path is None else path.read_text(encoding="utf-8")


def misplaced(text):
    """The files that are not there, and the tests that are not in the file named before them."""
    wrong, source, file = [], "", ""
    for name in re.findall(r"`([^`]+)`", text):
        if name.endswith(".py"):
            file, source = name, source_of(name)
            wrong += [name] if source is None else []
        elif re.fullmatch(r"test_\w+", name) and f"def {name}(" not in (source or ""):
            wrong.append(f"{name} in {file}")
    return wrong


def test_a_citation_of_the_wrong_file_is_found():
    here = "`test_docs.py`: `test_a_citation_of_the_wrong_file_is_found`"
    assert misplaced(here) == []
    assert misplaced(f"{here}, `lab/test_golden.py`: `test_a_citation_of_the_wrong_file_is_found`") != []
    assert misplaced("`nothing.py`") == ["nothing.py"]


def test_what_the_page_of_attacks_cites_is_there():
    lines = (DOCS / "evidence" / "robustness.md").read_text(encoding="utf-8").splitlines()
    cells = [line.strip("|").split("|")[-1] for line in lines if line.startswith("|") and "`" in line]
    missing = []
    for cell in cells:
        missing += misplaced(cell)
        assert cited(cell)[1], cell
    assert missing == []


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda path: path.name)
def test_relative_links_lead_somewhere(path):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda path: path.name)
def test_files_that_a_page_names_exist(path):
    """A path begins at the root, or in the package, the tests, the scripts or the lab."""
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    names = re.findall(r"`((?:\w+/)+(?:[\w-]+\.(?:py|md|txt|json|toml))?)`", text)
    homes = [ROOT, *(ROOT / folder for folder in ("amp_transpiler", "tests", "scripts", "lab", "docs"))]
    elsewhere = {
        "python/raf/amp/type_hints.py",
        "systems/NAME/rules.py",
        "targets/NAME.py",
    }  # RAF's own; a place-holder
    assert [n for n in names if n not in elsewhere and not any((home / n).exists() for home in homes)] == []


PROGRAMS = ("scripts", "examples", "lab")
SOURCES = [path for folder in ("amp_transpiler", *PROGRAMS) for path in sorted((ROOT / folder).rglob("*.py"))]


def test_files_that_a_docstring_names_exist():
    homes = [ROOT, *(ROOT / folder for folder in ("amp_transpiler", "tests", "scripts", "lab", "docs"))]
    missing = []
    for path in SOURCES:
        for name in re.findall(r"`((?:\w+/)+\w+\.(?:py|md|txt|json|toml))`", path.read_text(encoding="utf-8")):
            missing += [] if any((home / name).exists() for home in (*homes, path.parent)) else [f"{path.name}: {name}"]
    assert missing == []


def test_names_of_the_package_that_a_page_has_exist():
    roots = {"amp": amp, "paddle": amp.paddle, "static": amp.static, "F": amp.nn.functional}
    missing = []
    pages = [path for path in sorted(DOCS.rglob("*.md")) if path.name != "errors.md"]  # messages, with words of users
    for path in (ROOT / "README.md", *pages):
        text = BLOCK.sub("", path.read_text(encoding="utf-8"))
        for root, dotted in re.findall(r"`@?(amp|paddle|static|F)\.([\w.]+)", text):
            if dotted.split(".")[-1] in ("py", "md"):
                continue
            try:
                functools.reduce(getattr, dotted.rstrip(".").split("."), roots[root])
            except AttributeError as error:
                missing.append(f"{path.name}: {error}")
    assert missing == []


NAVIGATION = [
    *re.findall(r"^ +- (?:[^:\n]*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
]


def test_every_page_has_one_place_in_the_navigation():
    """A page that is missing here belongs into `nav` of mkdocs.yml."""
    of_the_root = [name.lower() for name in docs_hooks.ROOT_PAGES if (ROOT / name).is_file()]
    assert sorted(NAVIGATION) == sorted(
        [*(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")), *of_the_root]
    )


def listed(page):
    """The files and folders that the first cells of a page's tables name."""
    rows = [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return {name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}


@pytest.mark.parametrize(
    ("page", "folder", "prefix"),
    [
        ("docs/scripts.md", "scripts", "scripts/"),
        ("docs/scripts.md", "examples", "examples/"),
        ("lab/README.md", "lab", ""),
    ],
)
def test_every_program_has_a_row(page, folder, prefix):
    there = {prefix + path.name for path in (ROOT / folder).iterdir() if path.name not in {"__pycache__", "README.md"}}
    named = {name for name in listed(page) if name.startswith(prefix)} - {folder}
    assert named == there


def test_the_readme_leads_to_the_pages():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in ("index", "tutorial", "reference/command"):
        assert f"(docs/{page}.md)" in text


def test_the_pages_of_the_operator_table_are_current():
    for path, text in reference_pages.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run python scripts/reference_pages.py"


def test_the_figures_of_the_readme_are_those_of_the_pages():
    table = figures.Figures.read()
    printed = figures.run(table.commands["pages"], ROOT)
    rows = [figure for figure in table.figures if figure.command == "pages"]
    assert len(rows) >= 8
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    for figure in rows:
        assert figure.measured(printed, page) == figure.values(page), (
            f"{figure.id}: a page in docs/benchmarks has changed; run scripts/figures --only pages --update"
        )


def test_the_figures_in_the_sentences_of_readme_and_tutorial_are_what_the_demo_prints():
    """To one unit in the last digit shown; blocks of code and the picture have tests of their own."""
    table = figures.Figures.read()
    printed = figures.run(table.commands["demo"], ROOT)
    rows = [figure for figure in table.figures if figure.command == "demo"]
    assert {figure.file for figure in rows} == {"README.md", "docs/tutorial.md"}
    for figure in rows:
        page = (ROOT / figure.file).read_text(encoding="utf-8")
        measured = figure.measured(printed, page)
        assert measured is not None, f"{figure.id}: {printed}"
        for shown, number in zip(figure.values(page), measured, strict=True):
            assert abs(float(shown) - float(number)) <= 1.001 * last_place(shown), f"{figure.id}: {shown}, {number}"


# Written by scripts from the source: looked up, not read.
GENERATED = {"errors.md", "paddle_names.md", "paddle_layers.md", "reference/operators.md", "reference/lists.md"}
APART = ("benchmarks/", "evidence/")  # measurements and what was tried


def test_the_manual_is_no_longer_than_60_000_words():
    pages = {path.relative_to(DOCS).as_posix(): path for path in DOCS.rglob("*.md")}
    assert set(pages) >= GENERATED
    manual = [path for name, path in pages.items() if name not in GENERATED and not name.startswith(APART)]
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in manual) <= 60_000


def test_the_first_page_has_a_quick_start_with_an_install_line_and_a_picture():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    start = text.split("## Quick start")[1].split("\n## ")[0]
    assert len(start.split()) < 150
    for part in ("pip install", "amp-transpile model.onnx", "](assets/convert.svg)"):
        assert part in start
