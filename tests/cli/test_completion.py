"""Completion in real shells: what they offer, and that a key completes what is typed."""

import os
import pty
import select
import shutil
import subprocess
import time

import pytest

from evenstep.cli import completion
from evenstep.cli import main as cli
from evenstep.cli.main import COMMANDS, main

PATIENCE = 60.0

OFFERED = {
    "evenstep si": ["simulate"],
    "evenstep simulate --pl": ["--plot"],
    "evenstep simulate --policy st": ["static", "stepwise"],
    "evenstep simulate id": ["identical"],
    "evenstep partition v": ["verify"],
    "evenstep partition migrate --bat": ["--batch-sizes"],
    "evenstep completion z": ["zsh"],
    "evenstep report run": ["run log.jsonl"],
    "evenstep report --plain run": ["run log.jsonl"],
    "evenstep run tra": ["train.py"],
    "evenstep simulate --seeds r": [],
    "evenstep nothing --pl": [],
}
"""What is typed, and what completes its last word."""


@pytest.fixture
def script(tmp_path, capsys):
    """Writes the script of a shell into a folder with two files, and returns its path."""

    def write(shell):
        if shutil.which(shell) is None:
            pytest.skip(f"no {shell} on this machine")
        assert main(["completion", shell]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        (tmp_path / "_evenstep").write_text(out)
        for name in ("run log.jsonl", "train.py"):
            (tmp_path / name).touch()
        return tmp_path / "_evenstep"

    return write


def output(shell, code, folder):
    done = subprocess.run(
        [shell, "-c", code], cwd=folder, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_bash_offers_commands_options_and_values(script):
    path = script("bash")
    code = f"""
        source {path}
        # Outside of an editor it fails; files are then left to the caller.
        compopt() {{ [[ $2 != default ]] || mapfile -t COMPREPLY < <(compgen -f -- "$word"); }}
        COMP_WORDS=(%s); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _evenstep
        printf '%%s\\n' "${{COMPREPLY[@]}}"
    """
    for typed, expected in OFFERED.items():
        assert output("bash", code % typed, path.parent) == (expected or [""]), typed


def test_fish_offers_commands_options_and_values(script):
    path = script("fish")
    for typed, expected in OFFERED.items():
        lines = output("fish", f"source {path}; complete -C '{typed}'", path.parent)
        words = [line.partition("\t")[0].replace("\\ ", " ") for line in lines]
        assert words == expected, typed


START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "PS1='>> '; source ./_evenstep"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "PS1='>> '; fpath=($PWD $fpath); autoload -U compinit; compinit -u -d ./dump",
    ),
}


@pytest.mark.parametrize("shell", START)
def test_a_key_completes_what_is_typed(shell, script):
    folder = script(shell).parent
    command, prepare = START[shell]
    terminal, side = pty.openpty()
    process = subprocess.Popen(
        command, cwd=folder, stdin=side, stdout=side, stderr=side, start_new_session=True,
        env={**os.environ, "TERM": "dumb", "HOME": str(folder)},
    )  # fmt: skip
    os.close(side)
    shown = b""

    def until(text, since):
        nonlocal shown
        deadline = time.monotonic() + PATIENCE
        while text not in shown[since:]:
            assert time.monotonic() < deadline, shown
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 2**16)

    try:
        os.write(terminal, f"{prepare}; echo re''ady\n".encode())
        until(b"ready", 0)
        until(b">> ", shown.index(b"ready"))
        for typed, completed in (
            (b"evenstep simul\t", b"ate "),
            (b"ident\t", b"ical "),
            (b"--pol\t", b"icy "),
            (b"prop\t", b"ortional "),
            (b"--log run\t", b"\\ log.jsonl "),
        ):
            since = len(shown)
            os.write(terminal, typed)
            until(completed, since)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_every_command_is_completed(capsys):
    top = completion.completed_commands()
    assert list(top.actions) == list(COMMANDS)
    assert all(found.options for _, found in top.actions.values())
    assert capsys.readouterr() == ("", "")


def test_command_without_its_packages_is_completed_without_options(capsys, monkeypatch):
    def parser_of(name):
        if name == "watch":
            raise ModuleNotFoundError("No module named 'rich'", name="rich")
        return cli.parser_of(name)

    monkeypatch.setattr(completion, "parser_of", parser_of)
    top = completion.completed_commands()
    assert top.actions["watch"][1].options == [] != top.actions["report"][1].options
    assert "no options of watch, as rich is not installed" in capsys.readouterr().err


def test_unknown_shell_is_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["completion", "tcsh"])
    assert stopped.value.code == 2
    assert "choose from" in capsys.readouterr().err
