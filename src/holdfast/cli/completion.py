"""``holdfast completion``: a script for a shell, made from the same parser that reads the command line.

The script asks nothing of holdfast when a key is pressed: commands and options are in it, names of experiments are
directories in the default results directory.
"""

from __future__ import annotations

import argparse
import shlex

from holdfast.cli.parser import make_parser
from holdfast.cli.printing import say

NAMES = 'ls -1 "${HOLDFAST_STORAGE:-$HOME/holdfast_results}" 2>/dev/null'
"""Lists experiments by name; says nothing if they are in a store."""

_BASH = """\
_holdfast() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} options
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    case "$current" in
        -*) COMPREPLY=($(compgen -W "$options" -- "$current")) ;;
        *) COMPREPLY=($(compgen -d -- "$current") $(compgen -W "$({names})" -- "$current")) ;;
    esac
}}
complete -o filenames -F _holdfast holdfast"""


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    commands = commands_of(make_parser())
    say({"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell](commands))
    return 0


def commands_of(parser: argparse.ArgumentParser) -> dict[str, tuple[str, list[str]]]:
    """Every command: what it does, and its options."""
    (actions,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    found = {}
    for help_action in actions._choices_actions:
        options = [text for action in actions.choices[help_action.dest]._actions for text in action.option_strings]
        found[help_action.dest] = (help_action.help or "", [text for text in options if text.startswith("--")])
    return found


def bash(commands: dict[str, tuple[str, list[str]]]) -> str:
    """The script for bash."""
    cases = "\n".join(f'        {name}) options="{" ".join(options)}" ;;' for name, (_, options) in commands.items())
    return _BASH.format(commands=" ".join(commands), cases=cases, names=NAMES)


def zsh(commands: dict[str, tuple[str, list[str]]]) -> str:
    """The script for zsh, which understands that for bash."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash(commands)}"


def fish(commands: dict[str, tuple[str, list[str]]]) -> str:
    """The script for fish."""
    first = "__fish_use_subcommand"
    names = (
        'ls -1 (test -n "$HOLDFAST_STORAGE"; and echo $HOLDFAST_STORAGE; or echo $HOME/holdfast_results) 2>/dev/null'
    )
    lines = [f"complete -c holdfast -n 'not {first}' -a '({names})'"]
    for name, (text, options) in commands.items():
        lines.append(f"complete -c holdfast -f -n {first} -a {name} -d {shlex.quote(text)}")
        used = f"'__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c holdfast -n {used} -l {option.removeprefix('--')}" for option in options]
    return "\n".join(lines)
