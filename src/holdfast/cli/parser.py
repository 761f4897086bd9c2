"""The arguments of every command, and their help. Imports nothing that takes time: ``--help`` must be instant."""

from __future__ import annotations

import argparse
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from holdfast._version import __version__

_DESCRIPTION = """\
Inspect, verify, repair, copy and resume holdfast experiments. PATH is an experiment's directory or URI, or its name in
the default results directory (HOLDFAST_STORAGE, else ~/holdfast_results).

examples:
  holdfast list                              list experiments and their states
  holdfast status digits                     progress, failures, how to resume
  holdfast show PATH --best 5                the best five trials
  holdfast show PATH 3 --story               the history of trial 3
  holdfast logs PATH 3                       the output of trial 3
  holdfast resume PATH                       resume after a crash
  holdfast stop PATH 3                       stop trial 3 of a running experiment
  holdfast export PATH results.csv           one row per trial
  holdfast ui PATH                           a live page in the browser
  holdfast copy PATH s3://bucket/runs/digits copy it to a store

exit codes: 0 success; 1 damage found, or the work failed; 2 usage error
"""


@cache  # 8 ms
def make_parser() -> argparse.ArgumentParser:
    """The parser; ``run`` in its result names the module that does the work."""
    parser = argparse.ArgumentParser(
        prog="holdfast", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_status(commands)
    _add_show(commands)
    _add_logs(commands)
    _add_verify(commands)
    _add_repair(commands)
    _add_resume(commands)
    _add_asking(commands)
    _add_export(commands)
    _add_ui(commands)
    _add_report(commands)
    _add_list(commands)
    _add_copy(commands)
    _add_import(commands)
    _add_ship(commands)
    _add_gc(commands)
    _add_rm(commands)
    _add_completion(commands)
    _add_older(commands)
    return parser


if TYPE_CHECKING:
    _Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


def _command(commands: _Commands, name: str, module: str, text: str, examples: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=module)
    return parser


def _add_path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", metavar="PATH", help="the experiment's directory, URI or name")


def _add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON; NaN and infinity become null")


def _add_safe_csv(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--safe-csv",
        action="store_true",
        help="put ' before text that a spreadsheet would treat as a formula (it starts with = + - @)",
    )


def _add_status(commands: _Commands) -> None:
    parser = _command(
        commands,
        "status",
        "status",
        "show the state of an experiment: progress, best trial, failures, how to resume",
        "  holdfast status PATH\n  holdfast status PATH --watch\n  holdfast status PATH --json | jq .counts",
    )
    _add_path(parser)
    _add_json(parser, "one object")
    parser.add_argument("--watch", action="store_true", help="repeat until the experiment stops running")


def _add_show(commands: _Commands) -> None:
    parser = _command(
        commands,
        "show",
        "show",
        "show the trials of an experiment, or one trial in detail",
        "  holdfast show PATH                         a table of the trials\n"
        "  holdfast show PATH --best 5                the best five, by the experiment's metric\n"
        "  holdfast show PATH --sort lr --desc        by a parameter or a metric, from large to small\n"
        "  holdfast show PATH a1b2c_00003             one trial, by id, name or number\n"
        "  holdfast show PATH 3 --story               its history, in order, with causes\n"
        "  holdfast show PATH --story                 the history of the whole experiment",
    )
    _add_path(parser)
    parser.add_argument("trial", metavar="TRIAL", nargs="?", help="id, unique prefix of an id, name or number")
    parser.add_argument("--story", action="store_true", help="print the history, in order, with times and causes")
    parser.add_argument("--sort", metavar="KEY", help="by a metric, a parameter, status, iteration or trial_id")
    parser.add_argument("--desc", action="store_true", help="sort from large to small")
    parser.add_argument("--best", type=int, metavar="N", help="the N best trials, by the experiment's metric and mode")
    parser.add_argument("--limit", type=int, default=40, metavar="N", help="rows of the table (40; 0 shows all)")
    _add_json(parser, "the same, for all trials,")


def _add_logs(commands: _Commands) -> None:
    parser = _command(
        commands,
        "logs",
        "logs",
        "print the output of all trials, with their names, or of one",
        "  holdfast logs PATH                  all stored output\n"
        "  holdfast logs PATH 3 --tail 20      the last twenty lines of trial 3\n"
        "  holdfast logs PATH -f               all output, then follow until the experiment ends",
    )
    _add_path(parser)
    parser.add_argument("trial", metavar="TRIAL", nargs="?", help="id, unique prefix of an id, name or number")
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the experiment stops running")
    parser.add_argument("--tail", type=int, metavar="N", help="start with the last N lines of each trial")


def _add_verify(commands: _Commands) -> None:
    parser = _command(
        commands,
        "verify",
        "verify",
        "verify every byte: journal, facts, snapshots and checkpoints; read-only",
        "  holdfast verify PATH && echo intact\n  holdfast verify s3://bucket/runs/digits --quick",
    )
    _add_path(parser)
    parser.add_argument("--quick", action="store_true", help="compare only names and sizes of checkpoints")
    _add_json(parser, "the findings")


def _add_repair(commands: _Commands) -> None:
    parser = _command(
        commands,
        "repair",
        "repair",
        "make an experiment with a damaged journal resumable from the last good record; keeps a copy",
        "  holdfast verify PATH      what is damaged?\n  holdfast repair PATH      asks before it changes anything",
    )
    _add_path(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _add_resume(commands: _Commands) -> None:
    parser = _command(
        commands,
        "resume",
        "resume",
        "resume an experiment with the stored trainable, or with changed code",
        "  holdfast resume PATH\n  holdfast resume PATH --resume-errored   also retry failed trials\n"
        "  holdfast resume PATH --resume-errored --trainable script:train   with the current code of script.py",
    )
    _add_path(parser)
    parser.add_argument(
        "--takeover", action="store_true", help="take the experiment over from a driver that is still alive"
    )
    parser.add_argument(
        "--trainable",
        metavar="MODULE:NAME",
        help="import the trainable and use it instead of the stored one (the module must not run the experiment "
        'when it is imported: if __name__ == "__main__")',
    )
    errored = parser.add_mutually_exclusive_group()
    errored.add_argument("--resume-errored", action="store_true", help="resume failed trials from their checkpoints")
    errored.add_argument("--restart-errored", action="store_true", help="restart failed trials from scratch")
    _add_json(parser, "the status afterwards")


def _asking(commands: _Commands, name: str, text: str, examples: str) -> argparse.ArgumentParser:
    parser = _command(commands, name, "ask", text, examples)
    parser.set_defaults(ask=name)
    _add_path(parser)
    _add_json(parser, "the driver's answer")
    return parser


def _add_asking(commands: _Commands) -> None:
    """Commands that ask the live driver of an experiment."""
    trial = "id, unique prefix of an id, name or number"
    parser = _asking(
        commands,
        "stop",
        "stop one trial of a running experiment, or its driver, as SIGTERM does: trials save and stay resumable",
        "  holdfast stop PATH          all of it; `holdfast resume PATH` continues\n"
        "  holdfast stop PATH 3        trial 3, which ends as TERMINATED after its current iteration",
    )
    parser.add_argument("trial", metavar="TRIAL", nargs="?", help=trial)
    parser = _asking(
        commands,
        "note",
        "add a note to a running experiment, or to one of its trials",
        "  holdfast note PATH 'the second GPU was slow today'\n  holdfast note PATH 3 'diverges; why?'",
    )
    parser.add_argument("words", metavar="[TRIAL] TEXT", nargs="+", help="the text is one argument, in quotes")
    parser = _asking(
        commands,
        "tag",
        "add tags to a trial of a running experiment",
        "  holdfast tag PATH 3 keep paper\n  holdfast tag PATH 3 keep --remove\n  holdfast tag PATH --experiment paper",
    )
    parser.add_argument("words", metavar="TRIAL TAG", nargs="+", help="the trial, and its tags")
    parser.add_argument("--remove", action="store_true", help="take the tags away")
    parser.add_argument("--experiment", dest="whole", action="store_true", help="tag the experiment: there is no TRIAL")
    parser = _asking(
        commands,
        "samples",
        "raise num_samples of a running experiment to N, the total of the whole experiment",
        "  holdfast samples PATH 100\n  holdfast samples PATH -1      no limit",
    )
    parser.add_argument("number", metavar="N", type=int, help="at least the present number; -1: no limit")


def _add_export(commands: _Commands) -> None:
    parser = _command(
        commands,
        "export",
        "export",
        "write results to a file, or log them to a tracker (W&B, MLflow, Comet, Aim) or TensorBoard",
        "  holdfast export PATH trials.csv           one row per trial, its last result\n"
        "  holdfast export PATH all.json --rows      every surviving result\n"
        "  holdfast export PATH study.log --format optuna        an Optuna study, for its plots and dashboard\n"
        "  holdfast export PATH --to tensorboard                 event files with HParams\n"
        "  holdfast export PATH --to wandb --set project=digits  log what is missing there",
    )
    _add_path(parser)
    out = "the file; its extension selects the format: .csv, .json, (with pyarrow) .parquet or (with pandas) .pkl. "
    where = "With --to: the directory, or the tracking URI of mlflow"
    parser.add_argument("out", metavar="OUT", nargs="?", help=out + where)
    parser.add_argument("--format", choices=("optuna",), help="an Optuna study in a journal file")
    parser.add_argument("--metric", metavar="NAME", help="with --format optuna: the objective (the experiment's)")
    parser.add_argument("--mode", choices=("min", "max"), help="with --format optuna: its direction (the experiment's)")
    trackers = ("aim", "comet", "mlflow", "tensorboard", "wandb")
    parser.add_argument("--to", choices=trackers, help="log to a tracker; what is there already is not logged again")
    name = "with --to: an argument of the tracker's callback, such as project=digits; may be repeated"
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help=name)
    parser.add_argument("--rows", action="store_true", help="every surviving result instead of one row per trial")
    _add_safe_csv(parser)


def _add_ui(commands: _Commands) -> None:
    parser = _command(
        commands,
        "ui",
        "ui",
        "show experiments on a live page in the browser",
        "  holdfast ui PATH\n  holdfast ui ~/holdfast_results            all experiments below a directory\n"
        "  holdfast ui s3://bucket/runs --port 8080 --no-browser",
    )
    parser.add_argument("experiment", metavar="PATH", help="an experiment, or a directory or prefix with several")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port (0 picks a free one)")
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="the address to listen on (127.0.0.1)")
    parser.add_argument("--no-browser", dest="browser", action="store_false", help="do not open a browser")
    parser.add_argument("--token", metavar="T", help="the secret in the address (default: a new one)")


def _add_report(commands: _Commands) -> None:
    parser = _command(
        commands,
        "report",
        "report",
        "write the page of an experiment to one HTML file that needs no server and no network",
        "  holdfast report PATH out.html",
    )
    _add_path(parser)
    parser.add_argument("out", metavar="OUT.html", help="the file")


def _add_list(commands: _Commands) -> None:
    parser = _command(
        commands,
        "list",
        "listing",
        "list the experiments below a directory or a prefix of a store",
        "  holdfast list\n  holdfast list ~/holdfast_results\n  holdfast list s3://bucket/runs",
    )
    where = "where to look (the current directory and the default results directory)"
    parser.add_argument("path", metavar="DIR", nargs="?", help=where)
    _add_json(parser, "a list of objects")


def _add_copy(commands: _Commands) -> None:
    parser = _command(
        commands,
        "copy",
        "copy",
        "copy an experiment without a running driver; the copy can be resumed; completes an interrupted copy",
        "  holdfast copy ~/holdfast_results/digits s3://bucket/runs/digits\n"
        "  holdfast copy s3://bucket/runs/digits /data/digits",
    )
    parser.add_argument("experiment", metavar="SRC", help="the experiment's directory, URI or name")
    parser.add_argument("target", metavar="DST", help="the new directory or URI, which must not exist")
    parser.add_argument(
        "--before-damage",
        action="store_true",
        help="if the journal in a store is damaged, copy the part before the damage",
    )
    _add_json(parser, "what was copied")


def _add_import(commands: _Commands) -> None:
    parser = _command(
        commands,
        "import",
        "import_ray",
        "convert an experiment of Ray Tune 2.x, so that it can be resumed; runs none of its code",
        "  holdfast import ~/ray_results/digits ~/holdfast_results/digits\n"
        "  holdfast import ~/ray_results/digits s3://bucket/runs/digits",
    )
    parser.add_argument("source", metavar="RAY_DIR", help="the directory of Ray Tune's experiment; it is not changed")
    parser.add_argument("target", metavar="DST", help="the new directory or URI, which must not exist")
    parser.add_argument(
        "--state",
        metavar="FILE",
        help="which experiment_state-*.json to read, if the last one is damaged (default: the last)",
    )
    _add_json(parser, "what was imported")


def _add_ship(commands: _Commands) -> None:
    parser = _command(
        commands,
        "ship",
        "ship",
        "upload what only this machine has of an experiment, after an outage; runs no trial",
        "  holdfast ship s3://bucket/runs/digits",
    )
    parser.add_argument("path", metavar="URI", help="the experiment's URI")
    parser.add_argument(
        "--takeover", action="store_true", help="take the experiment over from a driver that is still alive"
    )
    _add_json(parser, "what was uploaded")


def _add_gc(commands: _Commands) -> None:
    parser = _command(
        commands,
        "gc",
        "gc",
        "remove leftovers of interrupted work; only if no driver runs the experiment",
        "  holdfast gc PATH --dry-run      list what would be removed\n  holdfast gc PATH",
    )
    _add_path(parser)
    parser.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    parser.add_argument(
        "--now", action="store_true", help="also remove files younger than 24 hours, which might be in use"
    )
    _add_json(parser, "what was removed")


def _add_rm(commands: _Commands) -> None:
    parser = _command(
        commands,
        "rm",
        "rm",
        "remove an experiment without a running driver, with all its checkpoints; asks first",
        "  holdfast rm digits\n  holdfast rm s3://bucket/runs/digits --yes",
    )
    _add_path(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    _add_json(parser, "what was removed")


def _add_completion(commands: _Commands) -> None:
    parser = _command(
        commands,
        "completion",
        "completion",
        "print a shell completion script for commands, options and names of experiments",
        '  eval "$(holdfast completion bash)"                            in ~/.bashrc\n'
        '  eval "$(holdfast completion zsh)"                             in ~/.zshrc\n'
        "  holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
    )
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def _add_older(commands: _Commands) -> None:
    for name, what, text in (
        ("list-trials", "the experiment's directory", "list trials with sorting, filters and output to a file"),
        ("list-experiments", "where to look", "list experiments with sorting, filters and output to a file"),
    ):
        parser = _command(
            commands,
            name,
            "legacy_listing",
            text,
            f"  holdfast {name} DIR --sort status --limit 10\n"
            f'  holdfast {name} DIR --filter "status == ERROR" --columns trial_id,status --output found.csv',
        )
        parser.set_defaults(kind=name)
        parser.add_argument("experiment" if name == "list-trials" else "path", metavar="DIR", help=what)
        parser.add_argument("--sort", metavar="COLUMNS", help="columns to sort by, separated by commas")
        parser.add_argument("--desc", action="store_true", help="sort from large to small")
        parser.add_argument("--filter", metavar='"COLUMN OP VALUE"', help="keep rows; OP is <, <=, ==, >=, > or !=")
        parser.add_argument("--columns", metavar="COLUMNS", help="columns to show, separated by commas")
        parser.add_argument("--limit", type=int, metavar="N", help="show at most N rows")
        parser.add_argument("--output", metavar="FILE", help="write to FILE (.csv, .json, or .pkl with pandas) instead")
        _add_safe_csv(parser)
        if name == "list-trials":
            parser.add_argument("--result-columns", metavar="COLUMNS", help="columns of the last result to add")
