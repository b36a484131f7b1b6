#!/usr/bin/env python3
"""Run a model with onnxruntime-web in headless Chromium, float16 shaders included, and compare with the CPU provider.

    python lab/webgpu_browser.py CHROMIUM WEB MODEL.onnx INPUTS.npz SOURCE.onnx [--provider webgpu|wasm]

CHROMIUM is a copy of the browser's folder, such as usr/lib/chromium of Debian's package, unpacked; its own software
driver has no float16, so `libvk_swiftshader.so` in it is replaced by Mesa's lavapipe (`webgpu_browser.c`, by gcc).
WEB is `node_modules/onnxruntime-web/dist` of the release. SOURCE.onnx is the float32 model, which the CPU runs. Needs
what `scripts/webgpu_oracle.py` needs. Exit status 1: a value is infinite or NaN, or the model does not run.
"""

from __future__ import annotations

import argparse
import base64
import functools
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
from typing import Any, ClassVar

import numpy as np

import amp_transpiler as amp
from amp_transpiler.verification.compare import compare_outputs
from webgpu_oracle import install

HERE = pathlib.Path(__file__).parent
LIMIT = 300  # seconds
LAVAPIPE = "root/usr/lib/x86_64-linux-gnu/libvulkan_lvp.so"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu-sandbox",
    "--no-first-run",
    "--enable-unsafe-webgpu",
    "--ignore-gpu-blocklist",
)
_FILES = (".mjs", ".wasm")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and takes the page's answer."""

    answers: ClassVar[list[dict[str, Any]]] = []
    answered: ClassVar[threading.Event] = threading.Event()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Take the answer."""
        self.answers.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()
        self.answered.set()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("chromium", "web", "model", "inputs", "source"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--provider", choices=("webgpu", "wasm"), default="webgpu")
    options = parser.parse_args()
    with np.load(options.inputs, allow_pickle=False) as file:
        feeds = dict(file)
    with amp.Session(options.source, amp.CPUPlace()) as session:
        fed = {info.name: feeds[info.name] for info in session.inputs if info.name in feeds}
        expected = dict(zip([info.name for info in session.outputs], session.run(fed), strict=True))
    oracle = install()
    put_lavapipe(options.chromium, oracle)
    with tempfile.TemporaryDirectory(prefix="webgpu-browser-") as folder:
        site = pathlib.Path(folder)
        make_site(site, options, fed)
        answer = browsed(site, options.chromium, oracle)
    print("shader-f16:", "yes" if answer.get("half") else "no")
    if "error" in answer:
        print(answer["error"])
        return 1
    outputs = {name: array_of(output) for name, output in answer["outputs"].items()}
    rows = compare_outputs([expected], [outputs])
    for name, row in rows.items():
        print(f"{name}  off {row.relative:.3%}, {row.nonfinite} not finite, {row.mismatch:.3%} differ")
    return 1 if any(row.nonfinite for row in rows.values()) else 0


def put_lavapipe(chromium: pathlib.Path, oracle: pathlib.Path) -> None:
    """Compile the library that hands lavapipe to Chromium, in the place of its own driver."""
    define, place = f'-DLAVAPIPE="{oracle / LAVAPIPE}"', chromium / "libvk_swiftshader.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", define, str(HERE / "webgpu_browser.c"), "-o", str(place), "-ldl"]
    subprocess.run(command, check=True)


def make_site(site: pathlib.Path, options: argparse.Namespace, fed: dict[str, Any]) -> None:
    """Put the page, the model, its inputs and onnxruntime-web into a folder."""
    for path in options.web.iterdir():
        if path.suffix in _FILES:
            (site / path.name).symlink_to(path.absolute())
    shutil.copy(options.model, site / "model.onnx")
    shutil.copy(HERE / "webgpu_browser.html", site / "index.html")
    job: dict[str, Any] = {"provider": options.provider, "feeds": {}}
    for place, (name, array) in enumerate(fed.items()):
        np.ascontiguousarray(array).tofile(site / f"input{place}.bin")
        kind = {"file": f"input{place}.bin", "type": str(array.dtype), "dims": list(array.shape)}
        job["feeds"][name] = kind
    (site / "job.json").write_text(json.dumps(job), encoding="utf-8")


def browsed(site: pathlib.Path, chromium: pathlib.Path, oracle: pathlib.Path) -> dict[str, Any]:
    """Open the page and return its answer."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    libraries = [str((oracle / LAVAPIPE).parent), *os.environ.get("LD_LIBRARY_PATH", "").split(":")]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, libraries))}
    environment["VK_DRIVER_FILES"] = str(oracle / "lavapipe.json")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [str(chromium / "chromium"), *FLAGS, f"--user-data-dir={profile}"]
        address = f"http://127.0.0.1:{server.server_port}/index.html"
        browser = subprocess.Popen([*command, address], env=environment, stderr=subprocess.DEVNULL)
        answered = Handler.answered.wait(LIMIT)
        browser.terminate()
        browser.wait(30)
    server.shutdown()
    return Handler.answers[0] if answered else {"error": f"no answer in {LIMIT} seconds"}


def array_of(output: dict[str, Any]) -> Any:
    dtype = np.dtype(output["type"])
    return np.frombuffer(base64.b64decode(output["data"]), dtype).reshape(output["dims"])


if __name__ == "__main__":
    raise SystemExit(main())
