"""Threads of ONNX Runtime, torch and numpy that sleep while they wait for work.

By default they spin, for an answer some microseconds sooner. Tests open thousands of small sessions and compute small
products, with a worker of pytest on every core: a thread that spins there takes the core from another worker. No result
depends on it.
"""

import os

# What libraries read when they are loaded: OpenMP, of torch, and OpenBLAS, of numpy (a power of two of cycles).
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}


def install():
    """Let the threads of all sessions sleep that this process opens from now on, and those of what is loaded later.

    The workers of xdist and the processes that tests start load all libraries later.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)

    import onnxruntime

    class SessionOptions(onnxruntime.SessionOptions):
        def __init__(self):
            super().__init__()
            self.add_session_config_entry("session.intra_op.allow_spinning", "0")

    onnxruntime.SessionOptions = SessionOptions
