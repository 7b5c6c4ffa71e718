"""Print the script that completes commands, options and their values in a shell.

It has the options of this version, and of the commands whose packages are installed: make it again
after an update. A new shell reads it.

examples:
  evenstep completion bash > ~/.local/share/bash-completion/completions/evenstep
  evenstep completion zsh > ~/.zfunc/_evenstep      # any folder of fpath
  evenstep completion fish > ~/.config/fish/completions/evenstep.fish
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module

from evenstep.cli.main import COMMANDS, missing_package, parser_of

NAMED = {
    "CLUSTER": ("evenstep.simulator.clusters.registry", "SUMMARIES"),
    "KIND": ("evenstep.run.options", "LOSSES"),
    "MODE": ("evenstep.training.settings", "MODES"),
    "P": ("evenstep.policies", "POLICIES"),
    "Q": ("evenstep.predictors", "PREDICTORS"),
}
"""The registry, as module and name, with the words that a value with this placeholder can be."""
_PATH = re.compile(r"FILE|DIR|RUNLOG|CLUSTER|TRACE|PATH")


@dataclass(frozen=True)
class Word:
    """An option, or a value that stands alone."""

    options: tuple[str, ...]
    """Its names; none for a value that stands alone."""
    help: str
    takes: str
    """The placeholder of its value; empty if it takes none."""
    values: tuple[str, ...]
    """The words that its value can be, if they are known."""

    @property
    def is_path(self) -> bool:
        """Whether its value is a file or a folder."""
        return bool(_PATH.search(self.takes))


@dataclass(frozen=True)
class Completed:
    """A command, or an action of one: its words, and the actions that follow it."""

    words: tuple[Word, ...]
    actions: dict[str, tuple[str, Completed]]
    """The help and the words of each action."""

    @property
    def options(self) -> list[str]:
        return [name for word in self.words for name in word.options]

    @property
    def alone(self) -> list[Word]:
        """The values that stand alone."""
        return [word for word in self.words if not word.options]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=list(SCRIPTS), metavar="SHELL", help=", ".join(SCRIPTS))


def run(args: argparse.Namespace) -> int:
    print(SCRIPTS[args.shell](completed_commands()))
    return 0


def completed_commands() -> Completed:
    """Return all commands; one whose packages are missing has no words, which is printed."""
    actions = {}
    for name, entry in COMMANDS.items():
        try:
            found = _completed(parser_of(name))
            if hasattr(import_module(entry.module), "parse"):
                # It passes arguments on to another program: a script, first of all.
                found = replace(found, words=(*found.words, Word((), "", "FILE", ())))
        except ModuleNotFoundError as error:
            missing = missing_package(error, entry.extra)
            print(f"evenstep completion: no options of {name}, as {missing}", file=sys.stderr)
            found = Completed((), {})
        actions[name] = entry.summary, found
    words = Word(("--help",), "show this help", "", ()), Word(("--version",), "show it", "", ())
    return Completed(words, actions)


def _completed(parser: argparse.ArgumentParser) -> Completed:
    words, actions = [], {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            actions = {n: (helps[n], _completed(inner)) for n, inner in action.choices.items()}
        else:
            words.append(_word(action))
    return Completed(tuple(words), actions)


def _word(action: argparse.Action) -> Word:
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    takes = "" if action.nargs == 0 else metavar
    values = tuple(map(str, action.choices or ()))
    for name in takes.split("|"):
        if name in NAMED:
            module, registry = NAMED[name]
            values += tuple(getattr(import_module(module), registry))
    # The first part of a help is enough for a list.
    help = (action.help or "").partition(";")[0].partition(" (")[0].replace("%(default)s", "")
    return Word(tuple(action.option_strings), help, takes, values)


def bash(top: Completed) -> str:
    """Return the script for bash."""
    cases = "\n".join(_bash_cases((), top))
    return f"""# Completes `evenstep` in bash; made by `evenstep completion bash`.
_evenstep() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    local path="" options="" alone="" files="" i found
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path ${{COMP_WORDS[i]}}" in
            {_either(_paths((), top))}) path="$path ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$path" in
{cases}
    esac
    if [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$word"))
    else
        COMPREPLY=($(compgen -W "$alone" -- "$word"))
        if [[ -n $files ]]; then
            compopt -o filenames
            mapfile -t found < <(compgen -f -- "$word")
            COMPREPLY+=("${{found[@]}}")
        fi
    fi
}}
complete -F _evenstep evenstep"""


def _bash_cases(path: tuple[str, ...], found: Completed) -> Iterator[str]:
    valued = [word for word in found.words if word.options and word.takes]
    yield f'        "{"".join(f" {name}" for name in path)}")'
    if valued:
        yield '            case "$before" in'
    for word in valued:
        reply = f'COMPREPLY=($(compgen -W "{" ".join(word.values)}" -- "$word"))'
        if word.is_path:
            reply = "COMPREPLY=(); compopt -o default"
        yield f"                {'|'.join(word.options)}) {reply}; return ;;"
    if valued:
        yield "            esac"
    alone = [*found.actions, *(value for word in found.alone for value in word.values)]
    yield f'            options="{" ".join(found.options)}"'
    files = "yes" if any(word.is_path for word in found.alone) else ""
    yield f'            alone="{" ".join(alone)}" files="{files}" ;;'
    for name, (_, inner) in found.actions.items():
        yield from _bash_cases((*path, name), inner)


def _paths(path: tuple[str, ...], found: Completed) -> Iterator[str]:
    for name, (_, inner) in found.actions.items():
        yield "".join(f" {each}" for each in (*path, name))
        yield from _paths((*path, name), inner)


def _either(paths: Iterator[str]) -> str:
    return "|".join(f'"{path}"' for path in paths)


def zsh(top: Completed) -> str:
    """Return the script for zsh."""
    functions = "\n".join(_zsh_functions("_evenstep", top))
    return f"""#compdef evenstep
# Completes `evenstep` in zsh; made by `evenstep completion zsh`.
{functions}
if [[ $funcstack[1] = _evenstep ]]; then _evenstep "$@"; else compdef _evenstep evenstep; fi"""


def _zsh_functions(name: str, found: Completed) -> Iterator[str]:
    for action, (_, inner) in found.actions.items():
        yield from _zsh_functions(f"{name}_{action}", inner)
    yield f"{name}() {{"
    specs = [spec for word in found.words for spec in _zsh_specs(word)]
    if found.actions:
        specs = ["1: :->action", "*:: :->rest", *specs]
    yield "    local context state state_descr line curcontext=$curcontext; typeset -A opt_args"
    yield f"    _arguments -C {' '.join(map(shlex.quote, specs))} && return 0"
    if found.actions:
        actions = " ".join(
            shlex.quote(f"{action}:{help}") for action, (help, _) in found.actions.items()
        )
        yield f"    local -a actions; actions=({actions})"
        yield "    case $state in"
        yield "        action) _describe action actions ;;"
        yield f"        rest) (( $+functions[{name}_$line[1]] )) && {name}_$line[1] ;;"
        yield "    esac"
    yield "}"


def _zsh_specs(word: Word) -> Iterator[str]:
    value = ""
    if word.takes:
        how = "_files" if word.is_path else f"({' '.join(word.values)})"
        if word.is_path and word.values:
            how = f"_alternative 'names:name:({' '.join(word.values)})' 'files:file:_files'"
            how = f"{{{how}}}"
        value = f":{_zsh_text(word.takes)}:{how}"
    if not word.options:
        yield f"*{value}"
    for option in word.options:
        yield f"{option}[{_zsh_text(word.help)}]{value}"


def _zsh_text(text: str) -> str:
    return re.sub(r"([\\:\[\]])", r"\\\1", text)


def fish(top: Completed) -> str:
    """Return the script for fish."""
    lines = ["# Completes `evenstep` in fish; made by `evenstep completion fish`."]
    lines += ["complete -c evenstep -f", *_fish_lines("", top)]
    return "\n".join(lines)


def _fish_lines(seen: str, found: Completed) -> Iterator[str]:
    """Yield the lines of a command; `seen` is the condition that it was typed."""
    names = " ".join(found.actions)
    here = "__fish_use_subcommand"
    if seen:
        here = f"{seen}; and not __fish_seen_subcommand_from {names}" if names else seen
    start = f"complete -c evenstep -n {shlex.quote(here)}"
    for word in found.words:
        values = f" -a {shlex.quote(' '.join(word.values))}" if word.values else ""
        files = " -F" if word.is_path else ""
        if not word.options:
            if values or files:
                yield f"{start}{files}{values}"
            continue
        takes = (" -r" if word.is_path else " -x") if word.takes else ""
        text = f" -d {shlex.quote(word.help)}" if word.help else ""
        flags = " ".join(
            f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in word.options
        )
        yield f"{start} {flags}{takes}{files}{values}{text}"
    for name, (text, inner) in found.actions.items():
        yield f"{start} -a {name} -d {shlex.quote(text)}"
        condition = f"__fish_seen_subcommand_from {name}"
        yield from _fish_lines(f"{seen}; and {condition}" if seen else condition, inner)


SCRIPTS: dict[str, Callable[[Completed], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
"""The scripts by shell."""
