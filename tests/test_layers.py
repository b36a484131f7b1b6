"""No module imports itself in a roundabout way. That imports only go down the layers is import-linter's to check."""

import grimp
import networkx as nx
import pytest


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
    assert imports.has_edge("amp_transpiler.report.report", "amp_transpiler.graph.program"), "for types alone"
    assert imports.has_edge("amp_transpiler.cli.printing", "amp_transpiler.report.explain"), "inside a function"


def test_no_modules_import_each_other_in_a_circle(imports):
    circles = [sorted(circle) for circle in nx.strongly_connected_components(imports) if len(circle) > 1]
    assert circles == []
