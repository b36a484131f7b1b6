"""Threads of sessions: as many as the process has cores, and on those alone."""

from __future__ import annotations

import os

import pytest

from amp_transpiler.runtime.ort import SessionSettings

ROWS = [
    # cores of the machine, cores of the process, threads asked for, threads of the session; 0 is ONNX Runtime's choice
    (8, 8, None, 0),
    (8, 2, None, 2),
    (8, 1, None, 1),
    (8, 2, 4, 4),
    (None, 1, None, 0),
]


@pytest.mark.parametrize(("machine", "process", "asked", "expected"), ROWS)
def test_a_session_has_as_many_threads_as_the_process_has_cores(monkeypatch, machine, process, asked, expected):
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(process)), raising=False)
    assert SessionSettings(threads=asked).options().intra_op_num_threads == expected


def test_without_sets_of_cores_onnx_runtime_chooses(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert SessionSettings().options().intra_op_num_threads == 0
