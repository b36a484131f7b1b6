"""Launches of a transformer's layer in training, counted without a GPU."""

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import json, sys
import numpy as np
import amp_transpiler as amp
import bert_program
import launches
from amp_transpiler import optimizer, static, tensor
from amp_transpiler.nn import functional

level, layers, batch, length = sys.argv[1], int(sys.argv[2]), 2, 16
config = bert_program.BertConfig(layers=layers, hidden=64, heads=2, intermediate=128, vocabulary=200, positions=16)
main, startup = static.Program(), static.Program()
with static.program_guard(main, startup):
    ids, labels = (static.data(name, [batch, length], "int64") for name in ("ids", "labels"))
    logits = bert_program.bert_for_masked_lm(ids, config)
    loss = functional.cross_entropy(logits, tensor.reshape(labels, [batch * length]))
    rule = optimizer.AdamW(1e-3, multi_precision=level == "O2")
    (rule if level == "fp32" else static.amp.decorate(rule, level=level)).minimize(loss, startup)
feed = {name: np.zeros((batch, length), np.int64) for name in ("ids", "labels")}
with static.Executor(amp.CUDAPlace(0)) as executor:
    executor.run(startup)
    for _ in range(2):
        executor.run(main, feed, [loss])
    with launches.counting() as counts:
        executor.run(main, feed, [loss], return_numpy=False)
print(json.dumps({"launches": counts["launches"], "memcpy": counts["memcpy"].get("DtoD", {}), **counts["kinds"]}))
"""

# Of a layer: its products forward and backward, each bias once, query, key and value as one where values are 16-bit;
# two normalizations with 12 kernels backward. The optimizer's kernels are those of groups of parameters, which further
# layers only make larger.
MOST = {"fp32": {"launches": 90, "cast": 0}, "O2": {"launches": 76, "cast": 2}, "O1": {"launches": 93, "cast": 16}}

# Copies within the device in a step with four layers, and how many more these are than with two.
COPIES = {"fp32": (10, 1), "O2": (32, 8), "O1": (11, 1)}


@pytest.mark.parametrize("level", MOST)
def test_a_further_layer_takes_few_launches(counted, level):
    two, four = (counted.program(PROGRAM, level, str(layers)) for layers in (2, 4))
    for kind, most in MOST[level].items():
        assert four.get(kind, 0) - two.get(kind, 0) <= 2 * most, (kind, two, four)
    # No activation is copied for its shape; parameters are, in pieces of their group's matrix.
    copies = [counts["memcpy"].get("count", 0) for counts in (two, four)]
    most, further = COPIES[level]
    assert copies[1] <= min(most, copies[0] + further), copies
