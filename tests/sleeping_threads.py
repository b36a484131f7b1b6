"""Threads of ONNX Runtime that sleep while they wait for work.

By default they spin, for an answer some microseconds sooner. Tests open thousands of small sessions, with a worker of
pytest on every core: a thread that spins there takes the core from another worker. No result depends on it.
"""


def install():
    """Let the threads of all sessions sleep that this process opens from now on."""
    import onnxruntime

    class SessionOptions(onnxruntime.SessionOptions):
        def __init__(self):
            super().__init__()
            self.add_session_config_entry("session.intra_op.allow_spinning", "0")

    onnxruntime.SessionOptions = SessionOptions
