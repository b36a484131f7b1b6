"""The training scripts, run as a user runs them, at sizes that take seconds."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import onnx
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
PNG = b"\x89PNG\r\n\x1a\n"
SMALL = ("--place", "cpu", "--size", "12", "--hidden", "8", "--steps", "40")

pytestmark = pytest.mark.slow


def run(script, *args, folder, code=0, environment=None):
    command = [sys.executable, EXAMPLES / script, *map(str, args)]
    child = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert child.returncode == code, child.stdout + child.stderr
    return child.stdout if code == 0 else child.stderr


def numbers(pattern, text):
    return [float(number) for number in re.findall(pattern, text)]


# ---- train_convnet.py: the network of 1x1 convolutions of AMD's blog ----


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ((), "AMP (torch, float16)"),
        (("--dtype", "bfloat16"), "AMP (torch, bfloat16)"),
        (("--amp", "paddle"), "AMP (O1, float16)"),
        (("--amp", "paddle", "--level", "O2"), "AMP (O2, float16)"),
    ],
    ids=["torch", "torch in bfloat16", "Paddle's O1", "Paddle's O2"],
)
def test_the_convnet_learns_in_both_halves(tmp_path, args, name):
    pytest.importorskip("matplotlib")
    said = run("train_convnet.py", *SMALL, "--steps", "250", *args, "--out", "net.png", folder=tmp_path)
    assert "Input shape: [1, 2, 12, 12]\nTarget shape: [1, 1, 12, 12]\n" in said
    plain, low = numbers(r"Final loss: (\S+)", said)
    assert plain < 0.07  # the target's variance is near 0.1, and an untrained network is far above
    assert low == pytest.approx(plain, abs=5e-3)
    assert len(numbers(r"Peak resident memory of the process: (\S+) MB", said)) == 2
    assert f"{name} training" in said
    assert "Time saved:" in said
    assert "Memory saved:" in said
    assert "say nothing about a GPU" in said
    assert (tmp_path / "net.png").read_bytes().startswith(PNG)


def test_a_level_is_paddles(tmp_path):
    said = run("train_convnet.py", *SMALL, "--level", "O2", folder=tmp_path, code=2)
    assert "--level is Paddle's: give --amp paddle with it" in said


def test_the_inference_half_runs_and_draws_nothing(tmp_path):
    said = run("train_convnet.py", *SMALL, "--inference", folder=tmp_path)
    assert "fp32 inference" in said
    assert "39 passes" in said
    assert "Final loss" not in said
    assert list(tmp_path.iterdir()) == []


# ---- train.py ----


def train(*args, **options):
    return run("train.py", "--place", "cpu", *args, **options)


@pytest.mark.parametrize(
    "args",
    [
        ("--model", "lenet", "--level", "O2"),
        ("--model", "mlp", "--level", "fp32", "--optimizer", "sgd"),
        ("--model", "mlp", "--level", "O1", "--dtype", "bfloat16", "--optimizer", "momentum", "--lr", "0.05"),
        ("--model", "mlp", "--level", "O0", "--optimizer", "adamw"),
    ],
    ids=" ".join,
)
def test_the_digits_are_learnt(tmp_path, args):
    pytest.importorskip("sklearn")
    said = train(*args, "--epochs", "6", folder=tmp_path)
    (accuracy,) = numbers(r"([\d.]+)% of the digits", said)
    assert accuracy > 85
    losses = numbers(r"step .* loss (\S+)", said)
    assert losses[-1] < losses[0]
    assert ("scale" in said) == ("O2" in args)
    assert "samples/s" in said


@pytest.mark.parametrize("level", ["fp32", "O2"])
def test_a_resumed_run_is_bit_identical_to_one_that_never_stopped(tmp_path, level, quick_digits):
    args = ("--model", "mlp", "--level", level, "--batch-size", "128")
    train(*args, "--epochs", "2", "--checkpoint", "whole", folder=tmp_path, environment=quick_digits)
    train(*args, "--epochs", "1", "--checkpoint", "parts", folder=tmp_path, environment=quick_digits)
    halfway = (tmp_path / "parts.safetensors").read_bytes()
    train(*args, "--epochs", "2", "--checkpoint", "parts", "--resume", folder=tmp_path, environment=quick_digits)
    whole, parts = ((tmp_path / f"{name}.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
    assert whole != halfway
    said = train(*args, "--epochs", "2", "--checkpoint", "parts", "--resume", folder=tmp_path, environment=quick_digits)
    assert "22 steps were taken already" in said


def test_the_loss_curve_is_drawn(tmp_path, quick_digits):
    pytest.importorskip("matplotlib")
    train("--model", "mlp", "--epochs", "1", "--plot", "loss.png", folder=tmp_path, environment=quick_digits)
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)


def linear_classifier(path, pixels):
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 18]> g (float[batch,{pixels}] pixels) => (float[batch,10] logits) '
        "{ m = MatMul(pixels, w) logits = Add(m, b) }"
    )
    weights = {"w": random.normal(0, 0.05, (pixels, 10)), "b": np.zeros(10)}
    for name, values in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), name))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("level", ["fp32", "O1", "O2"])
def test_an_onnx_model_is_trained(tmp_path, level, quick_digits):
    model = linear_classifier(tmp_path / "linear.onnx", 64)
    said = train(
        "--onnx", model, "--level", level, "--lr", "0.02", "--epochs", "4", folder=tmp_path, environment=quick_digits
    )
    (accuracy,) = numbers(r"([\d.]+)% of the digits", said)
    assert accuracy > 85


def test_what_cannot_be_trained_is_said_in_one_line(tmp_path, quick_digits):
    model = linear_classifier(tmp_path / "wrong.onnx", 63)
    for args, expected in (
        (("--onnx", model), "the digits are"),
        (("--batch-size", "5000"), "there are 1437 images"),
        (("--checkpoint", "nothing", "--resume"), "nothing.safetensors"),
        (("--resume",), "--resume needs --checkpoint"),
    ):
        said = train(*args, folder=tmp_path, environment=quick_digits, code=2)
        assert expected in said
        assert "Traceback" not in said
