"""`--help` on one screen, options by other names, the option that is told next, copies and the public names."""

import copy
import re

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import amp_transpiler as amp
from amp_transpiler import cli
from amp_transpiler.cli.destinations import Job
from amp_transpiler.cli.next_option import next_option
from amp_transpiler.cli.options import parse
from amp_transpiler.cli.outcome import Outcome
from amp_transpiler.options.option import GROUPS
from amp_transpiler.options.table import OPTIONS
from amp_transpiler.report import PredictedTimes, Report

MODEL = """
<ir_version: 10, opset_import: ["": 17]>
net (float[1, 4] x) => (float[1, 3] y)
<float[4, 3] w = {0.5, -1, 2, 1, 0.25, -0.5, 3, 1.5, -2, 1, 1, 1}>
{ h = MatMul(x, w)  y = Relu(h) }
"""


def helped(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        cli.main([*arguments])
    assert not end.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["model.onnx", "--help"], ["--help", "unknown"]])
def test_help_fits_one_screen(arguments, capsys):
    lines = helped(capsys, *arguments).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("  -") for line in lines) == 10
    assert "--help all" in "\n".join(lines)


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group(group, capsys):
    text = helped(capsys, "--help", group)
    for option in OPTIONS:
        for flag in option.flags:
            begins = re.search(rf"^  (-\w, )?{flag}(,| |$)", text, re.MULTILINE)
            assert (begins is not None) == (option.group == group), flag


def test_help_of_all(capsys):
    text = helped(capsys, "--help", "all")
    assert all(flag in text for option in OPTIONS for flag in option.flags)


# Argument of the command -> what the error says.
FLAGS = {
    "--use-promote": "--use-promote is --promote",
    "--keep-io-types=low": "--keep-io-types is --io-types",
    "--disable_amp=x": "--disable_amp is --disable-amp",
    "--dst=x": "--dst is -o",
    "--amp-lists=x": "--amp-lists is --white, --black, --black-var",
    "--dims=a=1": "--dims is --dim",
    "--verify": "--verify is the default; --no-verify",
    "--cache": "--cache is the default; --no-cache",
    "--tolerence=1%": "unrecognized arguments: --tolerence=1% (did you mean '--tolerance'",
    "--tol=1%": "did you mean '--tolerance'",
    "--progress": "a parameter of transpile only",
    "--nonsense": "unrecognized arguments: --nonsense",
}


@pytest.mark.parametrize("dashes", [False, True])
@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_by_another_name(flag, dashes, capsys):
    assert cli.main([flag, *(["--"] if dashes else []), "m.onnx"]) == 2
    assert FLAGS[flag] in capsys.readouterr().err


# Argument of transpile -> what the error says.
PARAMETERS = {
    "io_types": "the command's --io-types is keep_io_types",
    "white": "the command's --white is amp_lists",
    "promote": "the command's --promote is use_promote",
    "no_verify": "the command's --no-verify is verify=False",
    "no_cache": "the command's --no-cache is cache=False",
    "dim": "the command's --dim is dims",
    "output": "the command's -o is dst",
    "model": "the command's MODEL is src",
    "explain": "--explain is an option of the command only",
    "json": "--json is an option of the command only",
    "tolerence": "did you mean 'tolerance'",
    "nonsense": "has no parameter 'nonsense'",
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_by_another_name(name):
    with pytest.raises(TypeError, match="transpile has no parameter") as error:
        amp.transpile("m.onnx", **{name: 1})
    assert isinstance(error.value, amp.OptionError)
    assert PARAMETERS[name] in str(error.value)


# ---- the next option ----


SLOWER = {"device": "H100", "times": PredictedTimes(1.0, 2.0, "batch=8")}
MADE_UP = {"verdict": "plausible: ...", "outputs": {"y": None}, "low_nodes": 1}
GIVEN = {"verdict": "verified: ...", "outputs": {"y": None}, "low_nodes": 1}
KEPT = {"verdict": "verified: ...", "outputs": {"y": None}, "kept_float32": True}
SLOWED = {"device": "H100", "times": PredictedTimes(1.0, 1.0, lowered=2.0)}
LIMITED = {"device": "H100", "times": PredictedTimes(1.0, 1.0, lowered=0.5)}
# Arguments, samples, what the report says -> how the line begins.
NEXT = [
    ("", None, SLOWER | MADE_UP, "--prefer time: the fastest conversion, which may be float32, or --dim batch=8"),
    ("--prefer time", None, SLOWER | MADE_UP, "--inputs"),
    ("--level O1", None, SLOWER | MADE_UP | {"level": "O1"}, "--level auto: 16 bits unless they cost time, or --dim"),
    ("--level O2", "x.npz", SLOWER | GIVEN | {"level": "O2"}, "--level auto"),
    ("--policy torch", None, SLOWER | MADE_UP | {"level": None}, "--inputs"),
    ("--preset mp4", "x.npz", SLOWER | GIVEN | {"level": None}, "--tolerance 1%: writes nothing"),  # nor searches
    ("--level O2", "x.npz", GIVEN | {"level": "O2"}, "--tolerance 1%: writes nothing"),
    ("", None, MADE_UP, "--inputs samples.npz"),
    ("", "x.npz", GIVEN, "--tolerance 0.1%: the best"),
    ("--tolerance 1%", "x.npz", GIVEN, "--report"),
    ("--tolerance 1% --report r.html", "x.npz", GIVEN, ""),
    ("--no-verify", None, {}, "--report"),
    ("--level O0", None, {"is_copy": True}, ""),
    ("", "x.npz", KEPT | SLOWED, "--prefer size"),
    ("", "x.npz", KEPT | SLOWED | {"times": PredictedTimes(1.0, 1.0, "batch=8", lowered=2.0)}, "--dim batch=8"),
    ("", "x.npz", KEPT | LIMITED, "--frontier"),  # which --prefer size would not change
    ("--frontier", "x.npz", KEPT | LIMITED, ""),
    ("", None, KEPT, "--explain"),  # nothing may be low, whatever the limit and the samples are
    ("--explain", "x.npz", KEPT, ""),
    ("--prefer size", "x.npz", KEPT, "--explain"),
    ("--dtype float32", "x.npz", {**GIVEN, "low_nodes": 0}, "--report"),
]


@pytest.mark.parametrize(("arguments", "inputs", "fields", "expected"), NEXT)
def test_the_next_option(arguments, inputs, fields, expected, tmp_path):
    report = Report(**{"source": "m.onnx", "level": "auto", "dtype": "float16", "target": "cuda", **fields})
    outcome = Outcome(Job(tmp_path / "m.onnx", tmp_path / "o.onnx", inputs), report=report)
    option = next_option(outcome, parse(["m.onnx", *arguments.split()]))
    assert option.startswith(expected)
    assert bool(option) == bool(expected)
    outcome.error = "failed"
    assert not next_option(outcome, parse(["m.onnx"]))


def test_the_last_line_is_the_next_option(tmp_path, capsys):
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    assert cli.main([str(tmp_path / "m.onnx"), "--no-verify", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("next  --")
    assert cli.main([str(tmp_path / "m.onnx"), "--no-verify", "--dry-run", "-q"]) == 0
    assert not capsys.readouterr().out


# ---- copies ----


def long_model(nodes=3000):
    """A chain that a copy from node to node would follow beyond Python's stack."""
    chain = [onnx.helper.make_node("Relu", [f"v{index}"], [f"v{index + 1}"]) for index in range(nodes)]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(chain, "net", [value("v0", 1, [4])], [value(f"v{nodes}", 1, [4])])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)


PROGRAMS = {
    "small": lambda: amp.load(onnx.parser.parse_model(MODEL)),
    "long": lambda: amp.load(long_model()),
    "training": lambda: amp.static.from_onnx(onnx.parser.parse_model(MODEL)),
    "converted": lambda: amp.transpile(onnx.parser.parse_model(MODEL), verify=False).program,
    "empty": amp.static.Program,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_copied(name):
    program = PROGRAMS[name]()
    before = str(program)
    twin, again = copy.deepcopy([program, program])
    assert twin is again
    assert twin is not program
    assert str(twin) == before
    for node in list(twin.model.graph):
        twin.model.graph.remove(node)
        break
    twin.model.graph.doc_string = "theirs"
    assert program.model.graph.doc_string != "theirs"


def reports():
    model = onnx.parser.parse_model(MODEL)
    x = {"x": np.ones((1, 4), np.float32)}
    return {
        "verified": lambda: amp.transpile(model, inputs=x),
        "unchecked": lambda: amp.transpile(model, verify=False),
        "long": lambda: amp.transpile(long_model(500), verify=False),
        "copy": lambda: amp.transpile(model, level="O0"),
        "frontier": lambda: amp.transpile(model, inputs=x, frontier=True),
    }


@pytest.mark.parametrize("name", reports())
def test_a_report_is_copied(name):
    report = reports()[name]()
    twin = copy.deepcopy(report)
    assert repr(twin) == repr(report)
    assert twin.predicted_ms == report.predicted_ms
    assert twin.decisions == report.decisions
    twin.phases["theirs"] = 1.0
    assert "theirs" not in report.phases
    assert twin.program is None or twin.program is not report.program


# ---- names, types, order ----


def test_dir_shows_the_public_names_alone():
    names = {name for name in dir(amp) if not name.startswith("__")}
    assert names == set(amp.__all__)
    assert {"transpile", "Session", "Report", "static"} <= names
    assert not {"aliases", "lazy", "TYPE_CHECKING", "pipeline", "install_aliases"} & names


# Arguments of run in ONNX Runtime's order.
ORDERS = [
    (None, {"x": np.ones((1, 4), np.float32)}),
    (["y"], {"x": np.ones((1, 4), np.float32)}),
    ([], {"x": np.ones((1, 4), np.float32)}),
    ("y", {}),
    (None, None),
]


@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_the_order_of_run_is_told(first, second):
    session = amp.Session(ir.from_onnx_text(MODEL))
    with pytest.raises(amp.InputError, match=r"the feeds come first here.*write run\(feeds"):
        session.run(first, second)
