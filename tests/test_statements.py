"""`docs/evidence/statements.md`: rows have verdicts, what they cite is there, and the counts are those of the rows."""

import collections
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "evidence" / "statements.md"
SAME, DIFFERS, IMPOSSIBLE, GPU, MACHINES = (
    "same",
    "differs",
    "impossible on ONNX",
    "needs a GPU",
    "needs several machines",
)
VERDICTS = (SAME, DIFFERS, IMPOSSIBLE, GPU, MACHINES)


def tables():
    """Title of a section -> the cells of its rows; the summary has the title ''."""
    by_name = collections.defaultdict(list)
    title = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ")
        elif line.startswith("|") and not line.startswith("|---"):
            by_name[title].append([cell.strip() for cell in line.strip("|").split("|")])
    return {title: rows[1:] for title, rows in by_name.items()}


TABLES = tables()
SUMMARY = TABLES.pop("")
ROWS = [row for rows in TABLES.values() for row in rows]
NUMBERED = pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])


def cited(cell):
    """File -> tests that a cell names."""
    by_name = collections.defaultdict(list)
    for name in re.findall(r"`([^`]+)`", cell):
        if name.startswith("test_") or "/test_" in name:
            if name.endswith(".py"):
                file = name
            else:
                by_name[file].append(name)
    return by_name


def test_there_is_a_table_for_each_document_and_the_description():
    assert len(TABLES) == 6
    assert all(len(row) == 5 for row in ROWS), "a cell holds a stroke"
    assert len(ROWS) > 183


@pytest.mark.parametrize("title", TABLES)
def test_rows_are_numbered_one_by_one(title):
    letter = TABLES[title][0][0][0]
    assert [row[0] for row in TABLES[title]] == [f"{letter}{i}" for i in range(1, len(TABLES[title]) + 1)]


def test_no_two_statements_of_a_document_are_one():
    assert [title for title, rows in TABLES.items() if len({row[1] for row in rows}) < len(rows)] == []


@NUMBERED
def test_a_row_has_a_verdict_and_what_the_verdict_asks_for(row):
    _, statement, where, verdict, reason = row
    assert statement
    assert where
    assert verdict in VERDICTS
    prose = re.sub(r"`[^`]*`(?::|,|;|\.)?", "", reason).strip()
    if verdict == SAME:
        assert cited(reason), "the same, but no test shows it"
    elif verdict in (DIFFERS, IMPOSSIBLE):
        assert re.search(r"\]\(\.\./\w+\.md(#[\w-]+)?\)$", reason), "it differs, but no page says so"
        assert len(prose) > 20, "no reason"
    else:
        assert prose, "nothing is said of what would be measured"


@NUMBERED
def test_every_test_that_a_row_cites_exists(row):
    missing = []
    for file, names in cited(row[4]).items():
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        missing += [(file, name) for name in names if not re.search(rf"^\s*def {name}\(", source, re.MULTILINE)]
        assert names, f"{file} without a test"
    assert missing == []


def headings(page):
    lines = (PAGE.parent / page).read_text(encoding="utf-8").splitlines()
    return {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in lines if line[:1] == "#"}


def test_links_lead_to_headings():
    links = {target for row in ROWS for target in re.findall(r"\]\(([^)]+)\)", row[4])}
    assert [link for link in links if "#" in link and link.split("#")[1] not in headings(link.split("#")[0])] == []


def test_the_counts_are_those_of_the_rows():
    header = next(
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| document")
    )
    counts = {title: collections.Counter(row[3] for row in rows) for title, rows in TABLES.items()}
    counts["all"] = sum(counts.values(), collections.Counter())
    verdicts = header[2:]
    expected = [[title, str(of.total()), *(str(of[v]) for v in verdicts)] for title, of in counts.items()]
    assert expected == SUMMARY
    assert set(counts["all"]) <= set(verdicts)
