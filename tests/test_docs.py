"""The pages of `docs/`: their examples run, and what they cite is there."""

import inspect
import os
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap

import numpy as np
import onnx
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler import static
from amp_transpiler.cli.command import main
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.systems.raf import casting_rules

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BEHAVIOURS = {"paddle_behaviours.md": range(1, 53), "behaviours.md": range(53, 86)}


def blocks(path):
    """List a page's blocks: language, number of lines before the text, text."""
    text = path.read_text(encoding="utf-8")
    return [(m[1], text.count("\n", 0, m.start(2)), m[2]) for m in BLOCK.finditer(text)]


def run_python(code, line, path, namespace):
    exec(compile("\n" * line + code, str(path), "exec"), namespace)  # a failure names the line of the page


def run_commands(code):
    """Run the `amp-transpile` lines of a block in this process."""
    for line in code.splitlines():
        if words := shlex.split(line, comments=True):
            assert words[0] == "amp-transpile", line
            assert main(words[1:]) == 0, line


def run_pipes(lines):
    command = f'amp-transpile() {{ {shlex.quote(sys.executable)} -m amp_transpiler "$@"; }}'
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    for line in lines:
        script = f"{command}\n{line}"
        subprocess.run(["bash", "-eo", "pipefail", "-c", script], env={**os.environ, "PYTHONPATH": path}, check=True)


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Run in a folder, scope and registry of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(casting_rules, "_registered", {})
    with unique_name.guard(), static.scope_guard(static.Scope()):
        yield


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("page", ["raf", "mxnet", "sambanova", "pytorch"])
def test_the_examples_of_a_page_run(page):
    path, namespace, languages = DOCS / f"{page}.md", {"__name__": page}, []
    for language, line, code in blocks(path):
        languages.append(language)
        if language == "python":
            run_python(code, line, path, namespace)
        elif language == "sh":
            run_commands(code)
    assert set(languages) == {"python", "sh"}


README_MODEL = """
<ir_version: 10, opset_import: ["": 20]>
net (float[1, 4] x) => (float[1, 3] y) <float[4, 3] w = {0.5, -1, 2, 1, 0.25, -0.5, 3, 1.5, -2, 1, 1, 1}>
{
    h = MatMul (x, w)
    y = Softmax (h)
}
"""


@pytest.mark.usefixtures("alone")
def test_the_examples_of_the_readme_run():
    x = np.linspace(-1, 1, 4, dtype=np.float32)[None]
    model = onnx.parser.parse_model(README_MODEL)
    for node, name in zip(model.graph.node, ("body/product", "head/softmax"), strict=True):
        node.name = name
    for name in ("model.onnx", "a.onnx", "b.onnx"):
        onnx.save(model, name)
    pathlib.Path("models").mkdir()
    onnx.save(model, "models/model.onnx")
    np.savez("samples.npz", x=x)
    namespace, languages = {"__name__": "readme", "x": x}, []
    for language, line, code in blocks(ROOT / "README.md"):
        languages.append(language)
        if language == "python":
            run_python(code, line, ROOT / "README.md", namespace)
        elif language == "sh":
            run_commands("".join(row for row in code.splitlines(keepends=True) if row.startswith("amp-transpile")))
            run_pipes([row for row in code.splitlines() if "| amp-transpile" in row])
    assert (languages.count("python"), languages.count("sh")) == (3, 4)


@pytest.mark.usefixtures("alone")
def test_the_example_of_transpile_runs(capsys):
    model = onnx.parser.parse_model(README_MODEL)
    onnx.save(model, "model.onnx")
    np.savez("samples.npz", x=np.ones((1, 4), np.float32))
    example = inspect.getdoc(amp.transpile).partition("Example::")[2]
    exec(compile(textwrap.dedent(example), "transpile", "exec"), {})
    assert capsys.readouterr().out.startswith("verified: within")


def decided(report):
    """The lines of a printed report from the nodes to the files; those before and after depend on the machine."""
    lines = [line.rstrip() for line in report.splitlines()]
    labels = [line.split(maxsplit=1)[0] if line else "" for line in lines]
    return lines[labels.index("nodes") : labels.index("checks")]


def test_the_report_in_the_readme_is_the_one_of_the_demo(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    model = ROOT / "models" / "bert_1layer.onnx"
    inputs = model.with_suffix(".inputs.npz")
    assert main([str(model), "--inputs", str(inputs), "-o", str(tmp_path / "demo.onnx")]) == 0
    shown = next(code for language, _, code in blocks(ROOT / "README.md") if not language)
    printed = capsys.readouterr().out
    assert decided(shown) == decided(printed), f"the README should show this:\n{printed}"


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
    "name", ["raf", "mxnet", "sambanova", "pytorch", "behaviours", "paddle_behaviours", "robustness"]
)
def test_the_readme_leads_to_every_page(name):
    assert f"(docs/{name}.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
