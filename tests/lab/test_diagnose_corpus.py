"""The table of diagnosed models."""

import sys

import numpy as np
import onnx

import diagnose_corpus
from diagnose_corpus import Case
from tests.support import parse


def test_a_row_names_the_guilty_node_and_the_cure(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "shipped" / "p"
    folder.mkdir(parents=True)
    model = parse("(float[1,4] x) => (float[1,4] y) { [power] p = Mul(x, x)\n [root] y = Sqrt(p) }")
    onnx.save(model, folder / "net.onnx")
    np.savez(folder / "net.inputs.npz", x=np.ones((1, 4), np.float32))
    cases = (Case("loud", "p/net", scale=1000.0), Case("quiet", "p/net"), Case("absent", "p/other"))
    monkeypatch.setattr(diagnose_corpus, "CASES", cases)
    monkeypatch.setattr(sys, "argv", ["diagnose_corpus.py", str(tmp_path), "--markdown"])

    assert diagnose_corpus.main() == 1  # there is nothing to mend in the second, so no cure is offered

    said = capsys.readouterr()
    header, _, loud, quiet = said.out.splitlines()
    assert header.startswith("| model | command | guilty node |")
    assert "| `power` (Mul) | overflow | its result reaches 1e+06, and float16 ends at 65,504 | infinite |" in loud
    assert "`power` and `root` in float32" in loud
    assert "| quiet | `amp-transpile debug net.onnx --inputs samples.npz` | none | nothing |" in quiet
    assert "absent: no" in said.err
