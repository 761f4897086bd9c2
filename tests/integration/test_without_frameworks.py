"""What happens where a framework is missing, and arguments that all callbacks share."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

import holdfast as tune
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.integration.reporting import MetricChoice, Saving

FRAMEWORKS = {
    "keras": ("keras", "keras"),
    "lightgbm": ("lightgbm", "lightgbm"),
    "pytorch_lightning": ("lightning", "lightning"),
    "sklearn": ("sklearn", "sklearn"),
    "torch": ("torch", "torch"),
    "transformers": ("transformers", "transformers"),
    "xgboost": ("xgboost", "xgboost"),
}


@pytest.mark.parametrize("module", FRAMEWORKS)
def test_a_missing_framework_is_named_with_its_extra(module):
    package, extra = FRAMEWORKS[module]
    code = f"""
import sys
sys.modules[{package!r}] = sys.modules["pytorch_lightning"] = None
try:
    import holdfast.integration.{module}
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert package.replace("sklearn", "scikit-learn") in said
    assert f"pip install 'holdfast[{extra}]'" in said


def test_keras_without_its_backend_names_the_setting():
    """Installing Keras again changes nothing: it chooses a backend by a variable, and that one is missing."""
    if find_spec("keras") is None:
        pytest.skip("Keras is not installed: `make test` installs what the tests need")
    code = """
import os, sys
os.environ["KERAS_BACKEND"] = "tensorflow"
sys.modules["tensorflow"] = None
try:
    import holdfast.integration.keras
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "KERAS_BACKEND=torch" in said
    assert "pip install" not in said


def test_integrations_are_listed_and_a_wrong_name_is_an_attribute_error():
    assert set(dir(tune.integration)) >= set(FRAMEWORKS)
    assert not hasattr(tune.integration, "no_such_framework")


def test_metrics_are_chosen_by_name_list_or_dict():
    found = {"loss": 1.0, "auc": 0.5}
    assert MetricChoice().of(found) == found
    assert MetricChoice("auc").of(found) == {"auc": 0.5}
    assert MetricChoice(["auc", "loss"]).of(found) == {"auc": 0.5, "loss": 1.0}
    assert MetricChoice({"score": "auc"}).of(found) == {"score": 0.5}
    assert MetricChoice("error", lambda all_: {"error": 1 - all_["auc"]}).of(found) == {"error": 0.5}


def test_a_wrong_metric_names_those_that_exist():
    with pytest.raises(InvalidInputError, match=r"no 'acc'.*\['auc', 'loss'\]"):
        MetricChoice({"accuracy": "acc"}).of({"loss": 1.0, "auc": 0.5})
    with pytest.raises(InvalidInputError, match="has no evaluation"):
        MetricChoice("loss").of({})


@pytest.mark.parametrize("metrics", [3, [3], {"loss": 3}, {3: "loss"}, {"loss"}])
def test_metrics_of_another_type_are_refused(metrics):
    with pytest.raises(InvalidTypeError, match="metrics="):
        MetricChoice(metrics)


def test_a_result_function_that_cannot_be_called_is_refused():
    with pytest.raises(InvalidTypeError, match="results_postprocessing_fn='mean'"):
        MetricChoice("loss", "mean")


@pytest.mark.parametrize("frequency", [-1, 1.5, True, "1"])
def test_a_frequency_that_is_no_whole_number_is_refused(frequency):
    with pytest.raises(InvalidInputError, match="frequency="):
        Saving("model", frequency, True)


@pytest.mark.parametrize("filename", ["", "a/b", None])
def test_a_filename_with_a_directory_is_refused(filename):
    with pytest.raises(InvalidInputError, match="filename="):
        Saving(filename, 1, True)
