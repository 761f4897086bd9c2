"""Reads the directory of an experiment of Ray Tune 2.x.

Owns the files of that format: ``experiment_state-*.json``, ``tuner.pkl`` and what lies in the directories of trials.
Names in these files are used only if they are names of something directly below the directory, whatever path stands in
front of them: the directory may have been moved. What a record of ours could not hold is refused or replaced: Python's
reader of JSON takes half characters and any depth, the journal neither. Must never follow a link, and must never write.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import xxhash

from holdfast.core.events import ErrorFacts
from holdfast.core.retention import Retention
from holdfast.errors import DamageError, ExperimentNotFoundError, InvalidInputError
from holdfast.journal.records import MAX_NESTING
from holdfast.ray_import import inert
from holdfast.ray_import.configs import is_small, plain_config
from holdfast.ray_import.facts import FINAL, KnownCheckpoint, RayExperiment, RayTrial
from holdfast.ray_import.gaps import fill_gap
from holdfast.space.naming import why_no_dirname, why_no_name
from holdfast.storage.untrusted import kind_of, open_regular, read_regular

STATE_FILES = re.compile(r"experiment_state-.+\.json")
STATUSES = (*FINAL, "RUNNING", "PENDING", "PAUSED")
MAX_STATE_BYTES = 4 << 30
MAX_TEXT_BYTES = 256 * 1024
"""The most of a failure's text that is kept: it stands in the journal."""

_FAILURE = re.compile(r"^Failure # \d+ \(occurred at [^)\n]*\)$", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$", re.DOTALL)
_LINE = re.compile(r'^\s*File "([^"\n]+)", line (\d+)', re.MULTILINE)
_NUMBER = re.compile(r"(\d+)(?:_|$)")


def read_experiment(path: Path, state_name: str = "") -> RayExperiment:
    """Read an experiment.

    Args:
        path: Its directory.
        state_name: Which of several ``experiment_state-*.json`` to read; "" for the last one by name.

    Raises:
        ExperimentNotFoundError: It is no directory, or holds no such file.
        DamageError: The file is empty, cut short, or says what no Ray Tune writes.
    """
    file = _choose_state(path, state_name)
    data = _read_state(path, file)
    pairs, runner = _parsed(data, path, file)
    experiment = RayExperiment(
        str(path), file.name, xxhash.xxh3_128_hexdigest(data), [], "", _number(runner.get("_start_time"))
    )
    trials = []
    for place, (fixed, changing) in enumerate(pairs):
        trials.append((_order(fixed, place), _read_trial(path, fixed, changing, experiment)))
    experiment.trials = [trial for _, trial in sorted(trials, key=lambda each: each[0])]
    _check_trials(experiment, file)
    experiment.trainable = experiment.trials[0].trainable if experiment.trials else ""
    metric = runner.get("_metric")
    experiment.metric = metric if isinstance(metric, str) else None
    _read_stop(experiment, pairs)
    _read_tuner(path, experiment)
    experiment.is_class = _is_class(experiment)
    _note_unlisted(path, experiment)
    return experiment


# --- the file of the state


def _choose_state(path: Path, wanted: str) -> Path:
    try:
        names = sorted(entry.name for entry in os.scandir(path) if STATE_FILES.fullmatch(entry.name))
    except FileNotFoundError:
        raise ExperimentNotFoundError(f"There is no directory {path}. Nothing was written.") from None
    except NotADirectoryError:
        raise ExperimentNotFoundError(
            f"{path} is not a directory. Give the directory of an experiment of Ray Tune. Nothing was written."
        ) from None
    if not names:
        raise ExperimentNotFoundError(
            f"{path} holds no experiment_state-*.json, so it is no experiment of Ray Tune "
            f"2.x.{_nearby(path)} Nothing was written."
        )
    if not wanted:
        return path / names[-1]
    if os.path.basename(wanted) not in names:
        raise InvalidInputError(
            f"There is no {wanted!r} in {path}. There are: {', '.join(names)}. Nothing was written."
        )
    return path / os.path.basename(wanted)


def _nearby(path: Path) -> str:
    if (path / ".holdfast" / "spec.json").exists():
        return " It is an experiment of holdfast: use it as it is, or `holdfast copy` it."
    found = sorted({str(each.parent) for each in path.glob("*/experiment_state-*.json")})[:3]
    if not found and next(path.parent.glob("experiment_state-*.json"), None) is not None:
        found = [str(path.parent)]
    return f" Did you mean {' or '.join(found)}?" if found else ""


def _read_state(path: Path, file: Path) -> bytes:
    with open(open_regular(file), "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size > MAX_STATE_BYTES:
            raise DamageError(f"{file} has {size:,} bytes, more than any such file. Nothing was written.")
        data = opened.read()
    if not data.strip():
        raise _damaged(path, file, "it is empty; a driver that was killed leaves such a file")
    return data


def _parsed(data: bytes, path: Path, file: Path) -> tuple[list[tuple[dict[str, Any], dict[str, Any]]], dict[str, Any]]:
    """The two texts of each trial, and what the file tells of the experiment."""
    try:
        content = loads(data)
    except ValueError as error:
        raise _damaged(path, file, f"it is truncated or no JSON ({error})") from None
    told = content.get("trial_data") if isinstance(content, dict) else None
    if not isinstance(told, list):
        older = isinstance(content, dict) and "checkpoints" in content
        why = "it was written by a Ray Tune before 2.5, whose format is not read" if older else "it lists no trials"
        raise _damaged(path, file, why)
    pairs = []
    try:
        for one, other in told:
            fixed, changing = loads(one), loads(other)
            if not isinstance(fixed, dict) or not isinstance(changing, dict):
                raise ValueError("a trial is not two objects")
            pairs.append((fixed, changing))
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged(path, file, f"one of its trials cannot be read ({error})") from None
    if not pairs:
        raise _damaged(path, file, "it lists no trials; a driver that was killed early leaves such a file")
    runner = content.get("runner_data")
    return pairs, runner if isinstance(runner, dict) else {}


def _damaged(path: Path, file: Path, why: str) -> DamageError:
    older = [name for name in sorted(os.listdir(path)) if STATE_FILES.fullmatch(name) and name < file.name]
    way = "There is no older one beside it; take it from a copy of the directory."
    if older:
        way = f"That of an older session is there: add --state {older[-1]} to import it."
    return DamageError(f"{file} cannot be imported: {why}. {way} Nothing was written.")


# --- one trial


def _order(fixed: dict[str, Any], place: int) -> tuple[float, float, int]:
    """Trials are numbered in their tags, and in most ids, as they are created; the list has another order."""
    tag = _NUMBER.match(_text(fixed.get("experiment_tag")))
    tail = _text(fixed.get("trial_id")).rpartition("_")[2]
    return (
        int(tag[1]) if tag else math.inf,
        int(tail) if tail.isascii() and tail.isdecimal() else math.inf,
        place,
    )


def _read_trial(path: Path, fixed: dict[str, Any], changing: dict[str, Any], experiment: RayExperiment) -> RayTrial:
    identity = _text(fixed.get("trial_id"))
    config = fixed.get("config")
    evaluated = fixed.get("evaluated_params")
    trial = RayTrial(
        id=identity,
        status=_text(fixed.get("status")),
        trainable=_text(fixed.get("trainable_name")),
        config=plain_config(config if isinstance(config, dict) else {}),
        params=tuple(map(str, evaluated)) if isinstance(evaluated, dict) else (),
        tag=_text(fixed.get("experiment_tag")),
        name=_text(fixed.get("custom_trial_name")),
        request=_request(fixed.get("placement_group_factory")),
        started_at=_number(changing.get("start_time")),
        ended_at=_number(changing.get("last_result_time")),
        num_failures=int(_number(changing.get("num_failures"))),
    )
    folder = _text(fixed.get("relative_logdir"))
    trial.dirname = folder if folder and not why_no_dirname(folder, new=True) else ""
    if trial.dirname and _is_directory(path / folder):
        trial.folder = folder
    elif folder and _text(fixed.get("status")) != "PENDING":
        experiment.notes.append(
            f"trial {identity} has no directory {folder!r} below {path}: its history and checkpoints are missing"
        )
    _read_manager(trial, changing.get("checkpoint_manager"), experiment)
    torn = False
    if trial.folder:
        torn = _read_rows(path / trial.folder / "result.json", trial, experiment)
        trial.failures = _read_failures(path / trial.folder, changing.get("error_filename"))
    read = len(trial.rows)
    gaps = fill_gap(trial, changing.get("last_result"))
    if gaps:
        experiment.notes.append(f"of trial {identity} these iterations are not known and are left out: {gaps}")
    if torn and len(trial.rows) == read:
        experiment.notes.append(f"the last line of {folder}/result.json is cut short and is left out")
    return trial


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _request(pickled: Any) -> dict[str, float] | None:
    """The resources of a trial; None for one CPU."""
    if not isinstance(pickled, str):
        return None
    total: dict[str, float] = {}
    with contextlib.suppress(ValueError, inert.Unreadable):
        bundles = _get(inert.load(bytes.fromhex(pickled)), "_bundles")
        for bundle in bundles if isinstance(bundles, list) else ():
            for name, amount in bundle.items() if isinstance(bundle, dict) else ():
                if isinstance(name, str) and isinstance(amount, int | float) and 0 < amount < 1e6:
                    total[name] = total.get(name, 0.0) + float(amount)
    return None if not total or total == {"CPU": 1.0} else total


def _read_manager(trial: RayTrial, value: Any, experiment: RayExperiment) -> None:
    """What the driver knew of the trial's checkpoints."""
    try:
        manager = inert.load(bytes.fromhex(value["value"]))
        results = _get(manager, "_checkpoint_results")
        if not isinstance(results, list):
            raise ValueError("it lists none")
    except (inert.Unreadable, ValueError, TypeError, KeyError) as error:
        experiment.notes.append(
            f"the list of checkpoints of trial {trial.id} cannot be read ({error}): its results and directory are used"
        )
        return
    trial.saved = [saved for result in results if (saved := _saved(result)) is not None]
    trial.latest = _saved(_get(manager, "_latest_checkpoint_result")) or (trial.saved[-1] if trial.saved else None)


def _saved(result: Any) -> KnownCheckpoint | None:
    """A checkpoint by the last two parts of its path: what stands before them is of the place where it was made."""
    path, metrics = _get(_get(result, "checkpoint"), "path"), _get(result, "metrics")
    if not isinstance(path, str):
        return None
    parts = path.rstrip("/").replace("\\", "/").split("/")[-2:]
    if len(parts) < 2 or any(map(why_no_name, parts)):
        return None
    iteration = metrics.get("training_iteration") if isinstance(metrics, dict) else None
    return KnownCheckpoint(parts[0], parts[1], iteration if isinstance(iteration, int) else 0, _row_of(metrics))


def _row_of(metrics: Any) -> dict[str, Any] | None:
    """A pickled result as its line in ``result.json`` would be, objects by the names of their classes; None if none."""
    if not isinstance(metrics, dict) or not is_small(metrics):
        return None
    try:
        row: dict[str, Any] = loads(json.dumps(metrics, default=inert.type_name))
    except (TypeError, ValueError, RecursionError):
        return None
    return row


def _get(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, inert.Record) else None


def _read_rows(file: Path, trial: RayTrial, experiment: RayExperiment) -> bool:
    """Read what a trial has reported; returns whether the last line is cut short."""
    try:
        opened = os.fdopen(open_regular(file), "rb")
    except FileNotFoundError:
        if trial.status != "PENDING":
            experiment.notes.append(
                f"trial {trial.id} has no result.json: of its results only those in {experiment.state_file} are known"
            )
        return False
    except (DamageError, OSError) as error:
        experiment.notes.append(f"{file.parent.name}/{file.name} is not read: {error}")
        return False
    bad, torn, rows = 0, False, list[dict[str, Any]]()
    with opened:
        for line in opened:
            try:
                row = loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                rows.append(row)
            elif not line.endswith(b"\n"):  # it was never finished, or is cut off
                torn = True
            elif line.strip():
                bad += 1
    trial.rows = rows
    if bad:
        experiment.notes.append(f"{bad} lines of {file.parent.name}/{file.name} cannot be read and are left out")
    return torn


def _read_failures(folder: Path, name: Any) -> list[ErrorFacts]:
    """The texts of a trial's failures, the last one last."""
    if not isinstance(name, str) or why_no_name(os.path.basename(name)):
        return []
    try:
        text = read_regular(folder / os.path.basename(name)).decode(errors="replace")
    except (OSError, DamageError):
        return []
    parts = [part.strip("\n") for part in _FAILURE.split(_COLOURS.sub("", text))]
    return [_error_facts(part) for part in parts if part.strip()]


def _error_facts(text: str) -> ErrorFacts:
    text = text[-MAX_TEXT_BYTES:]
    lines = text.rstrip().splitlines()
    at = next((n for n in reversed(range(len(lines))) if not lines[n][:1].isspace() and _RAISED.match(lines[n])), None)
    raised = None if at is None else _RAISED.match("\n".join(lines[at:]))
    where = _LINE.findall(text)
    location = f"{where[-1][0]}:{where[-1][1]}" if where else ""
    kind, message = (raised[1], raised[2] or "") if raised else ("", lines[-1] if lines else "")
    return ErrorFacts(type=kind, message=message, location=location, traceback=text)


# --- the experiment


def _check_trials(experiment: RayExperiment, file: Path) -> None:
    seen: set[str] = set()
    folders: set[str] = set()
    for trial in experiment.trials:
        why = why_no_name(trial.id) or ("two trials have it" if trial.id in seen else "")
        if not why and trial.status not in STATUSES:
            why = f"its status is {trial.status!r}"
        if why:
            raise DamageError(
                f"{file} cannot be imported: the trial id {trial.id!r} cannot be used: {why}. Nothing was written."
            )
        seen.add(trial.id)
        if trial.dirname in folders:
            raise DamageError(
                f"{file} cannot be imported: two trials have the directory {trial.dirname!r}. Nothing was written."
            )
        folders.update(filter(None, [trial.dirname]))
        trial.tag, trial.name = trial.tag.replace("\0", ""), trial.name.replace("\0", "")


def _read_stop(experiment: RayExperiment, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    stop, failures = pairs[0][0].get("stopping_criterion"), pairs[0][0].get("max_failures")
    experiment.stop = _plain_stop(stop)
    experiment.max_failures = _count(failures, -1) or 0


def _plain_stop(stop: Any) -> dict[str, Any] | None:
    plain = isinstance(stop, dict) and all(isinstance(value, int | float) for value in stop.values())
    return {str(key): value for key, value in stop.items()} if plain and stop else None


def _read_tuner(path: Path, experiment: RayExperiment) -> None:
    """What ``tuner.pkl`` adds: metric, mode, number of samples, stop rule, rules for failures and checkpoints."""
    try:
        stored = inert.load(read_regular(path / "tuner.pkl"))
        if not isinstance(stored, dict):
            raise inert.Unreadable("it is no dict")
    except (FileNotFoundError, IsADirectoryError):
        experiment.notes.append("there is no tuner.pkl: mode and number of samples are not known")
        return
    except (inert.Unreadable, DamageError, OSError) as error:
        experiment.notes.append(f"tuner.pkl cannot be read ({error}): mode and number of samples are not known")
        return
    tune, run = stored.get("_tune_config"), stored.get("_run_config")
    metric, mode = _get(tune, "metric"), _get(tune, "mode")
    experiment.metric = metric if isinstance(metric, str) else experiment.metric
    experiment.mode = mode if mode in ("min", "max") else None
    experiment.num_samples = _count(_get(tune, "num_samples"), -1)
    experiment.max_failures = _count(_get(_get(run, "failure_config"), "max_failures"), -1) or experiment.max_failures
    stop = _get(run, "stop")
    experiment.stop = _plain_stop(stop) or experiment.stop
    if stop and not isinstance(stop, dict):
        experiment.left.append(f"the stop rule, a {inert.type_name(stop)}")
    for what, value in (("search algorithm", _get(tune, "search_alg")), ("scheduler", _get(tune, "scheduler"))):
        if value is not None:
            experiment.left.append(f"the {what}, a {inert.type_name(value)}")
    _read_checkpoint_config(_get(run, "checkpoint_config"), experiment)
    keys = stored.get("__flattened_param_space_keys")
    if isinstance(keys, list) and all(isinstance(key, str) for key in keys):
        experiment.space_keys = sorted(keys)


def _read_checkpoint_config(config: Any, experiment: RayExperiment) -> None:
    attribute, order = _get(config, "checkpoint_score_attribute"), _get(config, "checkpoint_score_order")
    keep = _count(_get(config, "num_to_keep"), 1)
    experiment.retention = Retention(
        num_to_keep=keep,
        score_attribute=attribute if isinstance(attribute, str) else None,
        score_order=order if order in ("min", "max") else "max",
    )
    experiment.checkpoint_frequency = _count(_get(config, "checkpoint_frequency"), 0) or 0
    at_end = _get(config, "checkpoint_at_end")
    experiment.checkpoint_at_end = at_end if isinstance(at_end, bool) else None


def _is_class(experiment: RayExperiment) -> bool | None:
    """Functions tell with each report which checkpoint came along, or that none did; classes never do."""
    if experiment.checkpoint_frequency or experiment.checkpoint_at_end:
        return True
    for trial in experiment.trials:
        if trial.rows:
            return not any("checkpoint_dir_name" in row for row in trial.rows)
    return None


def _note_unlisted(path: Path, experiment: RayExperiment) -> None:
    """Trials that were created after the state was last written; their numbers are not known."""
    known = {trial.folder for trial in experiment.trials}
    with os.scandir(path) as entries:
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name not in known]
    unlisted = sorted(name for name in folders if os.path.isfile(path / name / "params.json"))
    if unlisted:
        experiment.notes.append(
            f"{experiment.state_file} does not list the trials in {', '.join(unlisted[:5])}"
            f"{' and others' if len(unlisted) > 5 else ''}: they are not imported"
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float:
    known = isinstance(value, int | float) and math.isfinite(value) and 0 <= value < 253_000_000_000
    return float(value) if known else 0.0


def _count(value: Any, least: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= least else None


def describe(path: Path) -> str:
    """What lies at a path, for a note."""
    return kind_of(path) if os.path.lexists(path) else "not there"


MAX_DEPTH = MAX_NESTING // 2
"""How deep a value may be; what stands around it in a record needs some levels, too."""

_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def loads(data: str | bytes) -> Any:
    """The value of a JSON text; half characters are replaced by "?".

    Raises:
        ValueError: It is no JSON, or nested too deeply.
    """
    text = data if isinstance(data, str) else data.decode(errors="replace")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return _whole(value) if _HALF.search(text) else value
    raise ValueError("it is nested too deeply")


def _children(node: Any) -> Any:
    return node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def _whole(node: Any) -> Any:
    if isinstance(node, str):
        return node.encode(errors="replace").decode()
    if isinstance(node, dict):
        return {_whole(key): _whole(value) for key, value in node.items()}
    return [_whole(value) for value in node] if isinstance(node, list) else node
