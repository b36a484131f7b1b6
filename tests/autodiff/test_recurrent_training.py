"""Recurrent networks imported from ONNX follow the same networks in torch, step by step, at lengths that differ."""

from __future__ import annotations

import numpy as np
import pytest

from amp_transpiler import CPUPlace, optimizer, static
from amp_transpiler.paddle import tensor
from tests import support
from tests.autodiff.gradient_check import needs_torch

INPUTS, HIDDEN, CLASSES = 5, 6, 3
# Places of torch's gates in the order of ONNX's: LSTM i f g o -> i o f c, GRU r z n -> z r h.
ORDER = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2]}
SHAPES = [(7, 4), (3, 2), (7, 4), (5, 3)]


def as_onnx(op, net, head):
    """Return a bidirectional layer and a linear one of torch as an ONNX model."""

    def rows(name):
        parts = [getattr(net, name + suffix).detach().numpy() for suffix in ("_l0", "_l0_reverse")]
        return np.stack([np.concatenate([np.split(part, len(ORDER[op]))[i] for i in ORDER[op]]) for part in parts])

    extra = ", linear_before_reset=1" if op == "GRU" else ""
    return support.parse(
        f"""(float[t,n,{INPUTS}] x) => (float[t,n,{CLASSES}] y) {{
            h = {op}<hidden_size={HIDDEN}, direction="bidirectional"{extra}>(x, w, r, b)
            turned = Transpose<perm=[0, 2, 1, 3]>(h)
            flat = Reshape(turned, shape)
            m = MatMul(flat, out_w)
            y = Add(m, out_b)
        }}""",
        w=rows("weight_ih"),
        r=rows("weight_hh"),
        b=np.concatenate([rows("bias_ih"), rows("bias_hh")], 1),
        shape=np.array([0, 0, 2 * HIDDEN]),
        out_w=np.ascontiguousarray(head.weight.detach().numpy().T),
        out_b=head.bias.detach().numpy(),
    )


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_losses_are_those_of_torch(op):
    import torch

    torch.manual_seed(3)
    net, head = getattr(torch.nn, op)(INPUTS, HIDDEN, bidirectional=True), torch.nn.Linear(2 * HIDDEN, CLASSES)
    startup, scope = static.Program(), static.Scope()
    main = static.from_onnx(as_onnx(op, net, head), startup)
    assert len(main.all_parameters()) == 5
    with static.program_guard(main, startup):
        difference = main.var("y") - static.data("target", ["t", "n", CLASSES])
        loss = tensor.mean(difference * difference)
        optimizer.Adam(0.01).minimize(loss)
    exe = static.Executor(CPUPlace())
    exe.run(startup, scope=scope)
    adam = torch.optim.Adam([*net.parameters(), *head.parameters()], 0.01)
    for step, (length, batch) in enumerate(SHAPES * 3):
        x, target = (
            support.array(length, batch, INPUTS, seed=step),
            support.array(length, batch, CLASSES, seed=99 - step),
        )
        [got] = exe.run(main, feed={"x": x, "target": target}, fetch_list=[loss], scope=scope)
        expected = ((head(net(torch.from_numpy(x))[0]) - torch.from_numpy(target)) ** 2).mean()
        adam.zero_grad()
        expected.backward()
        adam.step()
        assert float(got) == pytest.approx(expected.item(), rel=1e-3), step
