"""`python -m evenstep.partitions.agents`: an agent or a migration for another program."""

import contextlib
import json
import math
import signal
import subprocess
import sys
from typing import Any

import pytest

from evenstep.errors import InvalidSetting
from evenstep.partitions.agents.__main__ import parse_settings
from evenstep.partitions.store import Partition, verify
from tests.partitions.agents.agents import PATIENCE
from tests.partitions.store.folders import NUM_SAMPLES, three_partitions

COMMAND = (sys.executable, "-m", "evenstep.partitions.agents")

pytestmark = pytest.mark.timeout(120)


@contextlib.contextmanager
def run(kind, settings):
    """Start a process with its settings; it is killed at the end, if it still runs."""
    command = [*COMMAND, kind, json.dumps(settings)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def reply(process):
    return json.loads(process.stdout.readline())


def agent(folder, **settings):
    return run("serve", {"folder": str(folder), "listen": "127.0.0.1:0", **settings})


def test_settings_and_replies_are_json(tmp_path):
    folders = three_partitions(tmp_path)
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(agent(folder)) for folder in folders]
        listening = [reply(process)["listening"] for process in agents]
        assert [one["partition"] for one in listening] == [folder.name for folder in folders]
        addresses = [one["address"] for one in listening]
        settings = {"agents": addresses, "batch_sizes": [1, 1, 2]}
        migration = stack.enter_context(run("migrate", settings))
        outcome = reply(migration)["outcome"]
        assert migration.wait(PATIENCE) == 0
        sizes = [len(Partition.open(folder)) for folder in folders]
        assert (outcome["problems"], outcome["is_over"]) == ([], True)
        assert outcome["moved"] > 0
        assert sum(sizes) == NUM_SAMPLES and sizes[2] == NUM_SAMPLES // 2
    assert verify(folders).problems == ()


def test_an_agent_ends_with_its_standard_input(tmp_path):
    folder = three_partitions(tmp_path)[0]
    with agent(folder) as process:
        assert "listening" in reply(process)
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    Partition.open(folder, write=True).close()


def test_a_program_that_is_gone_at_the_start_leaves_no_process(tmp_path):
    folder = three_partitions(tmp_path)[0]
    command = [*COMMAND, "serve", json.dumps({"folder": str(folder), "listen": "127.0.0.1:0"})]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE)
    # By the signal, or in good order if it was handled already.
    assert done.returncode in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    "kind, settings, named",
    [
        ("serve", {"folder": "DIR/none"}, "none"),
        ("serve", {"folder": "DIR/w0", "listen": "192.0.2.1:0"}, "192.0.2.1"),
        ("serve", {"folder": "DIR/w0", "colour": "red"}, "colour"),
        ("serve", {"folder": "DIR/w0", "bandwidth": 0}, "bandwidth"),
        ("drive", {}, "drive"),
        ("migrate", {"agents": ["127.0.0.1:1"], "patience": 1.0}, "127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_an_error_that_names_it(tmp_path, kind, settings, named):
    three_partitions(tmp_path)
    if "folder" in settings:
        settings = settings | {"folder": settings["folder"].replace("DIR", str(tmp_path))}
    with run(kind, settings) as process:
        assert named in reply(process)["error"]
        assert process.wait(PATIENCE) == 1


@pytest.mark.parametrize(
    "kind, name, wrong, right",
    [
        ("serve", "bandwidth", [0, -5.0, math.nan, math.inf, 10**400, "5e6", True], [50, None]),
        ("serve", "nice", [-1, 1.5, None], [0, 19]),
        ("serve", "quota", [0, -1, 2.5], [1, None]),
        ("migrate", "patience", [0, -1.0, math.nan, math.inf, None, "60"], [1, 0.5]),
        ("migrate", "minimum", [0, -1, 1.5, None, True], [1, 7]),
        ("migrate", "seed", [-1, 0.5], [0, 3]),
        ("migrate", "chunk_size", [0, -1, 1.5], [1, None]),
    ],
)
def test_numbers_from_json_follow_the_rules_of_the_command_line(kind, name, wrong, right):
    needed: dict[str, Any] = {"folder": "w0"} if kind == "serve" else {"agents": ["127.0.0.1:1"]}
    for value in right:
        settings = parse_settings([kind, json.dumps(needed | {name: value})])
        assert getattr(settings, name) == value
    for value in wrong:
        with pytest.raises(InvalidSetting) as raised:
            parse_settings([kind, json.dumps(needed | {name: value})])
        assert str(raised.value).startswith(f"{name} of ")
        assert str(raised.value).endswith(f"got {value!r}")
