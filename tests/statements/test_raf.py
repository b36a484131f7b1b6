"""Statements of RAF's AMP.md that no other test shows."""

import pathlib

import numpy as np
import pytest

import amp_transpiler as amp
import raf_bert
from amp_transpiler import static
from bert_program import training_step
from tests import support

BERT = pathlib.Path(__file__).resolve().parents[2] / "models" / "bert_1layer.onnx"
SETTINGS = raf_bert.arguments(["--tiny", "--place", "cpu"])


def step():
    return training_step(SETTINGS.bert(), SETTINGS.batch, SETTINGS.sequence)


@pytest.mark.parametrize(("dtype", "low"), [("float16", "FLOAT16"), ("bfloat16", "BFLOAT16")])
def test_products_are_low_and_sensitive_operators_float32_in_a_transformer(dtype, low):
    program = amp.autocast(BERT, dtype=dtype)
    support.assert_valid(program)
    assert set(support.dtypes(program, "MatMul") + support.dtypes(program, "Gemm")) == {low}
    assert set(support.dtypes(program, "Softmax")) == {"FLOAT"}


def test_casts_are_inserted_and_nothing_else():
    """The pass transforms the program and puts casts into it; the source stays."""
    main = step().main
    before = [node.op_type for node in support.nodes(main)]
    program = amp.autocast(main)
    after = [node.op_type for node in support.nodes(program)]
    assert [op for op in after if op != "Cast"] == [op for op in before if op != "Cast"]
    assert after.count("Cast") > before.count("Cast")
    assert [node.op_type for node in support.nodes(main)] == before


def test_the_largest_results_are_stored_low():
    program = amp.autocast(step().main)
    products = [*support.nodes(program, "MatMul"), *support.nodes(program, "Gemm")]
    scores = SETTINGS.batch * SETTINGS.sequence * SETTINGS.vocabulary
    stored = [node.outputs[0] for node in products if np.prod(node.outputs[0].shape.numpy()) == scores]
    assert {value.dtype.name for value in stored} == {"FLOAT16"}


def test_the_step_takes_tokens_and_labels_and_gives_a_loss():
    """Batch and sequence of the document at full size; the gradient of the loss is 1, and is not fed."""
    full = raf_bert.arguments(["--place", "cuda"])
    assert (full.batch, full.sequence, full.layers, full.warmup, full.number) == (8, 128, 1, 5, 10)
    program = step()
    assert {value.name for value in program.main.model.graph.inputs} - set(program.main.persistables) == {
        "input_ids",
        "labels",
    }
    scope, executor = static.Scope(), static.Executor(amp.CPUPlace())
    executor.run(program.startup, scope=scope)
    (loss,) = executor.run(program.main, raf_bert.random_feed(SETTINGS), [program.loss], scope=scope)
    assert loss.shape == ()
    np.testing.assert_allclose(loss, np.log(SETTINGS.vocabulary), rtol=0.05)
