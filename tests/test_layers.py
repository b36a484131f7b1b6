"""No module imports itself in a roundabout way. That imports only go down the layers is import-linter's to check."""

import ast
import pathlib
import re

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
    # To parse all files takes seconds; ruff holds each `import` to one module.
    heads = re.findall(r"^\s*(?:import|from)\s+(\w+)|(import_module|__import__)", source, re.MULTILINE)
    if {"import_module", "__import__", *foreign}.isdisjoint(word for head in heads for word in head):
        return []
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names += [word.value for word in node.args if isinstance(word, ast.Constant)]
    return [name for name in names if name.partition(".")[0] in foreign]


def test_the_package_imports_nothing_of_the_programs_beside_it():
    programs = [path for folder in OUTSIDE for path in (ROOT / folder).iterdir() if path.suffix in {"", ".py"}]
    foreign = {*OUTSIDE, *(path.stem for path in programs)}
    assert {"launches", "corpus", "train_convnet", "figures"} <= foreign
    files = sorted((ROOT / "amp_transpiler").rglob("*.py"))
    foreign_of = {str(path): foreign_imports(path.read_text(encoding="utf-8"), foreign) for path in files}
    assert {path: names for path, names in foreign_of.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import lab",
        "import launches as counted",
        "from corpus.facts import facts",
        "from lab import fuzz",
        "def f():\n    from launches import counting",
        "import importlib\nimportlib.import_module('launches')",
        "import importlib\nimportlib.import_module(\n    'launches'\n)",
    ],
)
def test_an_import_of_the_lab_is_seen(source):
    assert len(foreign_imports(source, {"lab", "launches", "corpus"})) == 1


BY_NAME = {"import_module", "__import__", "resolve_name", "run_module", "exec_module", "load_module"}

# Files that import by name, and what. Modules of the package itself are only for `lazy` and `aliases`.
MAY_IMPORT_BY_NAME = {
    "lazy.py": "the one place that imports modules of the package by name",
    "aliases.py": "a part of the import system: a second name for a module of Paddle's namespace",
    "late_sympy.py": "a part of the import system: sympy, and the module of onnx_ir that reads it",
    "files/mentions.py": "modules of the standard library that a Python may lack: gzip, bz2, lzma",
    "verification/user_metric.py": "the file of a user's own metric",
}

# Files that ask `lazy` for a module of the package, and why an import statement does not do.
MAY_ASK_LAZY = {
    "program/hooks.py": "what Paddle's layer provides to programs and variables, which lie below it",
    "paddle/static/io.py": "names of Paddle's static.io that lie in modules on top of it",
    "systems/registry.py": "a table of classes, of which one is imported",
    "autodiff/rules/__init__.py": "every file of a folder",
}


def uses_of(source, functions):
    """Where a file uses one of some functions, called or not, and under any name that an import gives it."""
    tree = ast.parse(source)
    names = set(functions)
    uses = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname for alias in node.names if alias.name in functions and alias.asname}
        elif isinstance(node, ast.Attribute) and node.attr in functions:
            uses.append(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            uses += [word for word in node.args if isinstance(word, ast.Constant) and word.value in functions]
    uses += [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names]
    return [f"line {node.lineno}: {ast.unparse(node)}" for node in uses]


def uses_in_the_package(functions):
    folder = ROOT / "amp_transpiler"
    files = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    hits = {name: source for name, source in files.items() if any(function in source for function in functions)}
    uses = {name: uses_of(source, functions) for name, source in hits.items()}
    return {name: lines for name, lines in uses.items() if lines}


def test_only_lazy_imports_own_modules_by_name():
    """Such an import is invisible to the tests above and to import-linter: it may go up, or hide a circle."""
    uses = uses_in_the_package(BY_NAME)
    assert {name: lines for name, lines in uses.items() if name not in MAY_IMPORT_BY_NAME} == {}
    assert set(MAY_IMPORT_BY_NAME) == set(uses), "a file of the list does so no more"


def test_who_asks_lazy_for_a_module_is_listed_with_the_reason():
    assert set(uses_in_the_package({"import_late", "import_folder"})) - {"lazy.py"} == set(MAY_ASK_LAZY)


@pytest.mark.parametrize(
    "source",
    [
        "import importlib\nimportlib.import_module('amp_transpiler.report.recipe')",
        "import importlib\nimportlib.import_module(f'amp_transpiler.paddle.{name}')",
        "import importlib\nimportlib.import_module(f'{__name__}.{name}')",
        "import importlib\nHOME = 'amp_transpiler.paddle'\ndef f():\n    return importlib.import_module(HOME)",
        "import importlib\nimportlib.import_module('.recipe', __package__)",
        "import importlib as il\nil.import_module('amp_transpiler.report')",
        "from importlib import import_module\nimport_module('amp_transpiler.report')",
        "from importlib import import_module as load\nload('amp_transpiler.report')",
        "import importlib\nload = importlib.import_module",
        "import importlib\nmodules = list(map(importlib.import_module, NAMES))",
        "__import__('amp_transpiler.report')",
        "import builtins\nbuiltins.__import__('amp_transpiler.report')",
        "import pkgutil\npkgutil.resolve_name('amp_transpiler.report:Report')",
        "import importlib\ngetattr(importlib, 'import_module')('amp_transpiler.report')",
    ],
)
def test_an_import_by_name_is_seen(source):
    assert len(uses_of(source, BY_NAME)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import amp_transpiler.report",
        "from amp_transpiler.report import recipe",
        "import importlib\nimportlib.invalidate_caches()",
        "'import_module'",
        "import sys\nsys.modules['amp_transpiler']",
        "getattr(report, 'verdict')",
    ],
)
def test_what_is_no_import_by_name_is_let_through(source):
    assert uses_of(source, BY_NAME) == []


@pytest.mark.parametrize(
    "source",
    [
        "from amp_transpiler.lazy import import_late\nimport_late('amp_transpiler.report')",
        "from amp_transpiler.lazy import import_late as late\nlate('amp_transpiler.report')",
        "from amp_transpiler import lazy\nlazy.import_late('amp_transpiler.report')",
        "from amp_transpiler.lazy import import_folder\nimport_folder(__name__, __path__)",
        "import amp_transpiler.lazy\namp_transpiler.lazy.import_late('amp_transpiler.report')",
    ],
)
def test_who_asks_lazy_is_seen(source):
    assert len(uses_of(source, {"import_late", "import_folder"})) == 1
