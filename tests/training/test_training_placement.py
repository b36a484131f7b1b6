"""The real CUDA provider, asked without a GPU: it takes every training program, and computes all floats itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.graph.proto import to_proto
from amp_transpiler.graph.walk import all_nodes
from amp_transpiler.paddle.optimizer import AdamW
from amp_transpiler.program.assemble import assemble
from amp_transpiler.program.fed_shapes import specialise
from amp_transpiler.runtime.lowering import lower
from tests.placing import Place
from tests.training.networks import NETWORKS, Network
from tests.training.trainer import build

pytestmark = pytest.mark.slow

FORMS: dict[str, dict[str, Any] | None] = {
    "float32": None,
    "float16": {"level": "O2", "dtype": "float16"},
    "bfloat16": {"level": "O2", "dtype": "bfloat16"},
}
_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


@functools.cache
def _lowered(network: Network, form: str, *, specialised: bool = True) -> ir.Model:
    """The complete training step as the executor hands it to ONNX Runtime; or with a free batch, as a file has it."""
    main, _, _, loss, _ = build(network.build, AdamW(network.rate), FORMS[form])
    model = lower(assemble(main, [loss.name])).model
    if specialised:
        specialise(model, {name: array.shape for name, array in network.batch(np.random.default_rng(0)).items()})
    return model


@pytest.fixture(scope="module")
def placed(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Return what tells the placement of a step."""
    folder = tmp_path_factory.mktemp("steps")

    @functools.cache
    def place_all(network: Network) -> dict[tuple[str, bool], dict[str, Any]]:
        paths = {
            (form, specialised): folder / f"{network}_{form}_{specialised}.onnx"
            for form in FORMS
            for specialised in (True, False)
        }
        for (form, specialised), path in paths.items():
            onnx.save(to_proto(_lowered(network, form, specialised=specialised)), path)
        placements = place(*paths.values())
        return {key: placements[str(path)] for key, path in paths.items()}

    return lambda network, form, *, specialised=True: place_all(network)[form, specialised]


def _computes_floats(node: ir.Node | None) -> bool:
    """Whether a node makes floats; one that ONNX Runtime made itself, and that we do not know, counts too."""
    return node is None or any(value.dtype in _FLOATS for value in node.outputs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_every_float_is_computed_on_cuda(network: Network, form: str, placed: Callable[..., dict[str, Any]]) -> None:
    nodes = {node.name: node for node in all_nodes(_lowered(network, form))}
    placement = placed(network, form)
    assert "error" not in placement, f"session refused: {placement}"
    assert sum(placement["cuda"].values()) > 50
    left = [entry for entry in placement["cpu_nodes"] if _computes_floats(nodes.get(entry.partition(" ")[2]))]
    assert not left, f"{len(left)} nodes that compute floats are on the CPU: {left[:20]}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_with_a_free_batch_only_its_size_is_computed_on_the_cpu(
    network: Network, form: str, placed: Callable[..., dict[str, Any]]
) -> None:
    nodes = {node.name: node for node in all_nodes(_lowered(network, form, specialised=False))}
    placement = placed(network, form, specialised=False)
    assert "error" not in placement, f"session refused: {placement}"
    known = [nodes[name] for name in (entry.partition(" ")[2] for entry in placement["cpu_nodes"]) if name in nodes]
    many = [node for node in known if any(v.shape is None or any(size != 1 for size in v.shape) for v in node.outputs)]
    tensors = [node.name for node in many if _computes_floats(node)]  # one number, such as a mean's divisor, may be
    assert not tensors, f"{len(tensors)} nodes that compute tensors are on the CPU: {tensors[:20]}"


@pytest.mark.parametrize("form", ["float16", "bfloat16"])
@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_a_low_step_computes_its_matrices_low(network: Network, form: str) -> None:
    """So that the placement above is that of a low program, not of a float32 one under its name."""
    model = _lowered(network, form)
    heavy = [node for node in all_nodes(model) if node.op_type in {"Conv", "MatMul", "Gemm"}]
    low = [node for node in heavy if node.outputs[0].dtype == ir.DataType[form.upper()]]
    assert len(low) >= 0.9 * len(heavy) > 0, sorted(node.name or "" for node in heavy if node not in low)
