"""Which ONNX Runtime is used, of any wheel, and what is said where there is none, an old one, a broken one or two."""

import pathlib
import subprocess
import sys

import pytest

import amp_transpiler
from amp_transpiler import wheels
from amp_transpiler.errors import EnvironmentProblem
from amp_transpiler.wheels import Wheel

MODEL = str(pathlib.Path(__file__).parents[1] / "models" / "bert_1layer.onnx")  # a name of no file is told first

CLEAN = ("__version__ = '1.31.1'", "class InferenceSession: pass")


def install(folder, *names, module=CLEAN, version="1.31.1"):
    """Lay the files of wheels into a folder, as pip does; `module` None: another uninstallation took them away."""
    folder.mkdir(exist_ok=True)
    for name in names:
        information = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        inside = "onnxruntime_genai" if name == "onnxruntime-genai" else "onnxruntime"
        (information / "RECORD").write_text(f"{inside}/__init__.py,,\n")
    if module is not None:
        (folder / "onnxruntime").mkdir()
        (folder / "onnxruntime/__init__.py").write_text("\n".join(module) + "\n")
    return folder


@pytest.fixture
def only(monkeypatch):
    """Make a folder the only place where Python finds ONNX Runtime."""

    def use(*folders):
        monkeypatch.setattr(sys, "path", [str(folder) for folder in folders])
        monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
        for name in [name for name in sys.modules if name.startswith("onnxruntime.")]:
            monkeypatch.delitem(sys.modules, name)

    caches = (wheels.fault_of_runtime, wheels.require_installed)
    for function in caches:
        function.cache_clear()
    yield use
    sys.modules.pop("onnxruntime", None)  # monkeypatch puts the real one back
    for function in caches:
        function.cache_clear()


# ---- any wheel ----

NAMES = [
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-training",
    "onnxruntime-migraphx",
    "ort-nightly-gpu",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_module_of_any_wheel_is_used(name, only, tmp_path, caplog):
    only(install(tmp_path / "a", name, "onnxruntime-genai"))  # which brings another module
    wheels.require_runtime()
    assert wheels.installed_wheels() == (Wheel(name, "1.31.1"),)
    assert wheels.installed_version() == "1.31.1"
    assert not caplog.records


def test_a_module_without_a_wheel_is_used(only, tmp_path):
    only(install(tmp_path / "a"))  # built by hand, and put on the path
    wheels.require_runtime()
    assert wheels.installed_wheels() == ()


@pytest.mark.parametrize("other", [name for name in NAMES if name != "onnxruntime"])
def test_two_wheels_in_one_folder_work_with_a_warning(other, only, tmp_path, caplog):
    only(install(tmp_path / "a", other, "onnxruntime"))
    wheels.require_runtime()
    wheels.require_runtime()
    [record] = caplog.records
    first, second = sorted((f"{other} 1.31.1", "onnxruntime 1.31.1"))
    assert record.message.startswith(f"{first} and {second} share a folder")
    assert record.levelname == "WARNING"


def test_two_wheels_in_two_folders_do_not_mix(only, tmp_path, caplog):
    only(install(tmp_path / "gpu", "onnxruntime-gpu"), install(tmp_path / "cpu", "onnxruntime"))
    wheels.require_runtime()
    assert wheels.installed_wheels() == (Wheel("onnxruntime-gpu", "1.31.1"),)
    assert not caplog.records


# ---- none that works ----

# The wheels that are listed, the module's lines -> what is wrong, and the command that mends it.
FAULTS = {
    "none": ((), None, "no wheel of it is installed", "pip install 'amp-transpiler[cpu]', or with an NVIDIA GPU: "),
    "its files were uninstalled with another wheel": (
        ("onnxruntime-gpu",),
        None,
        "the files of onnxruntime-gpu 1.31.1 are gone",
        "pip install --force-reinstall --no-deps onnxruntime-gpu",
    ),
    "too old": (
        ("onnxruntime",),
        ("__version__ = '1.16.3'",),
        "1.16.3 is older than 1.22, the oldest that works",
        "pip install -U onnxruntime",
    ),
    "too old, of another wheel": (
        ("onnxruntime-directml",),
        ("__version__ = '1.9.0'",),
        "1.9.0 is older than 1.22",
        "pip install -U onnxruntime-directml",
    ),
    "a library is missing": (
        ("onnxruntime-gpu",),
        (*CLEAN, "raise ImportError('libcudart.so.13: cannot open shared object file')"),
        "cannot be imported: libcudart.so.13",
        "pip install --force-reinstall --no-deps onnxruntime-gpu",
    ),
    "parts of two wheels": (
        ("onnxruntime", "onnxruntime-gpu"),
        ("__version__ = '1.31.1'",),
        "onnxruntime 1.31.1 and onnxruntime-gpu 1.31.1 brought cannot be imported: ",
        "pip install --force-reinstall --no-deps onnxruntime-gpu",
    ),
    "a file of another processor": (
        ("onnxruntime-qnn",),
        (*CLEAN, "raise OSError('wrong ELF class')"),
        "cannot be imported: wrong ELF class",
        "pip install --force-reinstall --no-deps onnxruntime-qnn",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_what_is_wrong_is_one_line_with_its_remedy(case, only, tmp_path):
    names, module, what, remedy = FAULTS[case]
    only(install(tmp_path / "a", *names, module=module))
    with pytest.raises(EnvironmentProblem) as caught:
        wheels.require_runtime()
    message = str(caught.value)
    assert message.startswith("ONNX Runtime cannot be used: ")
    assert what in message
    assert remedy in message
    assert "\n" not in message


# ONNX Runtime's and onnx's versions -> what training says.
TRAINING = [
    ("1.31.1", "1.23.0", None),
    ("1.32.0", "1.22.0", None),
    ("1.30.0", "1.23.0", "training needs onnxruntime-gpu 1.31 or newer, and 1.30.0 is installed"),
    ("1.22.0", "1.17.0", "training needs onnxruntime-gpu 1.31 or newer, and 1.22.0 is installed"),
    ("1.31.0", "1.21.0", "training needs onnx 1.22 or newer, and 1.21.0 is installed: run `pip install -U onnx`"),
    ("1.31.0", "1.17.0", "training needs onnx 1.22 or newer"),
]


@pytest.mark.parametrize(("runtime", "onnx", "refusal"), TRAINING)
def test_training_asks_for_more_by_name(runtime, onnx, refusal, monkeypatch):
    monkeypatch.setattr(wheels, "installed_version", lambda: runtime)
    monkeypatch.setattr(wheels, "installed_wheels", lambda: (Wheel("onnxruntime-gpu", runtime),))
    monkeypatch.setattr(wheels.importlib.metadata, "version", lambda _name: onnx)
    if refusal is None:
        wheels.require_for_training.__wrapped__()
        return
    with pytest.raises(EnvironmentProblem, match=refusal):
        wheels.require_for_training.__wrapped__()


# Whatever is asked for first, without ONNX Runtime.
DOORS = [
    "import amp_transpiler as amp; amp.transpile",
    "import amp_transpiler as amp; amp.Session",
    "import amp_transpiler as amp; amp.static",
    "import amp_transpiler.nn.functional",
    "from amp_transpiler import paddle",
    "from amp_transpiler.paddle.static import Executor",
    "from amp_transpiler.compat import convert_float_to_float16",
    "from amp_transpiler.ops.schema import runtime_domains; runtime_domains()",
]
_HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            raise ModuleNotFoundError(name=name)

import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "onnxruntime" else find(name, package)
sys.meta_path.insert(0, Hidden())
import amp_transpiler.wheels
amp_transpiler.wheels._wheels_in = lambda folder: ()
"""


def python(code):
    folder = amp_transpiler.__file__.rsplit("/", 2)[0]
    return subprocess.run(
        [sys.executable, "-c", _HIDE + code], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("door", DOORS)
def test_every_door_says_that_there_is_none(door):
    done = python(door)
    assert done.returncode == 1
    assert "EnvironmentProblem: ONNX Runtime cannot be used: no wheel of it is installed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (f"[{MODEL!r}, '--dry-run']", 2),
        ("['--check', 'model.onnx']", 2),
        ("['diff', 'a.onnx', 'b.onnx']", 2),
        ("['debug', 'a.onnx']", 2),
        ("['doctor']", 1),
    ],
)
def test_the_command_says_so_in_a_line(arguments, status):
    done = python(f"from amp_transpiler.cli import main; sys.exit(main({arguments}))")
    assert done.returncode == status
    assert "pip install 'amp-transpiler[cpu]', or with an NVIDIA GPU: pip install 'amp-transpiler[cuda]'" in (
        done.stdout + done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", ["['--help']", "['--version']", "['doctor', '--help']", "[]"])
def test_help_needs_no_onnx_runtime(arguments):
    done = python(f"from amp_transpiler.cli import main; sys.exit(main({arguments}))")
    assert done.returncode in (0, 2)
    assert "EnvironmentProblem" not in done.stderr
