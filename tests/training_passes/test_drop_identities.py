"""Identities that only name values go; those that make outputs stay."""

import numpy as np

from amp_transpiler.training_passes.drop_identities import DropIdentities
from tests.training_passes.training_step import outline, same_after, step


def test_readers_read_what_an_identity_copies(run):
    text = """(float[2,3] x) => (float[2,3] y, float[2,3] named) {
        a = Identity (x) b = Exp (a) c = Identity (b) d = Identity (c) y = Add (d, a) named = Identity (b)
    }"""
    model = step(text, "c")
    same_after(DropIdentities(), model, run, {"x": np.ones((2, 3), np.float32)}, 3)
    assert outline(model) == "Exp | Add Identity"


def test_a_shape_that_only_the_copy_declares_is_kept():
    model = step("(float[N] x) => (float[2] y) { a = Exp (x) b = Identity (a) y = Neg (b) }", "y")
    copy = model.graph.node(1).outputs[0]
    copy.shape = type(copy.shape)([2])
    DropIdentities()(model)
    assert outline(model) == "Exp | Neg"
    assert list(model.graph.node(0).outputs[0].shape) == [2]
