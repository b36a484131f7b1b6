"""`amp-transpile --check`: what it finds in a repository of models, how it says so, and its exit status."""

import json
import pathlib
import subprocess
import xml.etree.ElementTree as ET

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

from amp_transpiler.cli.check import examine
from amp_transpiler.cli.check.finding import RULES
from amp_transpiler.cli.command import main

ROOT = pathlib.Path(__file__).resolve().parents[2]

MODEL = """
<ir_version: 10, opset_import: ["": 17]>
net (float[1, 4] x) => (float[1, 3] y) <float[4, 3] w = {0.5, -1, 2, 1, 0.25, -0.5, 3, 1.5, -2, 1, 1, 1}>
{
    [product] h = MatMul(x, w)
    [positive] y = Relu(h)
}
"""
MIXED = """
<ir_version: 10, opset_import: ["": 17]>
net (float[4, 4] x, float16[4, 4] z) => (float[4, 4] y) { [product] y = MatMul(x, z) }
"""
UNKNOWN = """
<ir_version: 10, opset_import: ["": 17]>
net (float[4, 4] x) => (float[4, 4] y) { [odd] y = NoSuchOperator(x) }
"""
# A shape that is declared wrongly: the checker in full refuses it, ONNX Runtime warns and opens it.
DOUBTFUL = """
<ir_version: 10, opset_import: ["": 17]>
net (float[4, 4] x) => (float[5, 4] y) { [positive] y = Relu(x) }
"""


def large():
    """A model that is much faster in 16 bits: products of 2048 by 2048."""
    weight = onnx.numpy_helper.from_array(np.ones((2048, 2048), np.float32), "w")
    nodes = [
        onnx.helper.make_node("MatMul", [f"h{index}" if index else "x", "w"], [f"h{index + 1}"]) for index in range(3)
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes, "net", [value("x", 1, [2048, 2048])], [value("h3", 1, [2048, 2048])], [weight]
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)


def text(source):
    return lambda: onnx.parser.parse_model(source)


def with_weights(change):
    def build():
        model = onnx.parser.parse_model(MODEL)
        weight = onnx.numpy_helper.to_array(model.graph.initializer[0])
        model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(change(weight), "w"))
        return model

    return build


def low(change=lambda weight: weight):
    """The model as another tool would convert it: a float16 weight between casts."""

    def build():
        model = with_weights(lambda weight: change(weight).astype(np.float16))()
        model.graph.node.insert(0, onnx.helper.make_node("Cast", ["x"], ["x16"], to=10))
        model.graph.node[1].input[0] = "x16"
        model.graph.node[2].output[0] = "y16"
        model.graph.node.append(onnx.helper.make_node("Cast", ["y16"], ["y"], to=1))
        return model

    return build


def renamed():
    model = low()()
    model.graph.input[0].name = model.graph.node[0].input[0] = "pixels"
    return model


# Files of the repository -> (file, rule, a part of the message) found there.
CASES = {
    "sound": ({"model.onnx": text(MODEL)}, []),
    "lfs-pointer": (
        {"model.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"},
        [("model.onnx", "lfs-pointer", "run git lfs pull")],
    ),
    "unreadable": ({"model.onnx": b"no model"}, [("model.onnx", "unreadable", "not an ONNX model")]),
    "empty": ({"model.onnx": b""}, [("model.onnx", "unreadable", "the file is empty")]),
    "mixed-types": ({"model.onnx": text(MIXED)}, [("model.onnx", "mixed-types", "MatMul 'product': input 1 (B) 'z'")]),
    "invalid": ({"model.onnx": text(UNKNOWN)}, [("model.onnx", "invalid", "opset 17 has no operator NoSuchOperator")]),
    "doubtful": ({"model.onnx": text(DOUBTFUL)}, [("model.onnx", "doubtful", "export the model again")]),
    "not-finite": (
        {"model.onnx": with_weights(lambda weight: weight * np.float32(np.nan))},
        [("model.onnx", "not-finite", "weight 'w' holds NaN")],
    ),
    "a twin": ({"model.onnx": text(MODEL), "model.fp16.onnx": low()}, [("model.fp16.onnx", "slower", "predicted")]),
    "stale": (
        {"model.onnx": text(MODEL), "model_fp16.onnx": low(lambda weight: weight * 1.1)},
        [("model_fp16.onnx", "stale", "is not made from model.onnx: weight 'w' has other values")],
    ),
    "a mask's minus infinity": (
        {
            "model.onnx": with_weights(lambda weight: np.where(weight == 3, np.float32(-3.4e38), weight)),
            "model.fp16.onnx": low(lambda weight: np.where(weight == 3, np.float32(-32752), weight)),
        },
        [("model.fp16.onnx", "slower", "predicted")],
    ),
    "no mask's minus infinity": (
        {
            "model.onnx": with_weights(lambda weight: np.where(weight == 3, np.float32(-3.4e38), weight)),
            "model.fp16.onnx": low(lambda weight: np.where(weight == 3, np.float32(-300), weight)),
        },
        [("model.fp16.onnx", "stale", "weight 'w' has other values")],
    ),
    "stale by a few elements only": (
        {"model.onnx": text(MODEL), "model-half.onnx": low(lambda weight: weight + (weight == 3))},
        [("model-half.onnx", "stale", "weight 'w' has other values")],
    ),
    "overflow": (
        {
            "model.onnx": with_weights(lambda weight: weight * np.float32(1e6)),
            "model.fp16.onnx": low(lambda weight: np.where(weight > 0, np.inf, -np.inf)),
        },
        [("model.fp16.onnx", "overflow", "weight 'w' has infinite elements")],
    ),
    "other-interface": (
        {"model.onnx": text(MODEL), "model.bf16.onnx": renamed},
        [("model.bf16.onnx", "other-interface", "its inputs are pixels, not x")],
    ),
    "pays": ({"model.onnx": large}, [("model.onnx", "pays", "times as fast on H100")]),
    "pays no more": ({"model.onnx": large, "model.fp16.onnx": large}, []),
    "hidden": ({"model.onnx": text(MODEL), ".cache/model.onnx": b"", "deep/er/m.ONNX": text(MODEL)}, []),
}
QUIET = {"slower"}  # the models of this file are too small to gain from anything


def written(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            onnx.save(content(), path)


def checked(capsys, *arguments):
    status = main(["--check", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("case", CASES)
def test_what_is_found(case, tmp_path, monkeypatch, capsys):
    files, expected = CASES[case]
    written(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    ignored = [f"--ignore={rule}" for rule in QUIET - {rule for _, rule, _ in expected}]
    status, out, _ = checked(capsys, ".", "--format", "json", *ignored)
    record = json.loads(out)
    findings = [(row["path"], row["rule"]) for row in record["findings"]]
    assert findings == [(path, rule) for path, rule, _ in expected]
    for row, (_, rule, words) in zip(record["findings"], expected, strict=True):
        assert words in row["message"]
        assert row["severity"] == RULES[rule].severity
    assert status == int(any(RULES[rule].severity == "error" for _, rule, _ in expected)) == record["failed"]


def test_every_rule_is_found_by_a_case():
    rules = {rule for _, expected in CASES.values() for _, rule, _ in expected}
    assert rules == set(RULES) - {"internal", "refused"}  # the two below


def test_a_model_that_onnx_runtime_alone_refuses(tmp_path, capsys, monkeypatch):
    """A weight of the wrong size: nothing but a session multiplies it."""
    from amp_transpiler.verification.structure import LoadResult

    monkeypatch.setattr(examine, "check_load", lambda *_: LoadResult("refused", "Invalid model"))
    written(tmp_path, {"model.onnx": text(MODEL)})
    status, out, _ = checked(capsys, str(tmp_path / "model.onnx"))
    assert (status, "error: Invalid model; export the model again [refused]" in out) == (1, True)


def test_a_fault_of_the_check_itself_is_a_finding(tmp_path, capsys, monkeypatch):
    def fail(_):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(examine, "checker_fault", fail)
    written(tmp_path, {"a.onnx": text(MODEL), "b.onnx": b""})
    status, out, _ = checked(capsys, str(tmp_path))
    assert status == 1
    assert "error: RuntimeError: no such luck; please report this [internal]" in out
    assert "b.onnx: error: the file is empty [unreadable]" in out


def test_a_converted_model_belongs_to_its_source(tmp_path, capsys):
    written(tmp_path, {"model.onnx": large})
    assert main([str(tmp_path / "model.onnx"), "--no-verify", "-q"]) == 0
    status, out, _ = checked(capsys, str(tmp_path), "--fail-on", "note")
    assert (status, out) == (0, "2 models: 0 errors, 0 warnings, 0 notes\n")


@pytest.mark.parametrize(("fail_on", "status"), [("error", 0), ("warning", 1), ("note", 1), ("never", 0)], ids=str)
def test_what_fails_the_check(fail_on, status, tmp_path, capsys):
    written(tmp_path, {"model.onnx": text(DOUBTFUL)})
    assert checked(capsys, str(tmp_path), "--fail-on", fail_on)[0] == status


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A model that is sound, one that is broken, and one with a warning in a folder with odd characters."""
    written(tmp_path, {"a.onnx": text(MODEL), "b.onnx": b"", "odd ö/c.onnx": text(DOUBTFUL)})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_as_text(repository, capsys):
    _, out, _ = checked(capsys, ".")
    lines = out.splitlines()
    assert lines[0] == "b.onnx: error: the file is empty [unreadable]"
    assert lines[1].startswith("odd ö/c.onnx: warning: ")
    assert lines[2] == "3 models: 1 error, 1 warning, 0 notes"


def test_as_sarif(repository, capsys):
    """What SARIF 2.1.0 demands: a version, runs with a driver's name, results with a message; rules by index."""
    status, out, _ = checked(capsys, ".", "--format", "sarif")
    record = json.loads(out)
    assert (status, record["version"], len(record["runs"])) == (1, "2.1.0", 1)
    driver, results = record["runs"][0]["tool"]["driver"], record["runs"][0]["results"]
    assert driver["name"] == "amp-transpile"
    assert [rule["id"] for rule in driver["rules"]] == list(RULES)
    assert [result["level"] for result in results] == ["error", "warning"]
    for result in results:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results]
    assert places == ["b.onnx", "odd%20%C3%B6/c.onnx"]


def test_as_junit(repository, capsys):
    _, out, _ = checked(capsys, ".", "--format", "junit")
    root = ET.fromstring(out)
    suite = root.find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    cases = {case.get("name"): case for case in suite}
    assert list(cases) == ["a.onnx", "b.onnx", "odd ö/c.onnx"]
    assert cases["b.onnx"].find("failure").get("type") == "unreadable"
    assert cases["a.onnx"].find("failure") is None
    assert "doubtful" in cases["odd ö/c.onnx"].find("system-out").text


def test_to_a_file(repository, capsys):
    status, out, _ = checked(capsys, ".", "--format", "sarif", "-o", "found.sarif")
    assert (status, out) == (1, "")
    assert json.loads(pathlib.Path("found.sarif").read_text(encoding="utf-8"))["runs"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone"], "--check gone: no such file or folder; give a model, or a folder of models"),
        (["empty"], "--check empty: this folder has no .onnx file, nor have the folders in it"),
        ([], "the following arguments are required: PATH; see amp-transpile --check --help"),
        (["a.onnx", "-o", "a.onnx"], "-o a.onnx: is one of the models; give the report a file of its own"),
        (["a.onnx", "-o", "gone/x"], "-o gone/x: cannot be written there; give a file in a folder that exists"),
        (["a.onnx", "--format", "xml"], "invalid choice: 'xml'"),
        (["a.onnx", "--ignore", "everything"], "invalid choice: 'everything'"),
        (["", "a.onnx"], "PATH '': the name is empty"),
    ],
)
def test_wrong_options(arguments, words, repository, capsys):
    (repository / "empty").mkdir()
    status, _, err = checked(capsys, *arguments)
    assert (status, words in err) == (2, True), err


def test_the_word_may_stand_anywhere_but_behind_dashes(repository, capsys):
    assert main(["a.onnx", "--check"]) == 0
    assert "1 model: 0 errors" in capsys.readouterr().out
    assert main(["--", "--check"]) == 2
    assert "--check: no such file" in capsys.readouterr().err


def test_the_hook_of_pre_commit_names_the_command():
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    assert "entry: amp-transpile --check" in hooks
    assert "- id: amp-transpile-check" in hooks


def test_the_files_of_a_git_repository_are_left_alone(repository, capsys):
    subprocess.run(["git", "init", "-q"], check=True)
    before = sorted(path.name for path in repository.rglob("*") if ".git" not in path.parts)
    checked(capsys, ".")
    assert sorted(path.name for path in repository.rglob("*") if ".git" not in path.parts) == before
