"""A package that is hidden looks as if it were not installed, for as long as it is hidden."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from training_core.hidden_packages import hidden

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A module that can be imported and was not yet."""
    (tmp_path / "seldom_needed.py").write_text("NUMBER = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "seldom_needed"
    sys.modules.pop("seldom_needed", None)


def test_a_hidden_package_is_not_found_and_is_there_again_afterwards(package):
    with hidden(package):
        assert importlib.util.find_spec(package) is None
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(package)
    assert package not in sys.modules
    assert importlib.import_module(package).NUMBER == 7


def test_a_package_that_is_in_use_is_not_hidden(package):
    used = importlib.import_module(package)
    with hidden(package):
        assert importlib.import_module(package) is used
    assert sys.modules[package] is used


def test_an_error_inside_brings_the_package_back(package):
    with pytest.raises(KeyError), hidden(package):
        raise KeyError
    assert importlib.import_module(package).NUMBER == 7


def test_transformers_does_without_sklearn_and_scipy_and_whoever_imports_them_gets_them():
    code = """
import sys
from training_core.hidden_packages import tell_transformers_to_do_without
tell_transformers_to_do_without()
from transformers.utils import is_scipy_available, is_sklearn_available
assert not is_sklearn_available() and not is_scipy_available()
assert "sklearn" not in sys.modules and "scipy" not in sys.modules
from sklearn.metrics import roc_curve
print(roc_curve.__module__)
"""
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith("sklearn.metrics")
