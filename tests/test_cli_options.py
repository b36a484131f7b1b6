"""The declared options: the parser, the parsed options, `transpile` and the texts agree with them and with the code."""

import inspect

import onnx
import onnx.parser
import pytest

import amp_transpiler as amp
import option_docs
from amp_transpiler.cli.options import parse
from amp_transpiler.cli.parser import build_parser
from amp_transpiler.options.conversion import ConversionOptions
from amp_transpiler.options.option import GROUPS
from amp_transpiler.options.table import OPTIONS
from amp_transpiler.systems.choice import Request
from amp_transpiler.systems.paddle.levels import LEVELS
from amp_transpiler.systems.registry import SYSTEMS
from amp_transpiler.systems.sambanova.rules import MIXED_OPS, PRESETS
from amp_transpiler.targets import TARGETS

ROWS = {option.name: option for option in OPTIONS}
SIGNATURE = inspect.signature(amp.transpile).parameters


def test_the_page_the_signature_and_the_docstring_are_written_from_the_fields():
    for path, text in option_docs.updated().items():
        assert path.read_text(encoding="utf-8") == text, "run python scripts/option_docs.py"


def test_every_option_of_the_synopsis_is_known():
    design = (
        "-o --level --dtype --target --io-types --promote --white --black --black-var --guard --disable-amp --preset "
        "--policy --mixed-ops "
        "--inputs --tolerance --no-verify --benchmark --explain --report --json --dry-run --version --verbose -q"
    )
    assert set(design.split()) <= set(build_parser()._option_string_actions)


def test_each_parameter_of_transpile_has_a_row_and_is_set_by_the_command():
    assert {option.parameter for option in OPTIONS} - {None} == set(SIGNATURE)
    assert set(parse(["m.onnx"]).conversion.keywords()) == set(SIGNATURE) - {"src", "dst"}


def test_a_call_without_options_changes_none():
    defaults = {name: parameter.default for name, parameter in SIGNATURE.items() if name not in ("src", "dst")}
    assert ConversionOptions(**defaults).changed() == {}


def test_the_command_and_python_have_the_same_defaults():
    defaults = parse(["m.onnx"]).conversion.keywords()
    assert defaults == {name: SIGNATURE[name].default for name in defaults}


@pytest.mark.parametrize(
    ("name", "values"),
    [("level", LEVELS), ("target", TARGETS), ("policy", SYSTEMS), ("preset", PRESETS), ("mixed_ops", MIXED_OPS)],
)
def test_the_values_are_those_that_transpile_knows(name, values):
    assert list(ROWS[name].values) == list(values)


def test_the_copying_values_are_those_that_change_nothing():
    copying = {option.name: [option.copying] for option in OPTIONS if option.copying is not None}
    assert copying == {
        "level": [level.name for level in LEVELS.values() if level.changes_nothing],
        "preset": [preset.name for preset in PRESETS.values() if preset.changes_nothing],
    }


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_rows_are_complete(option):
    assert option.group in GROUPS
    assert option.default is None or option.default in option.values
    for text in (option.text, *filter(None, [option.python])):
        assert text.endswith((".", "(`conv2d`)."))
        assert text.count("`") % 2 == 0


@pytest.mark.parametrize("columns", ["20", "40", "80", "200"])
def test_help_fits_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    text = build_parser().format_help()
    assert "`" not in text
    assert all(option.flags[0] in text for option in OPTIONS if option.flags)
    described = text[text.index("files:") : text.index("exit status:")].splitlines()
    assert columns in ("20", "40") or max(map(len, described)) <= int(columns)


CLAIMS_MODEL = """
<ir_version: 10, opset_import: ["": 20]>
net (float[4,4] x, float[4,4] z) => (float[4,4] y)
<float[4,4] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, float[4] b = {1, 1, 1, 1}>
{
    [product] p = MatMul (x, w)
    [softmax] s = Softmax (p)
    [bias] q = Add (s, b)
    [both] y = Add (q, z)
}
"""

# What `--help` says of an option, shown on the model above: arguments -> the nodes in lower precision.
CLAIMS = {
    "O2 takes operators on the default black list": (["--level", "O2"], "product softmax bias both"),
    "O1 keeps them in float32": (["--level", "O1"], "product"),
    "OD is the white list only": (["--level", "OD"], "product"),
    "--black holds at O2": (["--level", "O2", "--black", "Softmax"], "product bias both"),
    "--white wins over the default black list": (
        ["--level", "O1", "--white", "Softmax"],
        "product softmax bias both",
    ),
    "a float32 input promotes, a constant does not at O2": (["--level", "O2", "--promote"], "product softmax bias"),
    "a constant promotes at O1": (["--level", "O1", "--promote", "--white", "Softmax"], "product softmax"),
    "promotion makes lower what the lists leave open": (["--prefer", "size", "--promote"], "product softmax bias"),
    "--guard allows only what it matches": (["--level", "O2", "--guard", "^s"], "softmax"),
    "--disable-amp keeps what it matches": (["--level", "O2", "--disable-amp", "bias|both"], "product softmax"),
    "--black-var keeps readers and writers": (["--level", "O2", "--black-var", "s"], "product both"),
    "mp1 is matrix products": (["--preset", "mp1"], "product"),
    "mp4 is all": (["--preset", "mp4"], "product softmax bias both"),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_an_option_does_what_the_table_says(case, tmp_path):
    arguments, expected = CLAIMS[case]
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(CLAIMS_MODEL), path)
    options = parse([str(path), "--no-verify", *arguments])
    report = amp.transpile(path, **options.conversion.keywords())
    assert " ".join(row.name for row in report.decisions if row.precision == "low") == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ("paddle", "auto", "level auto")),
        (["--level", "O2"], ("paddle", "O2", "level O2")),
        (["--level", "O0"], ("paddle", "O0", "level O0")),
        (["--policy", "torch"], ("torch", None, "policy torch")),
        (["--policy", "mxnet"], ("mxnet", None, "policy mxnet")),
        (["--preset", "mp4"], ("sambanova", None, "preset mp4")),
        (["--mixed-ops", "gemm"], ("sambanova", None, "mixed gemm")),
    ],
)
def test_the_report_says_who_decided(arguments, expected):
    options = parse(["m.onnx", "--no-verify", *arguments])
    report = amp.transpile(onnx.parser.parse_model(CLAIMS_MODEL), **options.conversion.keywords())
    assert (report.system, report.level, report.asked) == expected


BOTH = "mixed gemm, mixed softmax"


@pytest.mark.parametrize(
    ("arguments", "models", "expected"),
    [
        (["m.onnx", "--mixed-ops", "gemm", "softmax"], ["m.onnx"], BOTH),
        (["--mixed-ops", "gemm", "softmax", "m.onnx"], ["m.onnx"], BOTH),
        (["--mixed-ops=gemm", "softmax", "m.onnx"], ["m.onnx"], BOTH),
        (["m.onnx", "--mixed-ops", "gemm softmax"], ["m.onnx"], BOTH),
        (["m.onnx", "--mixed-ops", "gemm,", "softmax", "-v"], ["m.onnx"], BOTH),
        (["--mixed-ops", "gemm", "m.onnx", "softmax"], ["m.onnx", "softmax"], "mixed gemm"),
        (["--mixed-ops", "gemm", "./softmax"], ["./softmax"], "mixed gemm"),
        (["softmax", "--mixed-ops", "gemm"], ["softmax"], "mixed gemm"),
    ],
)
def test_mixed_operators_with_spaces_or_commas(arguments, models, expected):
    options = parse([*arguments, "--no-verify"])
    assert options.models == models
    assert Request(mixed_ops=options.conversion.mixed_ops).label == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "torch", "--target", "cpu"], True),
        (["--policy", "torch", "--target", "cpu", "--dtype", "float16"], False),
        (["--policy", "torch", "--target", "cpu", "--dtype", "bfloat16"], False),
        (["--policy", "torch"], False),
        (["--policy", "raf", "--target", "cpu"], False),
    ],
)
def test_torchs_default_on_a_cpu_is_said(arguments, said):
    """torch.autocast: float16 on CUDA, bfloat16 on a CPU."""
    report = amp.transpile(
        onnx.parser.parse_model(CLAIMS_MODEL), **parse(["m.onnx", "--no-verify", *arguments]).conversion.keywords()
    )
    assert any("torch's autocast on a CPU has bfloat16" in note for note in report.notes) is said


def test_the_recommended_preset_is_named():
    assert "SambaNova recommends it" in build_parser().format_help().replace("\n", " ").replace("  ", "")


@pytest.mark.parametrize(("verify", "checks"), [(True, 4), (False, 0)])
def test_without_verification_nothing_is_loaded_or_compared(verify, checks):
    report = amp.transpile(onnx.parser.parse_model(CLAIMS_MODEL), verify=verify)
    assert (len(report.checks), bool(report.outputs)) == (checks, verify)
