"""RAF's example on a transformer that comes from its framework: loss and optimizer are appended, and it trains low.

`models/bert_1layer.onnx` is transformers' BertModel as torch exports it, its batch and length free.
"""

import functools
import pathlib

import numpy as np
import pytest

import amp_transpiler as amp
from amp_transpiler import optimizer, static
from amp_transpiler.paddle.nn import functional as F
from amp_transpiler.paddle.utils import unique_name
from tests import support

BERT = pathlib.Path(__file__).resolve().parents[2] / "models" / "bert_1layer.onnx"
TOKENS, CLASSES, STEPS = 60, 10, 24
SIZES = ((4, 8), (3, 12))  # batch and length of the steps, in turn

# name: what decorates the optimizer, or what converts the complete step; how far the first losses may be off
WAYS = {
    "autocast in float16": ({"autocast": "float16"}, 2e-3),
    "autocast in bfloat16": ({"autocast": "bfloat16"}, 1e-2),
    "RAF's policy": ({"policy": "raf"}, 2e-3),
    "OD": ({"level": "OD"}, 2e-3),
    "O1": ({"level": "O1"}, 2e-3),
    "O1 in bfloat16": ({"level": "O1", "dtype": "bfloat16"}, 1e-2),
    "O2": ({"level": "O2"}, 5e-3),
    "O2 in bfloat16": ({"level": "O2", "dtype": "bfloat16"}, 3e-2),
}


class Step:
    """A training step of the loaded model: a class for every token, from its last hidden state."""

    def __init__(self, autocast=None, **decoration):
        self.scope, self.executor = static.Scope(), static.Executor(amp.CPUPlace())
        startup = static.Program()
        startup.random_seed = 1
        main = static.from_onnx(BERT, startup_program=startup)
        wrapped = optimizer.SGD(0.05)
        if decoration:
            wrapped = amp.decorate(wrapped, init_loss_scaling=128.0, **decoration)
        with unique_name.guard(), static.program_guard(main, startup):
            hidden = main.var("last_hidden_state")
            labels = static.data("labels", ["batch", "length", 1], "int64")
            self.loss = F.cross_entropy(static.nn.fc(hidden, size=CLASSES, num_flatten_dims=2), labels)
            wrapped.minimize(self.loss, startup)
        with static.scope_guard(self.scope):
            self.executor.run(startup)
            if decoration:
                wrapped.amp_init(amp.CPUPlace())
        self.source = main
        self.main = main if autocast is None else amp.autocast(main, dtype=autocast)

    def losses(self):
        random = np.random.default_rng(0)
        with static.scope_guard(self.scope):
            feeds = (feed(*SIZES[step % len(SIZES)], random) for step in range(STEPS))
            return np.array([self.executor.run(self.main, batch, [self.loss.name])[0].item() for batch in feeds])


def feed(batch, length, random):
    """Random tokens, the last sequence padded from its half on; the label of a token is its last digit."""
    tokens = random.integers(0, TOKENS, (batch, length))
    mask = np.ones((batch, length), np.int64)
    mask[-1, length // 2 :] = 0
    types = random.integers(0, 2, (batch, length))
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "token_type_ids": types,
        "labels": tokens[..., None] % CLASSES,
    }


@functools.cache
def in_float32():
    step = Step()
    return step, step.losses()


def test_every_parameter_of_the_loaded_model_learns():
    step, _ = in_float32()
    started = Step()
    names = [parameter.name for parameter in step.main.all_parameters()]
    assert "inner.embeddings.position_embeddings.weight" in names  # its gradient is summed over the batch
    read = {
        name
        for name in names
        if f"{name}@GRAD" in {value.name for node in step.main.model.graph for value in node.outputs}
    }
    assert len(read) >= len(names) - 1  # the pooler's weight is not part of the loss
    assert [name for name in read if np.array_equal(started.scope[name], step.scope[name])] == []


@pytest.mark.parametrize(("way", "limit"), WAYS.values(), ids=WAYS)
def test_it_trains_as_in_float32(way, limit):
    _, plain = in_float32()
    step = Step(**way)
    dtype = way.get("autocast") or way.get("dtype", "float16")
    assert set(support.dtypes(step.main, "MatMul")) == {dtype.upper()}
    losses = step.losses()
    np.testing.assert_allclose(losses[:4], plain[:4], rtol=limit)
    assert losses[0] != plain[0]
    assert losses[-4:].mean() < 0.75 * losses[:4].mean()
    assert losses[-4:].mean() == pytest.approx(plain[-4:].mean(), rel=0.1)
