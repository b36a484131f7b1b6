"""Every block of code in the pages is run, compared with what is printed, or named here with the reason why it is not.

A page's blocks run one after the other in a folder of their own, in the page's order: what one defines or writes, the
next may use. Files that a page only names are made by a row of `FILES`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx.parser
import pytest

import amp_transpiler as amp
from amp_transpiler import static
from amp_transpiler.cli.command import main
from amp_transpiler.compat import MixedPrecisionPass
from amp_transpiler.paddle.utils import unique_name
from amp_transpiler.systems.raf import casting_rules
from tests import page_files

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_OURS = {".venv", ".pytest_cache", ".corpus", ".hypothesis"}
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in sorted(ROOT.rglob("*.md"))
    if not any(part in NOT_OURS or part.startswith(".venv") for part in path.relative_to(ROOT).parts)
}

HELD = {"README.md", "docs/tutorial.md", *(page for page in PAGES if page.startswith("docs/howto/"))}
"""Pages whose figures are held to what their commands print, to one unit in the last digit shown."""

# Commands of `sh` blocks that are not run here, with the reason.
EXEMPT = {
    "./scripts/test": "it runs these tests",
    "./scripts/test --fast": "it runs these tests",
    "./scripts/test --pretend-device": "it runs these tests",
    "python lab/kernel_dump.py dumps 1.17.1 1.18.1 ... 1.31.1 1.32.0": "it downloads 3 GB",
    "python lab/kernel_tables.py dumps": "it reads what the command before it downloads",
    **page_files.COMMANDS,
}
SLOW = {"./scripts/demo"}  # run by a slow test

# Blocks in no language that are compared elsewhere, or that no program prints: the page and the block's first line.
TEXTS = {
    ("docs/architecture.md", "load      files/loading.py"): "a list of files, looked for in test_architecture.py",
    (
        "docs/architecture.md",
        "build     paddle/static, paddle/nn",
    ): "a list of files, looked for in test_architecture.py",
    ("docs/releases.md", "steps:"): "a part of a workflow: tests/test_release_files.py runs what it starts",
    ("docs/distributed.md", "pip install"): "commands for several processes: tests/distributed/test_documentation.py",
    ("docs/distributed.md", "import numpy"): "a script for several processes: tests/distributed/test_documentation.py",
    ("docs/distributed.md", "rank 0 of 2 (gloo, CPU)"): "a line of the log: tests/distributed/test_two_ranks.py",
    ("docs/distributed.md", "rank 0 cannot go on"): "a message: tests/distributed/test_lost_ranks.py",
    ("amp_transpiler/targets/data/README.md", '{"releases": {"1.20"'): "a file's form, compared below",
    **page_files.TEXTS,
}

README_MODEL = """
<ir_version: 10, opset_import: ["": 20]>
net (float[1, 4] x) => (float[1, 3] y, float[1, 3] logits)
<float[4, 3] w = {0.5, -1, 2, 1, 0.25, -0.5, 3, 1.5, -2, 1, 1, 1}>
{
    [body_product] logits = MatMul (x, w)
    [head_softmax] y = Softmax (logits)
}
"""


def readme_files() -> dict[str, object]:
    """Make the files that the README names; return what its examples take as given."""
    pathlib.Path("models").mkdir()
    for file in (ROOT / "models").glob("paddle_lenet.*"):
        shutil.copy(file, "models")
    usual_files()
    shutil.copy(ROOT / "models/rocm_convnet.onnx", "model.onnx")  # one that 16 bits make no slower
    shutil.copy(ROOT / "models/rocm_convnet.inputs.npz", "samples.npz")
    return dict(np.load("samples.npz"))


def usual_files() -> dict[str, object]:
    """Make files with the names that examples use."""
    x = np.linspace(-1, 1, 4, dtype=np.float32)[None]
    model = onnx.parser.parse_model(README_MODEL)
    for node in model.graph.node:
        node.name = node.name.replace("_", "/")
    for name in ("model.onnx", "a.onnx", "b.onnx", "models/model.onnx"):
        pathlib.Path(name).parent.mkdir(exist_ok=True)
        onnx.save(model, name)
    np.savez("samples.npz", x=x)
    return {"x": x}


def tutorial_files() -> dict[str, object]:
    """Make the folder with the model that the tutorial converts."""
    pathlib.Path("models").mkdir()
    for file in (ROOT / "models").glob("rocm_convnet.*"):
        shutil.copy(file, "models")
    return {}


def precision_files() -> dict[str, object]:
    """Make the files that the page about level auto names; the metric is the page's own."""
    files = usual_files()
    [metric] = [block.text for block in BLOCKS["docs/precision.md"] if block.language == "python"]
    pathlib.Path("accuracy.py").write_text(metric, encoding="utf-8")
    return files


FILES: dict[str, Callable[[], dict[str, object]]] = {
    "README.md": readme_files,
    **dict.fromkeys(
        ("docs/howto/olive.md", "docs/howto/onnx_ir.md", "docs/howto/pre_commit.md"),
        usual_files,
    ),
    "docs/index.md": usual_files,
    "docs/precision.md": precision_files,
    "docs/reference/command.md": usual_files,
    "docs/reference/python.md": usual_files,
    "docs/tutorial.md": tutorial_files,
}
RUN = {"python", "sh", "text"}  # `text` is what the `sh` block before it prints


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of a page: its language, the number of lines before its text, and its text."""

    language: str
    line: int
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands of an `sh` block, without their comments."""
        return [command for line in self.text.splitlines() if (command := re.sub(r"(^|\s+)#.*", "", line).strip())]


def blocks(page: str) -> list[Block]:
    text = PAGES[page].read_text(encoding="utf-8")
    matches = re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [Block(m[2], text.count("\n", 0, m.start(3)), textwrap.dedent(m[3])) for m in matches]


BLOCKS = {page: blocks(page) for page in PAGES}
WITH_CODE = [
    page for page, blocks_there in BLOCKS.items() if {block.language for block in blocks_there} & {"python", "sh"}
]


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Run in a folder, scope and registry of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(casting_rules, "_registered", {})
    with unique_name.guard(), static.scope_guard(static.Scope()):
        yield


def test_every_block_is_run_compared_or_named():
    unknown = []
    for page, blocks_there in BLOCKS.items():
        for block in blocks_there:
            known = block.language in RUN or any(
                page == where and block.text.startswith(first) for where, first in TEXTS
            )
            unknown += [] if known else [f"{page}:{block.line + 1}: {block.language or 'no language'}"]
    assert unknown == []


def test_every_fence_is_found():
    for page, path in PAGES.items():
        fences = re.findall(r"^ *```", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(BLOCKS[page]), page


def test_every_exception_is_in_a_page():
    commands = {
        command
        for blocks_there in BLOCKS.values()
        for b in blocks_there
        if b.language == "sh"
        for command in b.commands
    }
    assert {*EXEMPT, *SLOW} - commands == set()
    gone = [key for key in TEXTS if not any(block.text.startswith(key[1]) for block in BLOCKS[key[0]])]
    assert gone == []


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page_files.is_slow(page) else page for page in WITH_CODE]
)
def test_the_blocks_of_a_page_run(page, request, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    namespace: dict[str, object] = {
        "__name__": "page",
        **FILES.get(page, dict)(),
        **page_files.prepare(page, request),
    }
    printed = ""
    for block in BLOCKS[page]:
        if block.language == "python":
            run_python(block, page, namespace)
        elif block.language == "sh":
            for command in block.commands:
                capfd.readouterr()
                run_command(command)
                printed = capfd.readouterr().out
        elif block.language == "text":
            where = f"{PAGES[page]}:{block.line + 1}"
            match = re.search(as_pattern(words(block.text)), words(printed), re.DOTALL)
            assert match, f"{where} printed:\n{printed}"
            assert not moved(page, words(block.text), match), f"{where} printed:\n{printed}"


def words(text: str) -> str:
    """Return a text with one space for all space between two words."""
    return " ".join(text.split())


def run_python(block: Block, page: str, namespace: dict[str, object]) -> None:
    """Run a block; what it prints where a comment says what is printed must be that. A failure names the line."""
    printed: list[tuple[int, str]] = []
    namespace["print"] = lambda *values: printed.append(
        (sys._getframe(1).f_lineno, " ".join(str(value) for value in values))
    )
    path = PAGES[page]
    exec(compile("\n" * block.line + block.text, str(path), "exec"), namespace)
    lines = block.text.splitlines()
    for number, text in printed:
        _, comment, promised = lines[number - block.line - 1].partition("  # ")
        if comment:
            match = re.fullmatch(as_pattern(promised), text, re.DOTALL)
            assert match, f"{path}:{number} printed: {text}"
            assert not moved(page, promised, match), f"{path}:{number} printed: {text}"


NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"


def as_pattern(promised: str) -> str:
    """Return a pattern for what a page promises: three dots stand for anything, and each number is a group."""
    return f"({NUMBER})".join(
        ".*".join(re.escape(part) for part in piece.split("...")) for piece in re.split(NUMBER, promised)
    )


def moved(page: str, promised: str, blocks_there: re.Match[str]) -> list[str]:
    """Return the figures of a page that differ from what was printed by more than one unit in the last digit shown.

    Seconds, which in a table stand before the predicted time, and versions depend on the machine.
    """
    if page not in HELD:
        return []
    figures = list(re.finditer(NUMBER, promised))
    pairs = zip(figures, blocks_there.groups(), strict=True)
    return [
        f"{figure[0]}, printed {printed}"
        for figure, printed in pairs
        if not re.match(r" s\b| (?:[\d.]+ times )?as (?:fast|slow)", promised[figure.end() :])
        and not re.search(r"(?:Runtime|float|int)\s*$", promised[: figure.start()])
        and abs(float(figure[0]) - float(printed)) > 1.001 * last_place(figure[0])
    ]


def last_place(number: str) -> float:
    """Return the unit in the last digit shown of a number."""
    digits, _, exponent = number.partition("e")
    return 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


@pytest.mark.parametrize(
    ("promised", "printed", "expected"),
    [
        ("0.148% of 10", "0.149% of 10", []),
        ("0.148% of 10", "0.15% of 10", ["0.148, printed 0.15"]),
        ("0.148% of 10", "0.148% of 12", ["10, printed 12"]),
        ("in 1.5 s ... 3 casts", "in 9.0 s and 3 casts", []),
        ("69% 0.4 1.03 times as fast", "69% 9.9 1.03 times as fast", []),
        ("100% 0.4 as fast as float32", "100% 9.9 as fast as float32", []),
        ("69% 0.4 1.03 times as fast", "69% 0.4 1.13 times as fast", ["1.03, printed 1.13"]),
        ("1.75e-04 ...", "1.76e-04 0.1%", []),
        ("1.75e-04 ...", "1.78e-04 0.1%", ["1.75e-04, printed 1.78e-04"]),
        ("float16, ONNX Runtime 1.31", "float32, ONNX Runtime 1.22", []),
    ],
)
def test_a_figure_is_held_to_its_last_digit(promised, printed, expected):
    match = re.fullmatch(as_pattern(promised), printed)
    assert moved("docs/tutorial.md", promised, match) == expected
    assert moved("docs/precision.md", promised, match) == []


def run_command(command: str) -> None:
    """Run a command: `amp-transpile` alone in this process, which is quick, and anything more in a shell."""
    if command in EXEMPT or command in SLOW:
        return
    words = shlex.split(command)
    if words[0] == "amp-transpile" and not {"|", ">", "<", "&&", ";"} & set(words):
        assert main(words[1:]) == 0, command
        return
    python = shlex.quote(sys.executable)
    script = f'amp-transpile() {{ {python} -m amp_transpiler "$@"; }}\npython() {{ {python} "$@"; }}\n{command}'
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    subprocess.run(["bash", "-eo", "pipefail", "-c", script], env={**os.environ, "PYTHONPATH": path}, check=True)


@pytest.mark.parametrize("command", EXEMPT)
def test_a_command_that_is_not_run(command):
    """Say so in the table of skipped tests, with the reason; the files and options that it names are there."""
    check_script(command)
    pytest.skip(f"{command}: {EXEMPT[command]}")


@pytest.mark.slow
def test_the_demo_runs(tmp_path):
    environment = pathlib.Path(os.environ.get("AMP_VENV", ROOT / ".venv"))
    if not (environment / ".amp-setup").is_file():
        pytest.skip(f"scripts/setup has made no environment {environment.name} here, and a test installs nothing")
    model = tmp_path / "bert.onnx"
    model.write_bytes((ROOT / "models/bert_1layer.onnx").read_bytes())
    done = subprocess.run([ROOT / "scripts/demo", model], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "bert.fp16.onnx").is_file()
    assert "verdict" in done.stdout


# ---- commands in the text, and those of the scripts' own help ----

PROGRAMS = ("scripts/", "examples/", "lab/")
_REST = r" [^`\n]*"
# `lab/test_fuzz.py` is one of the tests, which pages cite by their path in tests/.
_OURS = rf"(?:python3? )?(?:\./)?(?:{'|'.join(PROGRAMS)})(?!test_)[\w.]+(?:{_REST})?"
_WORDS = rf"{_OURS}|(?:python -m pytest|pip install|amp-transpile){_REST}"


def commands_in_text() -> Iterator[tuple[str, str]]:
    for page, path in PAGES.items():
        for match in re.finditer(rf"`({_WORDS})`", path.read_text(encoding="utf-8")):
            yield page, match[1]
    for script in sorted(path for folder in PROGRAMS for path in (ROOT / folder).glob("*.py")):
        for match in re.finditer(rf"^    ({_WORDS})$", script.read_text(encoding="utf-8"), re.MULTILINE):
            yield script.relative_to(ROOT).as_posix(), re.sub(r"\s+#.*", "", match[1])


def test_what_the_commands_in_texts_name_is_there():
    commands = set(commands_in_text())
    assert len({page for page, _ in commands}) > 10
    for _, command in sorted(commands):
        check_script(command)


def check_script(command: str) -> None:
    """Assert that the script of a command exists and knows its options, and that extras and pytest's options exist."""
    name = next((word for word in command.split() if word.removeprefix("./").startswith(PROGRAMS)), None)
    options = re.findall(r"(?<![\w-])(--[a-z][\w-]*)", command)
    if name is not None:
        path = ROOT / name.removeprefix("./")
        if path.is_dir() and not options:
            return
        assert path.is_file(), command
        source = with_helpers(path)
    elif "pytest" in command:
        source = (ROOT / "tests/conftest.py").read_text(encoding="utf-8") + "--durations --maxfail"
    elif command.startswith("pip install"):
        for extra in re.findall(r"\[([\w,]+)\]", command):
            assert set(extra.split(",")) <= {*PROJECT["optional-dependencies"]}, command
        return
    elif not command.startswith("amp-transpile"):
        return  # a program of others
    else:
        modules = [path for room in ("options", "cli") for path in (ROOT / "amp_transpiler" / room).rglob("*.py")]
        source = "\n".join(path.read_text(encoding="utf-8") for path in modules)
    assert [option for option in options if option not in source] == [], command


def with_helpers(script: pathlib.Path) -> str:
    """Return the text of a script, of the scripts that it starts, and of the helpers beside it that it imports."""
    source = script.read_text(encoding="utf-8")
    started = [] if script.suffix else [ROOT / name for name in re.findall(r"(?:scripts|lab)/\w+\.py", source)]
    for name in re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE):
        started += [*(script.parent / name).glob("*.py")]
    return "\n".join([source, *(path.read_text(encoding="utf-8") for path in started)])


# ---- what is printed, and what is in a docstring ----


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("documented", "printed"),
    [(amp.transpile, "verified: within"), (MixedPrecisionPass, ""), (amp.debug, ""), (amp.compare_releases, "")],
    ids=["transpile", "pass", "debug", "releases"],
)
def test_the_example_of_a_docstring_runs(documented, printed, capsys):
    usual_files()
    example = re.split(r"^(?=\w)", inspect.getdoc(documented).partition("Example::")[2], flags=re.MULTILINE)[0]
    exec(compile(textwrap.dedent(example), documented.__name__, "exec"), {})
    assert capsys.readouterr().out.startswith(printed)


def test_no_other_docstring_has_an_example():
    marks = re.compile(r"^ *(?:Examples?::?|>>> )", re.MULTILINE)
    with_examples = [
        path.name for path in (ROOT / "amp_transpiler").rglob("*.py") if marks.search(path.read_text("utf-8"))
    ]
    assert sorted(with_examples) == ["compare.py", "debug.py", "onnx_ir_pass.py", "pipeline.py"]


def test_the_tables_of_kernels_have_the_form_that_their_page_shows():
    table = json.loads((ROOT / "amp_transpiler/targets/data/releases.json").read_text(encoding="utf-8"))
    (shown,) = (b.text for b in BLOCKS["amp_transpiler/targets/data/README.md"] if b.text.startswith("{"))
    assert list(table) == re.findall(r'^[ {]"(\w+)":', shown, re.MULTILINE)
    assert json.dumps(table["releases"]["1.20"]) in shown
    for kernels in (table["cuda"], table["cpu"]):
        for key, rows in kernels.items():
            assert "::" in key
            for row in rows.split(";"):
                versions, *parameters = row.split("@")[0].split()
                assert re.fullmatch(r"\d+(-\d*)?x?", versions), (key, row)
                values = [parameter.partition("=")[2] for parameter in parameters]
                assert [v for v in values if re.fullmatch(r"\d+[a-z]+", v) and v not in table["types"]] == [], (
                    key,
                    row,
                )
