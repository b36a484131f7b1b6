"""The names that the package hands out, and what importing it costs."""

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import amp_transpiler as amp

# The interface of the design, and what errors and reports need.
NAMES = {
    "AmpError",
    "CustomTypeHint",
    "autocast",
    "casting_rule",
    "convert_model",
    "list_conditional_fp32_ops",
    "list_fp32_ops",
    "list_loss_output_functions",
    "list_lp16_fp32_ops",
    "list_lp16_ops",
    "list_lp16_use_fp32_params",
    "list_widest_type_cast",
    "AutoMixedPrecisionLists",
    "BenchmarkResult",
    "Profile",
    "benchmark",
    "compat",
    "profile",
    "CPUPlace",
    "CUDAPlace",
    "CheckFailed",
    "DistributedError",
    "CastRow",
    "DecisionRow",
    "FrontierPoint",
    "EnvironmentProblem",
    "InputError",
    "ModelError",
    "NotFiniteError",
    "StepCheckFailed",
    "OptionError",
    "OutputComparison",
    "OutputError",
    "ParamAttr",
    "Program",
    "Report",
    "Session",
    "RecommendedOptions",
    "session_options",
    "StepProfile",
    "Variable",
    "VerificationError",
    "cast_model_to_fp16",
    "cast_parameters_to_fp16",
    "compare_releases",
    "debug",
    "debugging",
    "distributed",
    "decorate",
    "disable_amp",
    "emulate",
    "enable_static",
    "fp16_guard",
    "kept_bytes",
    "live_bytes",
    "load",
    "mark_region",
    "measure_peak",
    "nn",
    "optimizer",
    "paddle",
    "profile_step",
    "regularizer",
    "save",
    "seed",
    "get_flags",
    "set_flags",
    "static",
    "transpile",
    "utils",
}


def test_the_package_hands_out_these_names_and_no_others():
    assert set(amp.__all__) == NAMES
    assert len(amp.__all__) == len(NAMES)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_public_name_exists_is_documented_and_listed(name):
    value = getattr(amp, name)
    assert inspect.getdoc(value)
    assert name in dir(amp)
    assert value is getattr(amp, name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        amp.nonsense  # noqa: B018  # the access is the test


# Arguments by name and default, as the design fixes them; a later version may add some.
SIGNATURES = {
    "transpile": {
        "src": inspect.Parameter.empty,
        "dst": None,
        "level": "auto",
        "dtype": "float16",
        "target": "cuda",
        "keep_io_types": True,
        "amp_lists": None,
        "use_promote": False,
        "guard": (),
        "disable_amp": (),
        "inputs": None,
        "tolerance": None,
        "verify": True,
    },
    "cast_model_to_fp16": {
        "program": inspect.Parameter.empty,
        "amp_lists": None,
        "use_fp16_guard": True,
        "dest_type": "float16",
        "level": "O2",
        "use_promote": False,
    },
    "cast_parameters_to_fp16": {
        "place": inspect.Parameter.empty,
        "program": inspect.Parameter.empty,
        "scope": None,
        "to_fp16_var_names": None,
    },
    "AutoMixedPrecisionLists": {
        "custom_white_list": None,
        "custom_black_list": None,
        "custom_black_varnames": None,
        "dtype": "float16",
    },
    "mark_region": {
        "program": inspect.Parameter.empty,
        "kind": inspect.Parameter.empty,
        "nodes": inspect.Parameter.empty,
    },
    "debug": {
        "model": inspect.Parameter.empty,
        "low": None,
        "inputs": None,
        "dtype": None,
        "level": "O2",
        "target": "cuda",
        "ort": None,
        "device": "H100",
        "tolerance": None,
        "cure": True,
        "fix": None,
        "device_check": "no",
    },
    "compare_releases": {
        "model": inspect.Parameter.empty,
        "low": None,
        "ort": inspect.Parameter.empty,
        "inputs": None,
        "python": (),
        "dtype": None,
        "level": "O2",
        "target": "cuda",
        "device": "H100",
        "tolerance": None,
    },
    "Session": {"program": inspect.Parameter.empty, "place": None},
    "emulate": {"program": inspect.Parameter.empty},
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_and_defaults(name):
    arguments = {n: p.default for n, p in inspect.signature(getattr(amp, name)).parameters.items()}
    assert {n: arguments[n] for n in SIGNATURES[name]} == SIGNATURES[name]
    assert list(arguments)[: len(SIGNATURES[name])] == list(SIGNATURES[name])


# name -> base classes of errors; the command's exit statuses hang on them
ERRORS = {
    "InputError": (amp.AmpError, ValueError),
    "ModelError": (amp.InputError,),
    "OptionError": (amp.InputError,),
    "OutputError": (amp.InputError,),
    "EnvironmentProblem": (amp.AmpError,),
    "VerificationError": (amp.AmpError,),
    "CheckFailed": (amp.AmpError,),
}


@pytest.mark.parametrize("name", ERRORS)
def test_the_tree_of_errors(name):
    assert issubclass(getattr(amp, name), ERRORS[name])
    if name in ("EnvironmentProblem", "VerificationError", "CheckFailed"):
        assert not issubclass(getattr(amp, name), amp.InputError)


def _modules():
    return sorted(
        info.name for info in pkgutil.walk_packages(amp.__path__, "amp_transpiler.") if "__main__" not in info.name
    )


@pytest.mark.parametrize("name", _modules())
def test_every_module_exports_what_it_says(name):
    if name == "amp_transpiler.compat.olive":
        pytest.importorskip(
            "olive.passes", reason="olive-ai, whose classes it extends, is not installed: the extra [olive]"
        )
    module = importlib.import_module(name)
    for exported in getattr(module, "__all__", ()):
        assert hasattr(module, exported)


def test_importing_the_package_costs_nothing():
    """onnx_ir takes a third of a second to import, ONNX Runtime more: they come when they are needed."""
    heavy = "{'onnx', 'onnx_ir', 'onnxruntime', 'numpy'}"
    code = f"import sys, amp_transpiler; print(sorted({heavy} & {{name.split('.')[0] for name in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
