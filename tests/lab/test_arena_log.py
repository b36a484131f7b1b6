"""Tests `gpu/arena_log.py`, which reads from ONNX Runtime's log what arenas take."""

import sys

import numpy as np
import onnx
import onnxruntime
import pytest

from amp_transpiler.runtime import ort
from gpu.arena_log import arena_log, taken

ZEROS = """<ir_version: 9, opset_import: ["" : 17]> zeros (int64[1] n) => (float[m] y) {
    y = ConstantOfShape <value = float[1] {0}> (n) }"""
MEBIBYTE = 2**18  # numbers
EXTENDING = "[I:onnxruntime:Default, bfc_arena.cc:335] Extending BFCArena for {0}. bin_num:8 (requested) num_bytes: 4"
EXTENDED = "[I:onnxruntime:Default, bfc_arena.cc:205 Extend] Extended allocation by {1} bytes."
TOTAL = "[I:onnxruntime:Default, bfc_arena.cc:208 Extend] Total allocated bytes: {2}"


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [
        ([], {}),
        ([("Cuda", 3, 3)], {"Cuda": {"mb": 3.0, "pieces": 1, "largest_mb": 3.0}}),
        (  # the arena gave 2 MiB back before it was extended again
            [("Cuda", 3, 3), ("CudaPinned", 1, 1), ("Cuda", 1, 2)],
            {
                "Cuda": {"mb": 3.0, "pieces": 2, "largest_mb": 3.0},
                "CudaPinned": {"mb": 1.0, "pieces": 1, "largest_mb": 1.0},
            },
        ),
    ],
)
def test_each_name_has_the_most_that_was_held_and_its_pieces(extensions, expected):
    lines = [
        line.format(name, size << 20, total << 20)
        for name, size, total in extensions
        for line in (EXTENDING, "noise", EXTENDED, TOTAL)
    ]
    assert taken("\n".join(lines)) == expected


def test_an_arena_is_read_while_sessions_are_opened_and_run(capfd):
    model = onnx.parser.parse_model(ZEROS).SerializeToString()
    with arena_log() as log:
        # A session of the package sets the severity of all logs when it is opened.
        ort.create_session(model, ort.SessionSettings(), ["CPUExecutionProvider"])
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        before = log.taken().get("Cpu", {"mb": 0.0})["mb"]
        session.run(None, {"n": np.array([64 * MEBIBYTE])})
        sys.stderr.write("said meanwhile\n")
        after = log.taken()["Cpu"]
    assert after["mb"] - before >= 64
    assert after["largest_mb"] >= 64
    _, said = capfd.readouterr()
    assert "said meanwhile" in said
    assert "BFCArena" not in said
