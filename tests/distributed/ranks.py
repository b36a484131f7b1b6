"""Processes of a distributed run, as torchrun starts them: started here, and ended here whatever happens."""

import contextlib
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[2]


def environment(rank, world, port):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    variables |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return variables | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lab")])}


def free_port():
    """Return a port that nothing uses, below those that the system hands out to others while the ranks start."""
    while True:
        port = random.randrange(10_000, 32_768)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def run_ranks(world, *command, timeout=300, wait_for=None):
    """Run a Python command on every rank; return (exit status, what it printed) of each.

    Args:
        world: how many ranks there are.
        command: the script and its arguments.
        timeout: seconds for all.
        wait_for: the ranks that end by themselves; the others are killed then. All unless given.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        logs = [pathlib.Path(folder, str(rank)) for rank in range(world)]
        started = [start(rank, world, port, log, command) for rank, log in enumerate(logs)]
        try:
            for rank in range(world) if wait_for is None else wait_for:
                started[rank].wait(timeout)
        finally:
            for process in started:
                process.kill()
            endings = [(process.wait(), log.read_text()) for process, log in zip(started, logs, strict=True)]
    return endings


def start(rank, world, port, log, command):
    with log.open("w") as stream:
        return subprocess.Popen(
            [sys.executable, *map(str, command)],
            env=environment(rank, world, port),
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
