"""The program of test_cuda_sessions.py: it runs on stand-ins, and tells in one line of JSON what it saw."""

from __future__ import annotations

import gc
import json
import logging
import sys
import threading

import numpy as np
import onnx.parser

import launches
from amp_transpiler import CUDAPlace, Session
from amp_transpiler.errors import AmpError
from amp_transpiler.runtime.ort import SessionSettings, create_session

PLACE = CUDAPlace(0)
BODY = """g (float[{n}, 4, 8, 8] x) => (float[{n}, 4, 8, 8] y, {kind}[{n}, 4, 8, 8] z)
<float[4, 4, 1, 1] w = {{1,2,3,4, 5,6,7,8, 9,8,7,6, 5,4,3,2}}, float[4] b = {{1,2,3,4}}>
{{ c = Conv(x, w, b) r = Relu(c) y = Softplus(r) z = Cast<to = {to}>(r) }}"""
ON_CPU = "g (float[2, 4, 4] x) => (float[2] y) { r = Relu(x) y = Det(r) }"


def model(n="2", kind="float16", to="10"):
    return parsed(BODY.format(n=n, kind=kind, to=to))


def parsed(body):
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {body}')


def feed(shape=(2, 4, 8, 8)):
    return {"x": np.ones(shape, np.float32)}


def counted(run):
    for _ in range(2):
        run()
    with launches.counting() as counts:
        run()
    return {"launches": counts["launches"], "graphs": counts["api"].get("cudaGraphLaunch", 0), "kinds": counts["kinds"]}


def memsets(run):
    with launches.counting() as counts:
        run()
    return counts["memset"]["count"]


def of(proto, fed, **options):
    """Open a session, run it and a bound run of it, close it, and tell what happened."""
    before = launches.reserved()
    session = Session(proto, PLACE, **options)
    told = {"memsets": [memsets(lambda: session.run(fed)) for _ in range(3)]}
    told |= {"run": counted(lambda: session.run(fed)), "bound": counted(session.bind(fed))}
    told |= {"graph": session.cuda_graph, "why": session.no_cuda_graph, "tf32": session.tf32}
    told |= {
        "options": session.provider_options,
        "set": session.provider_options.why,
        "types": [array.dtype.name for array in session.run(fed)],
    }
    session.close()
    gc.collect()
    told["left"] = launches.reserved() - before
    return told


def of_default_session(proto, fed, options):
    """Return the memory that three runs of a session with nothing but these options clear."""
    session = create_session(proto.SerializeToString(), SessionSettings(), PLACE.providers(options))
    wrapped = Session.over(session, PLACE)
    return [memsets(lambda: wrapped.run(fed)) for _ in range(3)]


def error(proto, **options):
    try:
        Session(proto, PLACE, **options)
    except AmpError as refused:
        return f"{type(refused).__name__}: {refused}"
    return ""


def in_two_threads():
    session = Session(model(), PLACE)
    counts = [counted(lambda: session.run(feed()))]
    thread = threading.Thread(target=lambda: counts.append(counted(lambda: session.run(feed()))))
    thread.start()
    thread.join()
    return counts


def refused():
    """Have the device refuse to capture."""
    session = Session(model(), PLACE)
    run = session._graph._session.run_with_iobinding

    def fail(binding, options=None):
        if options is None:
            from amp_transpiler.runtime.ort import ORT_ERRORS

            raise ORT_ERRORS[0]("operation not permitted when stream is capturing")
        return run(binding, options)

    session._graph._session.run_with_iobinding = fail
    return [counted(lambda: session.run(feed()))["launches"], session.cuda_graph, session.no_cuda_graph]


def main():
    logging.basicConfig(level=logging.ERROR)
    for _ in range(2):  # ONNX Runtime takes memory for values that belong to no session, and keeps it
        of(model(), feed())
    told = {
        "graph": of(model(), feed()),
        "bfloat16": of(model(kind="bfloat16", to="16"), feed()),
        "none": of(model(), feed(), cuda_graph=False),
        "exact": of(model(), feed(), cuda_graph=False, provider_options={"use_tf32": "0"}),
        "fused": {"memsets": of_default_session(model(), feed(), {"fuse_conv_bias": "1"})},
        "nhwc": of(model(), feed(), layout="nhwc", cuda_graph=False),
        "free": of(model("N"), feed()),
        "cpu": of(parsed(ON_CPU), feed((2, 4, 4))),
        "cpu must": error(parsed(ON_CPU), cuda_graph=True),
        "unknown": error(model(), provider_options={"nonsense": "1"}),
        "faulty": error(model(), provider_options={"fuse_conv_bias": "1"}),
        "threads": in_two_threads(),
        "refused": refused(),
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
