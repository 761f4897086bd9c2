"""The layers of the package, from top to bottom: which parts import which, and what they are for.

A part imports parts of lower layers, and none of its own layer. A test compares the imports with this table, and the
picture in ``docs/architecture.md`` is made from it.
"""

from typing import NamedTuple


class Layer(NamedTuple):
    """Folders and modules of one layer, in the order in which they are shown."""

    names: tuple[str, ...]
    purpose: str


ALIASES = (
    *("air", "analysis", "callback", "error", "experiment", "logger", "plots", "progress_reporter", "registry"),
    *("result", "result_grid", "syncer", "tune_config", "utils"),
)

LAYERS = [
    Layer(("__main__",), "python -m holdfast"),
    Layer(("cli", "ui"), "commands, the live page; the only two that import each other"),
    Layer(("compat", "integration", "testing"), "scripts of other tuners, frameworks and trackers, contract suites"),
    Layer(ALIASES, "names of tuner and lower layers, where scripts of other tuners import them from"),
    Layer(("tuner", "ray_import"), "the front door; experiments made with Ray Tune"),
    Layer(("results",), "what an experiment found, read from its journal"),
    Layer(("controller",), "the imperative shell: loop, edges, backends, signals, opening, snapshots"),
    Layer(
        ("engines",),
        "nanny, worker pool, workers, process trees, GPUs; engines/cluster: the same workers on a Ray cluster",
    ),
    Layer(("trainable",), "what runs in a worker: session, function and class runners, messages"),
    Layer(("display",), "the live table, the notebook, plain lines; reporters"),
    Layer(("callbacks",), "Callback, result files, loggers"),
    Layer(("search",), "searchers"),
    Layer(("schedulers",), "schedulers and their adapter"),
    Layer(("views",), "the read model: trials and results, as schedulers, searchers and displays see them"),
    Layer(
        ("checkpoints", "shipping", "sync"),
        "stage, commit, verify; the journal's way to a store and back; the user's syncers",
    ),
    Layer(("journal",), "frames, segments, epochs, snapshots, repair"),
    Layer(
        ("storage",),
        "bytes: names on disk, atomic writes, fsync, crash points; remote stores and their agent process",
    ),
    Layer(("core",), "PURE: observations, events, commands, state, transitions, decide, plan, retention"),
    Layer(("stopper",), "rules that end trials and experiments"),
    Layer(("config",), "settings, resources, the registry of trainables"),
    Layer(("space",), "domains, grids, variants"),
    Layer(("errors",), "the exception tree"),
    Layer(("messages", "_lazy", "_moved", "_version"), "warnings, and text that is safe for a terminal"),
]
