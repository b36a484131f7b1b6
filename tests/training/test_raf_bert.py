"""RAF's experiment with BERT: the program is transformers' model, and the script prints what RAF's document prints."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import amp_transpiler as amp
import raf_bert
from amp_transpiler.paddle import static, tensor
from amp_transpiler.paddle.nn import functional as F
from bert_program import BertConfig, training_step
from raf_bert import TINY, arguments, most_alive, random_feed, work

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "raf_bert.py"
SMALL = BertConfig(vocabulary=50, hidden=24, layers=2, heads=3, intermediate=40, positions=12)
BATCH, SEQUENCE = 3, 8


def tiny(*args):
    return arguments(["--tiny", "--place", "cpu", "--warmup", "1", "--number", "3", *args])


def feed(random):
    return {name: random.integers(0, SMALL.vocabulary, (BATCH, SEQUENCE), np.int64) for name in ("input_ids", "labels")}


def test_the_full_size_has_the_parameters_of_the_document():
    step = training_step(BertConfig(), 8, 128)
    assert f"{step.parameters() * 4 / 2**20:.2f}" == "120.34"
    assert step.logits.shape == (8 * 128, 30522)
    assert set(step.main.updates) >= {parameter.name for parameter in step.main.all_parameters()}


def test_every_parameter_learns_in_one_step():
    step = training_step(SMALL, BATCH, SEQUENCE)
    scope, executor = static.Scope(), static.Executor(amp.CPUPlace())
    executor.run(step.startup, scope=scope)
    names = [parameter.name for parameter in step.main.all_parameters()]
    before = {name: scope[name] for name in names}
    executor.run(step.main, feed(np.random.default_rng(0)), [step.loss], scope=scope)
    # A bias of the keys shifts all scores of a query alike: it has no gradient but rounding.
    assert [name for name in names if np.array_equal(before[name], scope[name]) and "key.bias" not in name] == []


@pytest.mark.slow
def test_it_is_the_model_of_transformers_and_learns_as_it_does():
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    twin = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=SMALL.vocabulary,
            hidden_size=SMALL.hidden,
            num_hidden_layers=SMALL.layers,
            num_attention_heads=SMALL.heads,
            intermediate_size=SMALL.intermediate,
            max_position_embeddings=SMALL.positions,
            pad_token_id=None,  # PyTorch keeps gradients from that row of a table; RAF does not
        )
    ).eval()
    step = training_step(SMALL, BATCH, SEQUENCE)
    scope, executor = static.Scope(), static.Executor(amp.CPUPlace())
    executor.run(step.startup, scope=scope)
    theirs = dict(twin.named_parameters())
    assert set(theirs) == {parameter.name for parameter in step.main.all_parameters()}
    for name, value in theirs.items():
        scope[name] = transposed(name, value.detach().numpy())
    random, sgd = np.random.default_rng(0), torch.optim.SGD(twin.parameters(), 0.1)
    for _ in range(3):
        arrays = feed(random)
        logits, loss = executor.run(step.main, arrays, [step.logits, step.loss], scope=scope)
        out = twin(**{name: torch.from_numpy(array) for name, array in arrays.items()})
        np.testing.assert_allclose(logits, out.logits.detach().numpy().reshape(logits.shape), atol=1e-5)
        np.testing.assert_allclose(loss, out.loss.item(), rtol=1e-5)
        sgd.zero_grad()
        out.loss.backward()
        sgd.step()
    for name, value in theirs.items():
        np.testing.assert_allclose(scope[name], transposed(name, value.detach().numpy()), atol=2e-6, err_msg=name)


def transposed(name, array):
    """Turn PyTorch's weight of a linear layer round."""
    return array.T if array.ndim == 2 and "embeddings" not in name else array


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_autocast_makes_the_big_products_low_and_keeps_parameters(dtype):
    settings = tiny("--dtype", dtype)
    step = training_step(settings.bert(), settings.batch, settings.sequence)
    low = amp.autocast(step.main, dtype=dtype)
    products = [node for node in low.model.graph if node.op_type in ("MatMul", "Gemm")]
    assert products
    assert {node.outputs[0].dtype.name.lower() for node in products} == {dtype}
    assert {low.value(parameter.name).dtype.name for parameter in step.main.all_parameters()} == {"FLOAT"}
    assert all(node.outputs[0].dtype.name == "FLOAT" for node in step.main.model.graph if node.op_type == "MatMul")


@pytest.mark.parametrize("args", [(), ("--dtype", "bfloat16"), ("--momentum", "0.01")], ids=" ".join)
def test_both_halves_start_from_the_same_and_learn(args):
    plain, low = (work(tiny(*args, "--number", "8"), half) for half in ("fp32", "amp"))
    untrained = np.log(TINY["vocabulary"])
    assert plain.loss < untrained - 0.3
    assert low.loss == pytest.approx(plain.loss, abs=0.05)
    assert low.loss != plain.loss
    assert low.alive <= plain.alive  # with a velocity, most is alive in the optimizer
    assert min(plain.milliseconds, low.milliseconds) > 0


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2)])
def test_what_is_alive_is_counted_by_hand(dtype, size):
    program = static.Program()
    with static.program_guard(program, static.Program()):
        x = static.data("x", [10, 100])
        low = x.astype(dtype) if dtype != "float32" else F.relu(x)
        rows = tensor.reshape(low, [1000])  # a view: nothing is added
        loss = tensor.mean(rows + F.tanh(rows))
    # The input, and three results: what is added, twice, and their sum.
    assert most_alive(program, loss.name) == 4 * 1000 + 3 * size * 1000


@pytest.fixture(scope="module")
def full_size():
    return training_step(BertConfig(), 8, 128)


@pytest.fixture(scope="module")
def alive_in_float32(full_size):
    return most_alive(full_size.main, full_size.loss.name)


def test_alive_at_full_size_is_what_a_step_holds_on_to(alive_in_float32):
    scores = 1024 * 30522 * 4 / 2**20
    held = 69  # of the forward pass: 23 tensors of 1024 x 768, counting those of the intermediate size as four
    assert alive_in_float32 / 2**20 == pytest.approx(120.34 + 2 * scores + held, abs=0.2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_autocast_keeps_less_alive_than_float32(full_size, alive_in_float32, dtype):
    low = amp.autocast(full_size.main, dtype=dtype)
    assert most_alive(low, full_size.loss.name) <= 0.86 * alive_in_float32  # the document's: 0.934


@pytest.mark.parametrize(("level", "most"), [("O1", 0.76), ("O2", 0.9)])
def test_levels_keep_less_alive_than_float32(alive_in_float32, level, most):
    low = training_step(BertConfig(), 8, 128, wrap=lambda optimizer: amp.decorate(optimizer, level=level))
    assert most_alive(low.main, low.loss.name) <= most * alive_in_float32


def test_tokens_and_labels_are_of_the_vocabulary_and_reproducible():
    settings = arguments(["--place", "cpu"])
    arrays, again = random_feed(settings), random_feed(settings)
    assert arrays["input_ids"].shape == arrays["labels"].shape == (8, 128)
    assert arrays["input_ids"].max() < 10000 < arrays["labels"].max() < 30522
    assert all(np.array_equal(arrays[name], again[name]) for name in arrays)


def run(*args):
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
    return subprocess.run(
        [sys.executable, SCRIPT, *args],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


def check_lines(said):
    lines = said.splitlines()
    for line, label in zip(lines, ("FP32 (ms)", "FP32 (MBs)", "AMP (ms)", "AMP (MBs)"), strict=False):
        assert re.fullmatch(rf"{re.escape(label)}: \d+\.\d+", line)
    assert lines[4] == "Place: CPU"
    assert re.fullmatch(r"Loss of step 3: FP32 \d\.\d+, AMP \d\.\d+ \(float16\)", lines[5])
    assert re.fullmatch(r"Alive at the same time, as RAF estimates it: FP32 0\.\d+ MBs, AMP 0\.\d+ MBs", lines[6])
    assert "say nothing about a GPU" in lines[8]


@pytest.mark.slow
def test_the_script_prints_the_four_lines_of_the_document():
    child = run("--tiny", "--place", "cpu", "--warmup", "1", "--number", "2")
    assert child.returncode == 0, child.stderr
    check_lines(child.stdout)


def test_both_halves_in_this_process_print_the_same_lines(monkeypatch, capsys):
    monkeypatch.setattr(raf_bert, "in_child", lambda settings, half, _folder: work(settings, half))
    assert raf_bert.main(["--tiny", "--place", "cpu", "--warmup", "1", "--number", "2"]) == 0
    check_lines(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--heads", "5"), "--heads 5 does not divide --hidden 32"),
        (("--sequence", "513"), "beyond the 512 positions"),
        (("--number", "0"), "must be 1 or more"),
    ],
)
def test_sizes_that_do_not_fit_are_said_in_one_line(args, expected, capsys):
    with pytest.raises(SystemExit) as left:
        tiny(*args)
    assert left.value.code == 2
    assert expected in capsys.readouterr().err


def test_counting_alone_prints_every_precision(capsys):
    assert raf_bert.main(["--tiny", "--place", "cpu", "--count"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["FP32", "AMP", "O1", "O2"]
    assert lines[0].endswith("100 %")
