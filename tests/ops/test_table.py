"""The operator table: how it is read, and that it is whole."""

import pathlib
import subprocess
import sys

import pytest

from amp_transpiler.ops import kinds, table, vocabulary
from amp_transpiler.ops.table import column, of_kind, operator_table, parse_table

FILE = pathlib.Path(table.__file__).with_name("operators.txt")
LINES = FILE.read_text(encoding="utf-8").splitlines()
ROWS = [line for line in LINES if line and not line.startswith("#")]
HEADER = [cell.strip() for cell in ROWS[0].split(" | ")]


def test_reading():
    rows = parse_table(["# ...", "", "operator | kinds | a | a names", "Relu | x y | - | one two", "Abs | - | b | -"])
    assert list(rows) == ["Relu", "Abs"]
    assert (rows["Relu"].kinds, dict(rows["Relu"].cells)) == ({"x", "y"}, {"a names": "one two"})
    assert (rows["Abs"].kinds, dict(rows["Abs"].cells)) == (set(), {"a": "b"})
    assert (rows["Relu"].words("a names"), rows["Relu"].words("a")) == (("one", "two"), ())


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("Relu | - | c", "Relu has two rows"),
        ("Abs | -", "Abs has 2 cells instead of 3"),
        ("Abs | - | b | c", "Abs has 4 cells instead of 3"),
    ],
)
def test_a_bad_row_is_refused(row, message):
    with pytest.raises(ValueError, match=message):
        parse_table(["operator | kinds | a", "Relu | - | b", row])


@pytest.mark.parametrize("look_up", [column, of_kind])
def test_an_unknown_column_or_kind_is_refused(look_up):
    with pytest.raises(ValueError, match="'nonsense'"):
        look_up("nonsense")


def test_the_columns_of_classes_are_aligned():
    end = ROWS[0].index("torch names")  # names and reasons follow, each as long as it is
    bars = [index for index, char in enumerate(ROWS[0][:end]) if char == "|"]
    assert len(ROWS) > 260
    assert [row for row in ROWS if [i for i, char in enumerate(row[:end]) if char == "|"] != bars] == []
    assert {row.count(" | ") for row in ROWS} == {ROWS[0].count(" | ")}


def test_rows_are_in_alphabetical_order():
    operators = list(operator_table())
    assert operators == sorted(operators, key=lambda name: ("::" in name, name.lower()))


def test_every_kind_is_explained_and_handed_out():
    used = {kind for row in operator_table().values() for kind in row.kinds}
    assert used == {name.lower() for name in kinds.__all__}
    assert [kind for kind in used if not any(line.startswith(f"#   {kind} ") for line in LINES)] == []


@pytest.mark.parametrize("system", ["torch", "mxnet", "raf"])
def test_who_has_a_class_has_a_name_or_a_reason(system):
    assert column(system).keys() == column(f"{system} names").keys()


def test_what_is_unsafe_has_a_reason():
    assert column("unsafe").keys() == column("unsafe reason").keys()
    assert set(column("unsafe").values()) == {"both", "float16"}


def test_what_has_one_of_paddles_names_has_a_colour():
    explained = column("paddle names").keys() | column("paddle reason").keys()
    assert column("paddle").keys() - explained <= kinds.MOVEMENT
    assert explained <= column("paddle").keys()


def test_every_column_is_asked_for_by_someone():
    package = FILE.parent.parent
    code = "".join(file.read_text(encoding="utf-8") for file in package.rglob("*.py"))
    assert [name for name in HEADER[2:] if f'"{name}"' not in code] == []


def test_names_of_paddle_that_onnx_has_no_operator_for():
    assert vocabulary.paddle_names()["cos_sim"] == ()
    assert "none" not in operator_table()


def test_reading_the_table_imports_no_onnx():
    code = "import sys; from amp_transpiler.ops.table import operator_table; operator_table(); print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"onnx", "onnx_ir", "onnxruntime", "numpy"} & set(printed) == set()
