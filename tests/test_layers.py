"""No module imports itself in a roundabout way. That imports only go down the layers is import-linter's to check."""

import ast
import pathlib

import grimp
import networkx as nx
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUTSIDE = ("lab", "examples", "scripts", "tests")


@pytest.fixture(scope="module")
def imports() -> nx.DiGraph:
    """Which module imports which: at the top, inside functions and for types alone."""
    graph = grimp.build_graph("amp_transpiler", cache_dir=None)
    return nx.DiGraph(
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
    )


def test_the_graph_has_type_only_imports_and_those_inside_functions(imports):
    assert imports.has_edge("amp_transpiler.report.record", "amp_transpiler.program.program"), "for types alone"
    assert imports.has_edge("amp_transpiler.cli.printing", "amp_transpiler.report.explain"), "inside a function"


def test_no_modules_import_each_other_in_a_circle(imports):
    circles = [sorted(circle) for circle in nx.strongly_connected_components(imports) if len(circle) > 1]
    assert circles == []


def foreign_imports(source, foreign):
    """The imports of a file, also inside functions and by `importlib`, that begin with a name of `foreign`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found += [word.value for word in node.args if isinstance(word, ast.Constant)]
    return [name for name in found if name.partition(".")[0] in foreign]


def test_the_package_imports_nothing_of_the_programs_beside_it():
    programs = [path for folder in OUTSIDE for path in (ROOT / folder).iterdir() if path.suffix in {"", ".py"}]
    foreign = {*OUTSIDE, *(path.stem for path in programs)}
    assert {"launches", "corpus", "train_convnet", "figures"} <= foreign
    files = sorted((ROOT / "amp_transpiler").rglob("*.py"))
    found = {str(path): foreign_imports(path.read_text(encoding="utf-8"), foreign) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import lab",
        "import launches as counted",
        "from corpus.facts import facts",
        "from lab import fuzz",
        "def f():\n    from launches import counting",
        "import importlib\nimportlib.import_module('launches')",
    ],
)
def test_an_import_of_the_lab_is_seen(source):
    assert len(foreign_imports(source, {"lab", "launches", "corpus"})) == 1
