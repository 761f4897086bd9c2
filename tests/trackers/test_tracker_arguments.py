"""What the trackers' callbacks refuse before anything starts, and where they can be imported from."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from holdfast import integration
from holdfast.cli.main import main as holdfast
from holdfast.errors import InvalidInputError, InvalidTypeError
from holdfast.integration import aim, comet, mlflow, wandb
from holdfast.integration.trackers.callback import TrackerCallback

KEY = "k" * 40
CALLBACKS = {
    "aim": ("AimLoggerCallback", "aim", "aim", {}),
    "comet": ("CometLoggerCallback", "comet_ml", "comet-ml", {"online": False}),
    "mlflow": ("MLflowLoggerCallback", "mlflow", "mlflow", {}),
    "wandb": ("WandbLoggerCallback", "wandb", "wandb", {"project": "p", "mode": "offline"}),
}


@pytest.fixture(autouse=True)
def installed(monkeypatch, tmp_path):
    """Whether or not the libraries are: they are found, and nothing is configured."""
    for module in (aim, comet, mlflow, wandb):
        monkeypatch.setattr(module, "require_library", lambda *_: None)
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_PROJECT_NAME", "WANDB_MODE", "COMET_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("tracker", CALLBACKS)
def test_a_missing_library_is_named_with_its_extra(tracker):
    name, module, package, arguments = CALLBACKS[tracker]
    code = f"""
import sys
sys.modules[{module!r}] = None
from holdfast.integration import {name}
try:
    {name}(**{arguments!r})
except ImportError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert package in said
    assert f"pip install 'holdfast[{tracker}]'" in said


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: wandb.WandbLoggerCallback(mode="offline"), "WANDB_PROJECT_NAME"),
        (lambda: wandb.WandbLoggerCallback("a/b", mode="offline"), "none of"),
        (lambda: wandb.WandbLoggerCallback("p"), "wandb login"),
        (lambda: wandb.WandbLoggerCallback("p", api_key="short"), "at least 40 characters"),
        (lambda: wandb.WandbLoggerCallback("p", api_key=KEY, api_key_file="x"), "give one of them"),
        (lambda: wandb.WandbLoggerCallback("p", api_key_file="/nowhere"), "cannot be read"),
        (lambda: wandb.WandbLoggerCallback("p", mode="sideways"), "use one of"),
        (lambda: wandb.WandbLoggerCallback("p", mode="offline", id="x"), "holdfast chooses it"),
        (lambda: wandb.WandbLoggerCallback("p", mode="offline", upload_timeout=-1), "seconds"),
        (lambda: mlflow.MLflowLoggerCallback("foo://x"), "does not know the scheme 'foo'"),
        (lambda: mlflow.MLflowLoggerCallback(experiment_name=""), "not empty"),
        (lambda: comet.CometLoggerCallback(), "comet init"),
        (lambda: comet.CometLoggerCallback(online=False, experiment_key="x"), "holdfast chooses it"),
        (lambda: aim.AimLoggerCallback(run_hash="x"), "holdfast chooses it"),
        (lambda: aim.AimLoggerCallback(experiment_name=" "), "not empty"),
    ],
)
def test_what_cannot_work_is_refused_in_words(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: wandb.WandbLoggerCallback("p", mode="offline", excludes="loss"),
        lambda: mlflow.MLflowLoggerCallback(tags=["a"]),
        lambda: comet.CometLoggerCallback(online="no"),
        lambda: comet.CometLoggerCallback(online=False, tags="a"),
        lambda: aim.AimLoggerCallback(repo=3),
        lambda: aim.AimLoggerCallback(metrics="loss"),
    ],
)
def test_a_wrong_type_is_refused(make):
    with pytest.raises(InvalidTypeError):
        make()


def test_a_key_is_found_in_every_place(monkeypatch, tmp_path):
    assert wandb.WandbLoggerCallback("p", api_key=KEY).target(None).arguments["api_key"] == KEY
    (tmp_path / "key").write_text(f"{KEY}\n")
    found = wandb.WandbLoggerCallback("p", api_key_file="key").target(None)
    assert found.arguments["api_key"] == KEY
    (tmp_path / ".netrc").write_text(f"machine api.wandb.ai login user password {KEY}\n")
    (tmp_path / ".netrc").chmod(0o600)
    wandb.WandbLoggerCallback("p")
    (tmp_path / ".netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    wandb.WandbLoggerCallback("p")


def test_keys_are_not_stored_with_the_experiment():
    one = pickle.loads(pickle.dumps(wandb.WandbLoggerCallback("p", api_key=KEY)))
    two = pickle.loads(pickle.dumps(comet.CometLoggerCallback(api_key=KEY)))
    assert one.api_key is None
    assert two.experiment_kwargs == {}
    three = pickle.loads(pickle.dumps(mlflow.MLflowLoggerCallback("http://h:5000", tracking_token=KEY)))
    assert KEY.encode() not in pickle.dumps([one, two, three])


@pytest.mark.parametrize(
    "address", ["postgresql://me:hush@h/db", "https://me:hush@h:5000", "mysql+pymysql://me:hush@h/db"]
)
def test_an_address_with_a_password_is_refused_and_not_repeated(address, monkeypatch):
    with pytest.raises(InvalidInputError, match="MLFLOW_TRACKING_URI") as refused:
        mlflow.MLflowLoggerCallback(address)
    assert "hush" not in str(refused.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    assert mlflow.MLflowLoggerCallback().target(None).arguments["tracking_uri"] is None


def test_the_command_that_repairs_has_the_same_arguments_and_no_secrets(tmp_path):
    from holdfast.views.trials import ExperimentInfo

    info = ExperimentInfo(root=tmp_path / "a b", name="a b", trainable_name="train")
    callback = wandb.WandbLoggerCallback("p", api_key=KEY, entity="team", group="g")
    assert callback.export_command(info) == (
        f"holdfast export '{tmp_path}/a b' --to wandb --set project=p --set group=g --set entity=team"
    )


def test_all_names_are_where_scripts_for_ray_look_for_them():
    from holdfast.compat.air.integrations.comet import CometLoggerCallback
    from holdfast.compat.air.integrations.mlflow import MLflowLoggerCallback, setup_mlflow
    from holdfast.compat.air.integrations.wandb import WandbLoggerCallback, setup_wandb
    from holdfast.compat.tune.logger.aim import AimLoggerCallback

    for kind in (CometLoggerCallback, MLflowLoggerCallback, WandbLoggerCallback, AimLoggerCallback):
        assert issubclass(kind, TrackerCallback)
        assert getattr(integration, kind.__name__) is kind
    assert integration.setup_wandb is setup_wandb
    assert integration.setup_mlflow is setup_mlflow


@pytest.mark.parametrize("function", ["setup_wandb", "setup_mlflow"])
def test_importing_them_imports_no_library(function):
    code = f"""
import sys
from holdfast.integration import AimLoggerCallback, CometLoggerCallback, {function}
print(sorted({{"wandb", "mlflow", "comet_ml", "aim", "tensorboard"}} & sys.modules.keys()))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"


# --- the command line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "mlflow", "--set", "nothing"], "write NAME=VALUE"),
        (["--to", "mlflow", "--set", "foo=1"], "mlflow takes only tracking_uri"),
        (["--to", "mlflow", "foo://x"], "does not know the scheme"),
        (["--to", "wandb", "--set", "mode=offline"], "WANDB_PROJECT_NAME"),
        (["--to", "wandb", "--set", "upload_timeout=3"], "leave it out"),
        (["--to", "tensorboard", "--set", "a=b"], "takes none"),
        (["--to", "aim", "--rows"], "leave them out"),
        (["--to", "aim", "--format", "optuna"], "exclude each other"),
        (["x.csv", "--set", "a=b"], "name that with --to"),
        (["x.csv", "--metric", "loss"], "leave them out"),
        ([], "Name the file to write"),
    ],
)
def test_the_command_line_refuses_in_words_with_exit_code_2(words, said, capsys, tmp_path):
    assert holdfast(["export", str(tmp_path / "exp"), *words]) == 2
    assert said in capsys.readouterr().err


def test_an_experiment_that_does_not_exist_is_said_before_a_library_is_loaded(capsys, tmp_path):
    assert holdfast(["export", str(tmp_path / "exp"), "--to", "mlflow", f"sqlite:///{tmp_path}/m.db"]) == 2
    assert not (tmp_path / "m.db").exists()
