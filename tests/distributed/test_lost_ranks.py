"""A rank that dies, hangs or fails is named by the other one, which stops; nobody waits for ever."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from amp_transpiler import static
from amp_transpiler.runtime.places import CPUPlace
from tests.distributed import networks
from tests.distributed.ranks import ROOT, run_ranks

pytest.importorskip("torch", reason="the ranks exchange values through torch: install the extra [distributed]")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("killed", "has ended"),
        ("stopped", "was not heard of for"),
        ("failed", "has failed: InputError: input 'label' at [0, 0] is 99"),
    ],
)
def test_a_lost_rank_is_named(way, said):
    first, second = run_ranks(2, ROOT / "tests/distributed/dying.py", way, timeout=120, wait_for=[0])
    assert first[0] == 1
    last = next(line for line in reversed(first[1].splitlines()) if "DistributedError" in line)
    assert "rank 0 cannot go on: rank 1 (process" in last
    assert said in last
    assert "start all ranks again with torchrun, from the last checkpoint" in last
    assert "step 1\n" in first[1]
    assert "step 2\n" not in first[1]
    if way == "killed":
        assert second[0] == -signal.SIGKILL


def test_torchrun_starts_all_again_and_they_go_on(tmp_path):
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    script = ROOT / "tests/distributed/restarting.py"
    done = subprocess.run(
        [sys.executable, *command, script, tmp_path],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    net, exe = networks.perceptron(), static.Executor(CPUPlace())
    net.start(exe)
    for feed in networks.batches(net, 6):
        exe.run(net.main, feed, [], scope=net.scope)
    for name, array in static.load_program_state(tmp_path / "checkpoint").items():
        np.testing.assert_allclose(array, net.scope[name], atol=1e-6, err_msg=name)
