"""Scripts of users, for the tests of clusters: the first argument says which, the second has its settings as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import holdfast as tune
from holdfast.schedulers import PopulationBasedTraining

ROOT = "/tmp/results"


def note(config: dict[str, Any], **facts: Any) -> None:
    """Write down something where the test can read it."""
    with open(config["notes"], "a") as notes:
        notes.write(json.dumps({"host": os.uname().nodename, **facts}) + "\n")


# --- what is refused


def refusals(settings: dict[str, Any]) -> dict[str, Any]:
    """Experiments that cannot begin, and what is said of each."""
    address, found = settings["address"], {}
    cases: dict[str, tuple[dict[str, float], dict[str, Any]]] = {
        "unknown": ({"CPU": 1, "licence": 1}, {"address": address}),
        "large": ({"CPU": 64}, {"address": address}),
        "wrong": ({"CPU": 1}, {"address": address.rsplit(":", 1)[0] + ":7"}),
        "port": ({"CPU": 1}, {"address": address, "port": int(address.rsplit(":", 1)[1])}),
        "nowhere": ({"CPU": 1}, {}),
        "client": ({"CPU": 1}, {"address": f"ray://{address.rsplit(':', 1)[0]}:10001"}),
    }
    for name, (request, engine) in cases.items():
        found[name] = refused(name, tune.RayEngine(**engine), request)
    return found


def refused(name: str, engine: tune.RayEngine | None, request: dict[str, float]) -> str:
    """What is said of an experiment that cannot begin."""
    config = tune.RunConfig(name=f"refused-{name}", storage_path=ROOT, engine=engine, verbose=0)
    try:
        tune.Tuner(tune.with_resources(never, request), run_config=config).fit()
    except tune.TuneError as error:
        return str(error)
    return ""


def client(settings: dict[str, Any]) -> dict[str, Any]:
    """A script that is a Ray Client."""
    import ray

    ray.init(address=f"ray://{settings['address'].rsplit(':', 1)[0]}:10001")
    return {"joined": refused("joined", None, {"CPU": 1}), "written": os.path.exists(f"{ROOT}/refused-joined")}


def never(config: dict[str, Any]) -> None:
    raise AssertionError("nothing was to be run")


# --- references to objects


def uses_references(config: dict[str, Any], extra: Any) -> None:
    import ray

    data, more = ray.get([config["data"], extra])
    note(config, k=config["k"], data=data, extra=more)
    while config["k"] and not os.path.exists(config["go"]):
        time.sleep(0.05)
    tune.report({"sum": sum(data) + more})


def references(settings: dict[str, Any]) -> dict[str, Any]:
    import ray

    ray.init(address=settings["address"], log_to_driver=False)
    path = os.path.join(ROOT, "references")
    trainable = tune.with_parameters(uses_references, extra=ray.put(settings["extra"]))
    space = {
        "data": ray.put(settings["data"]),
        "k": tune.grid_search([0, 1, 2]),
        "notes": settings["notes"],
        "go": settings["go"],
    }
    engine = tune.RunConfig(engine="ray", verbose=1)
    if not tune.Tuner.can_restore(path):
        config = tune.RunConfig(name="references", storage_path=ROOT, engine="ray", verbose=1)
        tuner = tune.Tuner(trainable, param_space=space, run_config=config)
    elif settings["again"]:
        tuner = tune.Tuner.restore(path, trainable=trainable, param_space=space, run_config=engine)
    else:
        tuner = tune.Tuner.restore(path, run_config=engine)
    results = tuner.fit()
    return {
        "sums": sorted((result.config["k"], (result.metrics or {}).get("sum")) for result in results),
        "errors": [str(result.error) for result in results if result.error],
    }


# --- bundles on several machines


def spreads(config: dict[str, Any]) -> None:
    import ray

    @ray.remote(num_cpus=1)
    def where() -> str:
        return os.uname().nodename

    for step in range(3):
        tune.report({"here": os.uname().nodename, "there": ray.get(where.remote()), "step": step})


def bundles(settings: dict[str, Any]) -> dict[str, Any]:
    factory = tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    engine = tune.RayEngine(address=settings["address"])
    results = tune.Tuner(
        tune.with_resources(spreads, factory),
        param_space={"k": tune.grid_search(list(range(5)))},
        run_config=tune.RunConfig(name="bundles", storage_path=ROOT, engine=engine, verbose=1),
    ).fit()
    return {
        "hosts": [[(result.metrics or {}).get(name) for name in ("here", "there")] for result in results],
        "errors": [str(result.error) for result in results if result.error],
    }


# --- a population whose donors are elsewhere


def evolves(config: dict[str, Any]) -> None:
    step, checkpoint = 0, tune.get_checkpoint()
    me = tune.get_context().get_trial_id()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            state = json.loads(Path(directory, "state.json").read_text())
        step = state["step"]
        note(config, me=me, of=state["me"], from_host=state["host"], step=step)
    while step < 12:
        step += 1
        with tempfile.TemporaryDirectory() as directory:
            state = {"step": step, "me": me, "host": os.uname().nodename}
            Path(directory, "state.json").write_text(json.dumps(state))
            tune.report(
                {"score": config["lr"] * step, "step": step}, checkpoint=tune.Checkpoint.from_directory(directory)
            )
        time.sleep(0.05)


def population(settings: dict[str, Any]) -> dict[str, Any]:
    rates = [0.1, 0.2, 0.4, 0.6, 0.8, 1.0]
    scheduler = PopulationBasedTraining(
        time_attr="step",
        perturbation_interval=3,
        hyperparam_mutations={"lr": rates},
        quantile_fraction=0.34,
        resample_probability=0.5,
    )
    engine = tune.RayEngine(address=settings["address"])
    results = tune.Tuner(
        evolves,
        param_space={"lr": tune.grid_search(rates), "notes": settings["notes"]},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler),
        run_config=tune.RunConfig(name="population", storage_path=ROOT, engine=engine, verbose=1),
    ).fit()
    return {
        "steps": [(result.metrics or {}).get("step") for result in results],
        "errors": [str(result.error) for result in results if result.error],
    }


if __name__ == "__main__":
    print("RESULT " + json.dumps({"refused": ""} | globals()[sys.argv[1]](json.loads(sys.argv[2]))))
