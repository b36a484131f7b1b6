"""The configuration for pre-commit that a page shows starts the same as the hook of this repository."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
yaml = pytest.importorskip("yaml", reason="PyYAML, which reads the two files, is not installed")


def test_the_page_shows_the_hook_of_this_repository():
    page = (ROOT / "docs/howto/pre_commit.md").read_text(encoding="utf-8")
    (shown,) = yaml.safe_load(re.search(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1])["repos"][0][
        "hooks"
    ]
    (ours,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert shown.pop("language") == "system"  # the package is there
    assert ours.pop("language") == "python"  # pre-commit installs it
    assert ours.pop("additional_dependencies") == ["onnxruntime"]  # which is none of the package's own
    del ours["description"]
    assert shown == ours
