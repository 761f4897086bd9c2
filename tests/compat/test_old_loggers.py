"""``tune.run(loggers=[Class])``: loggers that are made once for each trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from compat_trainables import Count
from holdfast.compat.tune.logger import (
    DEFAULT_LOGGERS,
    CSVLogger,
    JsonLogger,
    Logger,
    TBXLogger,
    UnifiedLogger,
    pretty_print,
)

from holdfast.compat import tune

pytestmark = pytest.mark.filterwarnings("ignore:tune.run.. takes older spellings:DeprecationWarning")


class Diary(Logger):
    def _init(self) -> None:
        self._file = Path(self.logdir) / "diary.txt"
        self._lines: list[str] = [f"begin {self.trial.trial_id}"]

    def on_result(self, result: dict[str, Any]) -> None:
        self._lines.append(f"result {result['x']}")

    def flush(self) -> None:
        with open(self._file, "a") as file:
            file.writelines(f"{line}\n" for line in self._lines)
        self._lines.clear()

    def close(self) -> None:
        with open(self._file, "a") as file:
            file.write("close\n")


def test_a_logger_is_made_for_each_trial_and_hears_all_of_it(tmp_path: Path) -> None:
    analysis = tune.run(Count, num_samples=2, loggers=[Diary, *DEFAULT_LOGGERS], storage_path=tmp_path, verbose=0)
    for trial in analysis.trials:
        told = (Path(trial.path) / "diary.txt").read_text().splitlines()
        assert told == [f"begin {trial.trial_id}", "result 1", "result 2", "result 3", "close"]
        assert (Path(trial.path) / "progress.csv").read_text().count("\n") == 4


def test_loggers_are_flushed_with_checkpoints(tmp_path: Path) -> None:
    class Flushes(Logger):
        def on_result(self, result: dict[str, Any]) -> None:
            pass

        def flush(self) -> None:
            with open(Path(self.logdir) / "flushes", "a") as file:
                file.write(".")

    analysis = tune.run(Count, checkpoint_freq=1, loggers=[Flushes], storage_path=tmp_path, verbose=0)
    assert len((Path(analysis.trials[0].path) / "flushes").read_text()) >= 2


def test_several_loggers_can_be_one(tmp_path: Path) -> None:
    heard: list[str] = []

    class Listener(Logger):
        def on_result(self, result: dict[str, Any]) -> None:
            heard.append(f"result {result['x']}")

        def update_config(self, config: dict[str, Any]) -> None:
            heard.append(f"config {config}")

        def flush(self) -> None:
            heard.append("flush")

        def close(self) -> None:
            heard.append("close")

    logger = UnifiedLogger({}, str(tmp_path), loggers=[Listener, CSVLogger, JsonLogger, TBXLogger])
    logger.on_result({"x": 1})
    logger.update_config({"y": 2})
    logger.flush()
    logger.close()
    assert heard == ["result 1", "config {'y': 2}", "flush", "close"]


def test_a_result_is_printed_indented_without_its_config() -> None:
    text = pretty_print({"loss": 0.5, "eval": {"auc": 0.9, "n": None}, "config": {"lr": 1}, "done": False})
    assert text == "done: False\neval:\n  auc: 0.9\nloss: 0.5"
