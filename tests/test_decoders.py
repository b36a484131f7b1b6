"""Decoders of language models as the builders of generative models write them, converted with low caches."""

import collections
import json
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest

import amp_transpiler as amp
from amp_transpiler.passes.guard_caches import GuardCaches
from amp_transpiler.passes.manager import PassResult
from tests.counted import SCRIPT
from tests.decoders import HEAD, KV_HEADS, Decoder, feeds
from tests.support import LIMITS, NUMPY, open_ort, run

FORMS = {
    "rotary inside attention": {},
    "rotary operator": {"rotary": "operator"},
    "packed projections": {"packed": True},
    "quantised weights": {"quantised": True},
}
ATTENTION = "com.microsoft::GroupQueryAttention"


def names_kept(model):
    """Inputs and outputs other than the caches."""
    return [v.name for v in (*model.graph.input, *model.graph.output) if not v.name.startswith(("past_", "present."))]


def convert(model, dtype, level="auto"):
    return amp.transpile(model, level=level, dtype=dtype, keep_io_types=names_kept(model), prefer="size")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("form", "level"),
    [
        *((form, "auto") for form in FORMS),
        ("rotary operator", "O1"),
        ("quantised weights", "O1"),
        ("packed projections", "O2"),
    ],
)
def test_a_decoder_with_low_caches_runs_and_matches(form, level, dtype):
    model = Decoder(**FORMS[form]).build()
    step = feeds(model)
    expected = run(model, step)
    report = convert(model, dtype, level)
    session = amp.Session(report.program, amp.CPUPlace())
    assert session.emulated
    low = {name: v.astype(NUMPY[dtype]) if name.startswith("past_") else v for name, v in step.items()}
    value = dict(zip((info.name for info in session.outputs), session.run(low), strict=True))
    for name, values in expected.items():
        assert value[name].dtype == (NUMPY[dtype] if name.startswith("present.") else np.float32)
        difference = np.linalg.norm(value[name].astype(np.float32) - values)
        assert difference <= LIMITS["float16"] * np.linalg.norm(values), name
    assert report.verdict_word == ("plausible" if level == "auto" else "compared"), report.verdict


@pytest.mark.parametrize("form", FORMS)
def test_everything_heavy_is_low_and_only_the_logits_are_cast(form):
    report = convert(Decoder(**FORMS[form]).build(), "float16")
    kinds = collections.Counter((row.op.rpartition("::")[2], str(row.precision)) for row in report.decisions)
    product = "MatMulNBits" if form == "quantised weights" else "MatMul"
    assert kinds["GroupQueryAttention", "float16"] == 2
    assert (kinds[product, "float16"], kinds[product, "float32"]) == (11 if form == "packed projections" else 15, 0)
    assert report.casts == 1


def test_quantised_weights_stay_as_they_are():
    """MatMulNBits takes its scales in the type of its data; the integers are left alone."""
    model = Decoder(quantised=True).build()
    converted = {t.name: t for t in convert(model, "float16").program.to_onnx().graph.initializer}
    for tensor in model.graph.initializer:
        if tensor.name.endswith(".quanta"):
            assert (
                onnx.numpy_helper.to_array(tensor).tobytes()
                == onnx.numpy_helper.to_array(converted[tensor.name]).tobytes()
            )
        elif tensor.name.endswith(".scales"):
            assert converted[tensor.name].data_type == onnx.TensorProto.FLOAT16


def test_caches_keep_their_type_unless_asked():
    report = amp.transpile(Decoder().build(), verify=False, prefer="size")
    graph = report.program.to_onnx().graph
    types = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    assert types == {onnx.TensorProto.INT64, onnx.TensorProto.FLOAT}
    assert {row.precision for row in report.decisions if row.op == ATTENTION} == {"float16"}


STEPS = {"token": {"length": 1, "past": 4}, "prompt": {"length": 3, "past": 0}}


def saved(folder, model, step):
    """Write a model and the inputs of a step; return what `launches.py count` takes."""
    np.savez(folder / "step.npz", **step)
    onnx.save(model, folder / "decoder.onnx")
    return [folder / "decoder.onnx", "--feeds", str(folder / "step.npz")]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("caches", ["float32", "low"])
def test_each_step_runs_on_cuda(counted, tmp_path, caches, step):
    """With float32 caches, too, whose casts ONNX Runtime would have share their memory with what grows."""
    model = Decoder().build()
    keep = True if caches == "float32" else names_kept(model)
    converted = amp.transpile(model, keep_io_types=keep, prefer="size", verify=False).program.to_onnx()
    counts = counted.model(*saved(tmp_path, converted, feeds(model, **STEPS[step])))
    assert counts["fused"]["GroupQueryAttention"] == 2
    assert "GroupQueryAttention" not in counts["cpu_ops"]
    # The logits and, unless they are low, four caches before and after; those before the prompt are empty. One cast
    # makes int32 of the lengths.
    casts = {"low": 1, "float32": 9 if step == "token" else 5}[caches]
    assert counts["kinds"]["cast"] == casts + 1


def test_a_cast_cache_that_grows_fails_without_its_guard(tmp_path, monkeypatch):
    monkeypatch.setattr(GuardCaches, "call", lambda _, model: PassResult(model, modified=False))
    model = Decoder().build()
    converted = amp.transpile(model, prefer="size", verify=False).program.to_onnx()
    path, *options = saved(tmp_path, converted, feeds(model, **STEPS["token"]))
    command = [sys.executable, SCRIPT, "count", "--json", *options, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(f"launches: {done.stderr.strip()}")
    assert "Shape mismatch attempting to re-use buffer" in json.loads(done.stdout)["error"]


@pytest.mark.parametrize("caches", ["float32", "low"])
@pytest.mark.parametrize("form", FORMS)
def test_no_decoder_is_predicted_slower_than_its_source(form, caches):
    """CUDA has GroupQueryAttention in 16 bits only, so a float32 source waits for copies to the CPU and back.

    Of packed projections these are few; casts of four small caches cost as much as they do.
    """
    model = Decoder(**FORMS[form]).build()
    keep = True if caches == "float32" else names_kept(model)
    dims = {"sequence_length": 1, "past_sequence_length": 127, "total_sequence_length": 128}
    report = amp.transpile(model, keep_io_types=keep, dims=dims, verify=False)
    times = report.known_times()
    if (form, caches) == ("packed projections", "float32"):
        assert times.result == times.fp32
        return
    assert {row.precision for row in report.decisions if row.op == ATTENTION} == {"float16"}
    assert times.result < times.fp32


def stepped(session, model, *, capacity):
    """Run a prompt and three tokens; return their logits. Caches are one shared buffer, unless `capacity` is 0."""
    names = [value.name for value in model.graph.input if value.name.startswith("past_")]
    shape = (1, KV_HEADS, capacity, HEAD)
    shared = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float16)) for name in names}
    tokens, logits = np.array([[7, 3, 11]]), []
    for total in (3, 4, 5, 6):
        binding = session.io_binding()
        binding.bind_cpu_input("input_ids", tokens)
        binding.bind_cpu_input("attention_mask", np.ones((1, total), np.int64))
        for name in names:
            binding.bind_ortvalue_input(name, shared[name])
        for output in session.get_outputs():
            before = shared.get(output.name.replace("present", "past_key_values"))
            if before is not None and capacity:
                binding.bind_ortvalue_output(output.name, before)
            else:
                binding.bind_output(output.name)
        session.run_with_iobinding(binding)
        results = dict(zip((output.name for output in session.get_outputs()), binding.get_outputs(), strict=True))
        shared = {name: results[name.replace("past_key_values", "present")] for name in names}
        logits.append(results["logits"].numpy())
        tokens = logits[-1][:, -1:].argmax(-1)
    return logits


@pytest.mark.parametrize("form", ["rotary inside attention", "quantised weights", "packed projections"])
def test_a_shared_buffer_of_low_caches_gives_what_growing_ones_do(form):
    """`past_present_share_buffer`: names, sizes and lengths are those of the source, in float16."""
    model = Decoder(**FORMS[form]).build()
    converted = amp.transpile(model, keep_io_types=names_kept(model), verify=False).program.to_onnx()
    ports = [(*proto.graph.input, *proto.graph.output) for proto in (model, converted)]
    for before, after in zip(*ports, strict=True):
        old, new = before.type.tensor_type, after.type.tensor_type
        assert (before.name, old.shape) == (after.name, new.shape)
        is_cache = before.name.startswith(("past_", "present."))
        assert new.elem_type == (onnx.TensorProto.FLOAT16 if is_cache else old.elem_type)
    session = open_ort(converted, optimized=True)
    for shared, grown in zip(stepped(session, model, capacity=8), stepped(session, model, capacity=0), strict=True):
        np.testing.assert_array_equal(shared, grown)
