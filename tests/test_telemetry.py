"""Nothing is sent anywhere: ONNX Runtime's telemetry is off, in the process that imports the package and in all others.

Two witnesses that need no network. ONNX Runtime writes an identifier of the device into the user's folder as soon as it
is imported with telemetry. And a preloaded library (`recorder.c`) writes down which hosts a process and its children
look up or connect to; it lets them fail.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from amp_transpiler import telemetry

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = ROOT / "models/rocm_convnet.onnx"
HOST = "mobile.events.data.microsoft.com"

on_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems keep ONNX Runtime's telemetry at other places"
)


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def environment(home, **variables):
    """An environment without settings of telemetry, and without signs of CI, where ONNX Runtime sends nothing."""
    plain = {"PATH": os.environ["PATH"], "HOME": str(home), "AMP_TRANSPILER_CACHE": "off", "PYTHONPATH": str(ROOT)}
    return plain | variables


def python(code, home, *arguments, **variables):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, env=environment(home, **variables), cwd=home, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done


def is_identified(home):
    """Whether ONNX Runtime has written the identifier of this device."""
    return (home / ".cache/Microsoft/DeveloperTools/.onnxruntime/deviceid").is_file()


# ---- the variable ----

SAY = "import amp_transpiler.telemetry as t; import onnxruntime; print(t.why_on())"


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("value", ["1", "TRUE", "Yes", "on", "y", " 1 ", "0", "", "false", "off", "2", "t"])
def test_what_is_said_of_a_value_is_what_the_wheel_makes_of_it(value, home):
    said = python(SAY, home, ORT_DISABLE_TELEMETRY=value).stdout.strip()
    assert said == (f"ORT_DISABLE_TELEMETRY is {value!r}" if is_identified(home) else "")


@on_linux
def test_telemetry_is_off_where_the_user_says_nothing(home):
    assert python(SAY, home).stdout.strip() == ""
    assert not is_identified(home)


@on_linux
def test_the_user_may_have_it_on(home):
    assert python(SAY, home, ORT_DISABLE_TELEMETRY="0").stdout.strip() == "ORT_DISABLE_TELEMETRY is '0'"
    assert is_identified(home)


LATE = """
import onnxruntime, amp_transpiler.telemetry as t, os, subprocess, sys
os.environ["HOME"] = sys.argv[1]
subprocess.run([sys.executable, "-c", "import onnxruntime"], check=True)
print(t.why_on())
"""


@on_linux
def test_too_late_for_a_process_is_logged_once_and_in_time_for_its_children(home, tmp_path):
    done = python(LATE, home, tmp_path)
    assert done.stdout.strip() == "onnxruntime was imported before amp_transpiler"
    assert done.stderr.count("ONNX Runtime's telemetry is on: onnxruntime was imported before amp_transpiler") == 1
    assert is_identified(home)
    assert not is_identified(tmp_path)


def test_switching_off_imports_nothing_that_takes_time(home):
    code = "import sys; before = set(sys.modules); import amp_transpiler.telemetry; print(sys.modules.keys() - before)"
    loaded = python(code, home).stdout
    assert "amp_transpiler.telemetry" in loaded
    assert not re.search(r"'(logging|onnxruntime|numpy|onnx)'", loaded)


# ---- scripts ----

IMPORT = re.compile(r"^\s*(?:import|from) onnxruntime\b", re.MULTILINE)
OFF = re.compile(
    rf'^(?:import amp_transpiler\b|from amp_transpiler\b|os\.environ\.setdefault\("{telemetry.VARIABLE}")', re.MULTILINE
)


def imports_too_early(text):
    """Whether a file imports ONNX Runtime, in a function or in code of a child too, before telemetry is off."""
    first, off = IMPORT.search(text), OFF.search(text)
    return first is not None and (off is None or off.start() > first.start())


def test_a_script_switches_telemetry_off_before_it_imports_onnx_runtime():
    programs = [path for folder in ("scripts", "examples", "lab") for path in (ROOT / folder).rglob("*.py")]
    files = [path for path in programs if IMPORT.search(path.read_text(encoding="utf-8"))]
    assert len(files) > 15
    assert [str(path) for path in files if imports_too_early(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("text", "early"),
    [
        ("import onnxruntime\nimport amp_transpiler", True),
        ("def f():\n    import onnxruntime", True),
        ("def f():\n    import amp_transpiler\n    import onnxruntime", True),
        ("from amp_transpiler import static\nfrom onnxruntime.transformers import float16", False),
        ('os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")\n\ndef f():\n    import onnxruntime', False),
        ("import onnx", False),
    ],
)
def test_which_imports_are_too_early(text, early):
    assert imports_too_early(text) is early


# ---- look-ups ----


@pytest.fixture(scope="module")
def recorder(tmp_path_factory):
    if not sys.platform.startswith("linux"):
        pytest.skip("a library is preloaded by LD_PRELOAD on Linux only")
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build tests/recorder.c with")
    library = tmp_path_factory.mktemp("recorder") / "recorder.so"
    source = ROOT / "tests/recorder.c"
    subprocess.run(["gcc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture
def recording(recorder, tmp_path):
    return {"LD_PRELOAD": str(recorder), "RECORDED": str(tmp_path / "hosts")}


def hosts(recording):
    path = pathlib.Path(recording["RECORDED"])
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


ASK = """
import contextlib, ctypes, socket, subprocess, sys
code = 'import contextlib, socket\\nwith contextlib.suppress(OSError): socket.getaddrinfo("child.example", 443)'
subprocess.run([sys.executable, "-c", code], check=True)
for ask in (
    lambda: ctypes.CDLL(None).gethostbyname(b"name.example"),
    lambda: ctypes.CDLL(None).res_query(b"record.example", 1, 1, None, 0),
    lambda: socket.create_connection(("192.0.2.1", 443), 1),
    lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"", ("192.0.2.2", 53)),
):
    with contextlib.suppress(OSError):
        ask()
with socket.create_server(("localhost", 0)) as server, socket.create_connection(server.getsockname()):
    print("this machine answers")
"""


def test_the_recorder_sees_what_a_process_and_its_children_ask(recording, home):
    assert python(ASK, home, **recording).stdout == "this machine answers\n"
    assert hosts(recording) == [
        "getaddrinfo child.example",
        "gethostbyname name.example",
        "res_query record.example",
        "connect 192.0.2.1",
        "sendto 192.0.2.2",
    ]


SESSIONS = """
import onnxruntime, pathlib, sys, time
end = time.monotonic() + 60
while time.monotonic() < end and not pathlib.Path(sys.argv[2]).exists():
    onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    time.sleep(0.1)
"""


@pytest.mark.slow
def test_the_recorder_sees_onnx_runtimes_telemetry_where_it_is_on(recording, home):
    """Without this the next test could pass blindly. The first look-up comes some ten seconds after the import."""
    python(SESSIONS, home, MODEL, recording["RECORDED"], **recording)
    assert set(hosts(recording)) == {f"getaddrinfo {HOST}"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--benchmark", str(MODEL), "-o", "low.onnx"],
        ["--optimize", "--jobs", "2", str(MODEL), str(ROOT / "models/bert_1layer.onnx"), "-o", "low/"],
    ],
    ids=["a benchmark, in processes of its own", "workers and the optimizer"],
)
def test_the_command_and_its_children_look_nothing_up(options, recording, home):
    command = [sys.executable, "-m", "amp_transpiler", "-q", *options]
    done = subprocess.run(
        command, env=environment(home, **recording), cwd=home, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert list(home.rglob("*.onnx")), "it has converted"
    assert hosts(recording) == []
    assert not (home / ".cache/Microsoft").exists()
