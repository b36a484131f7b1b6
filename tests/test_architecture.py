"""The statements of docs/architecture.md that can be tested: its list of folders, the names and files that it cites."""

import ast
import pathlib
import re
import tomllib

import pytest

import amp_transpiler as amp
from amp_transpiler.conversion import fitted, prepare
from amp_transpiler.precision.assign import assign
from amp_transpiler.precision.ranges import RangeFaults
from amp_transpiler.systems.choice import Request, choose_policy

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "amp_transpiler"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
LAYERS = next(contract["layers"] for contract in CONTRACTS if contract["type"] == "layers")


def house():
    """List the rows of the table of folders: the members of the package, and the names they hand out."""
    _, _, after = PAGE.partition("| folder | lives there | hands out |\n")
    for line in after.splitlines()[1:]:
        if not line.startswith("|"):
            return
        members, _, names = (cell.strip() for cell in line.strip("|").split("|"))
        yield re.findall(r"`([\w.]+)/?`", members), re.findall(r"`(\w+)`", names)


HOUSE = list(house())


def test_the_folders_are_the_layers_in_their_order():
    listed = [[member.removesuffix(".py") for member in members] for members, _ in HOUSE]
    layers = [[member.strip() for member in layer.split("|")] for layer in LAYERS]
    assert [name for members in listed for name in members] == [name for members in layers for name in members]


def defined(path):
    """The names that the modules of a folder, or one module, define or hand on."""
    names = set()
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize(("members", "names"), HOUSE, ids=" ".join)
def test_a_folder_hands_out_what_the_page_says(members, names):
    names_there = set().union(*(defined(PACKAGE / member) for member in members))
    assert set(names) - names_there == set()


_FILE = re.compile(r"(?:[\w.]+/)+[\w.*]*|[\w.]+\.(?:py|txt|json|md)")


def cited():
    """Every file and folder that the page names, in its text or in its plain blocks."""
    blocks = re.findall(r"^```\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    quoted = [text for text in re.findall(r"`([^`\n]+)`", PAGE) if " " not in text]
    return {name for text in (*quoted, *blocks) for name in _FILE.findall(text)}


def test_every_file_that_the_page_names_is_there():
    names = cited()
    assert len(names) > 40
    places = (PACKAGE, ROOT, ROOT / "docs", *(path for path in PACKAGE.rglob("*") if path.is_dir()))
    missing = []
    for name in names:
        stem = name.removesuffix("/").replace("NAME", "*")
        if not any(any(place.glob(stem)) or (place / f"{stem}.py").is_file() for place in places):
            missing.append(name)
    assert missing == []


def test_a_folder_of_the_package_has_a_folder_of_tests():
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()} - {"cli"}
    tested = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))}
    assert folders - tested == set()
    assert any((ROOT / "tests").glob("test_cli*.py"))


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_verification_runs_onnx_runtime_in_its_child_alone():
    opens = ("onnxruntime", "amp_transpiler.runtime.session", "amp_transpiler.runtime.executor")
    files = [path for room in ("child_process", "verification") for path in (PACKAGE / room).glob("*.py")]
    openers = {path.name for path in files if any(name.startswith(opens) for name in imported(path))}
    # The child, the memory that it gives its sessions, and the values that it keeps.
    assert openers == {"worker.py", "memory.py", "values.py"}
    of_child = ("amp_transpiler.child_process.memory", "amp_transpiler.child_process.values")
    readers = {path.name for path in files if any(name.startswith(of_child) for name in imported(path))}
    assert readers == {"worker.py"}


def test_a_file_of_passes_has_one_pass():
    rooms = ("passes", "training_passes", "update_passes")
    for path in (path for room in rooms for path in (PACKAGE / room).rglob("*.py")):
        classes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
        passes = [c.name for c in classes if any(ast.unparse(base).startswith("Pass[") for base in c.bases)]
        assert len(passes) <= 1, path


def test_deciding_edits_nothing():
    program = amp.load(ROOT / "models/bert_1layer.onnx")
    policy = fitted(choose_policy(Request(level="O2")), program)
    ranges = RangeFaults(policy.low, strict=policy.strict_ranges)
    prepare(program, policy, ranges)
    before = program.to_onnx().SerializeToString(deterministic=True)
    assert any(decision.precision == "low" for decision in assign(program.model, policy, ranges).decisions.values())
    assert program.to_onnx().SerializeToString(deterministic=True) == before
