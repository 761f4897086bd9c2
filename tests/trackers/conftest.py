"""Modules beside these tests, which trials and the trackers' processes import too."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of MLflow, to be copied: making its tables takes seven seconds."""
    import warnings

    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path
