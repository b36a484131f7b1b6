"""The contract of passes: `modified` is exact, for every pass over the small models and models in ONNX text."""

import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from amp_transpiler.errors import ModelError
from amp_transpiler.graph.dtypes import BFLOAT16, FLOAT16, LOW_DTYPES
from amp_transpiler.graph.types import propagate_types
from amp_transpiler.passes.apply_assignment import ApplyAssignment
from amp_transpiler.passes.bake_casts import BakeCasts
from amp_transpiler.passes.clean_casts import CleanCasts
from amp_transpiler.passes.convert_opset import ConvertOpset
from amp_transpiler.passes.emulate import EmulateLow
from amp_transpiler.passes.fill_sums import FillSums
from amp_transpiler.passes.fold_batch_norm import FoldBatchNorm
from amp_transpiler.passes.fold_constants import FoldConstants
from amp_transpiler.passes.fold_known_sizes import FoldKnownSizes
from amp_transpiler.passes.guard_fusions import GuardFusions
from amp_transpiler.passes.guard_transposes import GuardTransposes
from amp_transpiler.passes.guard_vectors import GuardVectors
from amp_transpiler.passes.inline_functions import InlineFunctions
from amp_transpiler.passes.limit_opset import LimitOpset
from amp_transpiler.passes.lower_opset import LowerOpset
from amp_transpiler.passes.name_nodes import NameNodes
from amp_transpiler.passes.narrow_float64 import NarrowFloat64
from amp_transpiler.passes.raise_opset import RaiseOpset
from amp_transpiler.passes.release_initializers import ReleaseInitializers
from amp_transpiler.passes.rewrite_equivalents import RewriteEquivalents
from amp_transpiler.passes.set_ir_version import SetIrVersion
from amp_transpiler.passes.sign_rotations import SignRotations
from amp_transpiler.passes.skip_identities import SkipIdentities
from amp_transpiler.passes.unify_constants import UnifyConstants
from amp_transpiler.passes.widen_low_floats import WidenLowFloats
from amp_transpiler.precision.assign import assign
from amp_transpiler.precision.opset_choice import OpsetChoice
from amp_transpiler.precision.policy import Policy
from amp_transpiler.systems.mxnet.rules import MxnetRules
from amp_transpiler.systems.paddle.lists import AutoMixedPrecisionLists
from amp_transpiler.targets import CUDA
from amp_transpiler.training_passes import Legalize, LowerBatchNorm, LowerDropout
from amp_transpiler.training_passes.guard_statistics import GuardStatistics
from tests.support import array, parse

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"
VECTORS = {name: array(2, seed=seed, low=0.5) for seed, name in enumerate("sbmv")}
NORM = "BatchNormalization (c, s, b, m, v)"

TEXTS = {
    "plain": ("(float[2,4] x) => (float[2,4] y) { [a] h = Relu (x) [b] y = Neg (h) }", {}),
    "unnamed": ("(float[2,4] x) => (float[2,4] y) { h = Relu (x) y = Neg (h) }", {}),
    "numbers": ("(float[2] x) => (float[2] y) { [k] c = Constant <value_float = 2.0> () [a] y = Mul (x, c) }", {}),
    "identities": ("(float[2] x) => (float[2] y) { [i] j = Identity (w) [a] y = Add (x, j) }", {"w": array(2)}),
    "spoilt statistics": (
        (
            "(float[4,2] x) => (float[4,2] y, float16[2] r) { [n] y, k, q = BatchNormalization <training_mode = 1> "
            "(x, s, b, m, v) [c] r = Cast <to = 10> (k) }"
        ),
        VECTORS,
    ),
    "a fixed size": (
        (
            "(float[N,2] x) => (float[N,2] y) {"
            " [a] s = Shape <start = 1> (x) [b] f = Cast <to = 1> (s) [c] y = Div (x, f) }"
        ),
        {},
    ),
    "computed from constants": ("(float[2] x) => (float[2] y) { [c] k = Cos (w) [a] y = Add (x, k) }", {"w": array(2)}),
    "unread identity": ("(float[2] x) => (float[2] y) { [i] j = Identity (w) [a] y = Neg (x) }", {"w": array(2)}),
    "casts": (
        (
            "(float[2] x) => (float[2] y, float16[2] z) {"
            "[a] g = Cast <to = 10> (x) [b] h = Cast <to = 1> (g) [c] f = Cast <to = 1> (h) [d] y = Neg (f)"
            "[e] z = Cast <to = 10> (x) }"
        ),
        {},
    ),
    "cast of a weight": (
        "(float16[2] x) => (float16[2] y) { [a] h = Cast <to = 10> (w) [b] y = Add (x, h) }",
        {"w": array(2)},
    ),
    "convolution": (f"(float[1,2,4,4] x) => (float[1,2,4,4] y) {{ [c] c = Conv (x, w) [n] y = {NORM} }}", VECTORS),
    "training": (
        (
            "(float[4,2] c) => (float[4,2] y, float[2] p, float[2] q)"
            "{ [n] y, p, q = BatchNormalization <training_mode = 1> (c, s, b, m, v) }"
        ),
        VECTORS,
    ),
    "dropout": (
        "(float[4,2] x) => (float[4,2] y) { [d] y = Dropout (x, ratio, yes) }",
        {"ratio": np.float32(0.5), "yes": np.bool_(True)},
    ),
    "mixed normalization": (
        (
            "(bfloat16[2,4] x) => (bfloat16[2,4] y) <float two = {2.0}, float e = {0.1}, int64[1] last = {-1}> {"
            "[c] h = Cast <to = 1> (x) [p] q = Pow (h, two) [r] m = ReduceMean (q, last) [a] v = Add (m, e)"
            "[s] d = Sqrt (v) [i] n = Div (h, d) [w] f = Mul (n, g) [z] y = Cast <to = 16> (f) }"
        ),
        {"g": array(4)},
    ),
    "filled": (
        (
            "(float[2,4] x) => (float[2,4] y) {"
            "[s] s = Shape (x) [c] c = ConstantOfShape (s) [f] f = Add (c, two) [y] y = Mul (x, f) }"
        ),
        {"two": np.float32(2)},
    ),
    "rotated": (
        (
            "(float[3,8] x, float[3,1] t) => (float[3,8] y) { [p] p = Mul (t, f) [a] a = Concat <axis = 1> (p, p)"
            "[c] c = Cos (a) [s] s = Sin (a) [h] u, v = Split <axis = 1, num_outputs = 2> (x) [n] n = Neg (v)"
            "[r] r = Concat <axis = 1> (n, u) [l] l = Mul (x, c) [q] q = Mul (r, s) [y] y = Add (l, q) }"
        ),
        {"f": array(4)},
    ),
    "float16": ("(float16[2,4] x) => (float16[2,4] y) { [a] h = Exp (x) [b] y = Neg (h) }", {}),
    "float64": ("(double[2] x) => (double[2] y) { [a] y = Neg (x) }", {}),
    "float16 constant": (
        "() => (float16[1] y) { [a] y = Constant <value = float16[1] {1}> () }",
        {},
    ),
    "transposed times a vector": (
        "(float[3,4] x, float[3] v) => (float[4] y) { [t] t = Transpose <perm = [1, 0]> (x) [m] y = MatMul (t, v) }",
        {},
    ),
    "bfloat16 without a kernel": ("(bfloat16[2,4] x) => (bfloat16[2,4] y) { [a] y = Ceil (x) }", {}),
    "body": (
        (
            "(float[2] x, bool k) => (float[2] y) {"
            "[i] y = If (k) <then_branch = t () => (float[2] p) { [a] p = Neg (x) },"
            "else_branch = e () => (float[2] q) { [b] q = Exp (x) }> }"
        ),
        {},
    ),
}
BATCH_MOVED = (
    "(float16[5,1,4] x) => (float16[1,5,3] y) { [t] t = Transpose <perm = [1, 0, 2]> (x) [m] y = MatMul (t, w) }"
)
FUNCTION = (
    '<domain: "local", opset_import: ["": 18]> twice (a) => (b) { [i] b = Add (a, a) }',
    "(float[2] x) => (float[2] y) { [f] y = local.twice (x) }",
)


def of_text(name):
    text, weights = TEXTS[name]
    if name == "convolution":
        weights = {**weights, "w": array(2, 2, 1, 1)}
    return parse(text, **weights)


def with_listed_initializer(ir_version):
    model = parse("(float[2] x, float[2] w) => (float[2] y) { [a] y = Add (x, w) }", ir_version=ir_version, w=array(2))
    model.opset_import[0].version = 7
    return model


def at_opset(version, ir_version=10):
    return parse("(float[2,4] x) => (float[2,4] y) { [a] y = Relu (x) }", opset=version, ir_version=ir_version)


FILES = {
    **{name: lambda name=name: of_text(name) for name in TEXTS},
    **{path.stem: lambda path=path: onnx.load(path) for path in sorted(MODELS.glob("*.onnx"))},
    "batch moved": lambda: parse(BATCH_MOVED, w=array(4, 3).astype(np.float16)),
    "function": lambda: parse(FUNCTION[1], FUNCTION[0], imports=', "local": 1'),
    "listed initializer": lambda: with_listed_initializer(8),
    "old file": lambda: with_listed_initializer(3),
    "newer opset": lambda: at_opset(27, 13),
    "old IR version": lambda: at_opset(18, 4),
}


def seeds(model):
    """Two scalars for `LowerDropout`."""
    seed_values = [
        ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([])) for name in ("s0", "s1")
    ]
    model.graph.inputs.extend(seed_values)
    return seed_values


def decided(model):
    rules = MxnetRules(FLOAT16, AutoMixedPrecisionLists())
    return assign(model, Policy(low=FLOAT16, target=CUDA, rules=rules))


PASSES = {
    "InlineFunctions": lambda _: InlineFunctions(),
    "ReleaseInitializers": lambda _: ReleaseInitializers(),
    "UnifyConstants": lambda _: UnifyConstants(),
    "FoldConstants": lambda _: FoldConstants(),
    "FoldKnownSizes": lambda _: FoldKnownSizes(),
    "SkipIdentities": lambda _: SkipIdentities(keep=False),
    "SkipIdentities, kept": lambda _: SkipIdentities(keep=True),
    "NameNodes": lambda _: NameNodes(),
    "LimitOpset": lambda _: LimitOpset(26),
    "LowerOpset": lambda _: LowerOpset(17),
    "ConvertOpset": lambda _: ConvertOpset(18),
    "RaiseOpset": lambda _: RaiseOpset(lambda model: OpsetChoice(21, "" if model.functions else "for the test")),
    "RewriteEquivalents": lambda _: RewriteEquivalents(lambda _: True),
    "FoldBatchNorm": lambda _: FoldBatchNorm(),
    "SetIrVersion": lambda _: SetIrVersion(),
    "ApplyAssignment": lambda model: ApplyAssignment(decided(model)),
    "CleanCasts": lambda _: CleanCasts(),
    "FillSums": lambda _: FillSums(),
    "SignRotations": lambda _: SignRotations(),
    "GuardFusions": lambda _: GuardFusions(),
    "GuardStatistics": lambda _: GuardStatistics(),
    "GuardTransposes": lambda _: GuardTransposes(),
    "GuardVectors": lambda _: GuardVectors(),
    "BakeCasts": lambda _: BakeCasts(),
    "EmulateLow": lambda _: EmulateLow(),
    "WidenLowFloats": lambda _: WidenLowFloats(LOW_DTYPES),
    "NarrowFloat64": lambda _: NarrowFloat64(),
    "LowerBatchNorm": lambda _: LowerBatchNorm(),
    "LowerDropout": lambda model: LowerDropout(*seeds(model)),
    "Legalize": lambda _: Legalize(CUDA, BFLOAT16),
}


def content(model):
    return ir.to_proto(model).SerializeToString(deterministic=True)


def is_modified(make, file):
    """Run a pass on a model; check `modified` against the bytes, and return it (None: the pass does not take it)."""
    model = ir.from_proto(FILES[file]())
    try:
        propagate_types(model)
        pass_ = make(model)
        before = content(model)
        result = pass_(model)
    except (ModelError, ValueError):
        return None
    assert result.model is model
    assert result.modified == (content(model) != before), file
    return result.modified


@pytest.mark.parametrize("name", PASSES)
def test_modified_is_exact(name):
    modified_files = {file: is_modified(PASSES[name], file) for file in FILES}
    assert {True, False} <= set(modified_files.values()), modified_files  # the models show both


@pytest.mark.parametrize("name", ["SkipIdentities", "CleanCasts", "UnifyConstants", "NameNodes", "FoldBatchNorm"])
@pytest.mark.parametrize("file", FILES)
def test_a_second_run_has_nothing_to_do(name, file):
    model = ir.from_proto(FILES[file]())
    propagate_types(model)
    PASSES[name](model)(model)
    again = PASSES[name](model)(model)
    assert not again.modified
    assert again.count == 0
