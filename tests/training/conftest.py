"""Digits for the programs that tests start: scikit-learn takes longer to import than a short training."""

from __future__ import annotations

import os

import numpy as np
import pytest

STAND_IN = '''
"""Hands out the digits of the installed scikit-learn, from a file."""
import pathlib
import types

import numpy as np


def load_digits():
    return types.SimpleNamespace(**np.load(pathlib.Path(__file__).with_name("digits.npz")))
'''


@pytest.fixture(scope="session")
def quick_digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which `sklearn.datasets` is a file of its digits, and nothing else."""
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn, whose digits these are, is not installed")
    folder = tmp_path_factory.mktemp("digits") / "sklearn"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "datasets.py").write_text(STAND_IN, encoding="utf-8")
    digits = datasets.load_digits()
    np.savez(folder / "digits.npz", data=digits.data, images=digits.images, target=digits.target)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder.parent), os.environ.get("PYTHONPATH", "")])}
