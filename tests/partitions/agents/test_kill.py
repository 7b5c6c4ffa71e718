"""SIGKILL of giver, receiver and manager at every phase: no sample is lost or doubled."""

import signal
from functools import partial

import pytest

from evenstep.partitions.store import Partition
from tests.partitions.agents.agents import (
    Command,
    Crash,
    CrashAtCall,
    CrashOfManager,
    assert_whole,
    in_background,
    migration,
    serving,
)
from tests.partitions.store.folders import NUM_SAMPLES, content, three_partitions

PHASES = {"giver": ("offered", "given", "settled"), "receiver": ("staging", "staged", "adopted")}
MOMENTS = ("before", "after")


def sizes(folders):
    return [len(Partition.open(folder)) for folder in folders]


@pytest.mark.parametrize("who", PHASES)
def test_killed_agent_goes_on_where_it_was(tmp_path, who):
    folders = three_partitions(tmp_path)
    points = [(phase, moment) for phase in PHASES[who] for moment in MOMENTS]
    if who == "receiver":
        points.append(("chunk", "after"))
    with serving(folders) as agents:
        for number, point in enumerate(points):
            # Samples go back and forth between the first and the last.
            giver, receiver = (0, 2) if number % 2 == 0 else (2, 0)
            wanted = [10, 20, 30] if number % 2 == 0 else [30, 20, 10]
            victim = agents[giver if who == "giver" else receiver]
            victim.kill()
            victim.start(Crash(f"m{number}-", *point))
            with migration(agents) as manager:
                tasks = manager.plan(wanted, f"m{number}", chunk_size=3)
                outcome = in_background(partial(manager.carry_out, tasks))
                victim.wait_for_crash()
                assert_whole(folders, NUM_SAMPLES, at_rest=False)
                victim.start()
                assert [task.phase for task in outcome()] == ["done"], point
            assert_whole(folders, NUM_SAMPLES)
            assert sizes(folders) == wanted
    # Every row is still the one of its sample.
    for folder in folders:
        assert all(sample == pixel for sample, pixel in content(Partition.open(folder)).items())


@pytest.mark.parametrize("kind", ["Begin", "Commit"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_what_a_killed_manager_began_is_finished_by_the_next(tmp_path, kind, moment):
    folders = three_partitions(tmp_path)
    with serving(folders) as agents:
        addresses = ",".join(agent.address for agent in agents)
        words = ["partition", "migrate", "--agents", addresses, "--batch-sizes", "10,20,30"]
        words += ["--chunk-size", "3"]
        killed = Command(*words, log=tmp_path / "log", prepare=CrashOfManager(kind, moment))
        assert killed.wait() == -signal.SIGKILL
        assert_whole(folders, NUM_SAMPLES, at_rest=False)
        with migration(agents) as manager:
            finished = manager.finish()
            if (kind, moment) in (("Begin", "after"), ("Commit", "before")):
                assert [(task.phase, len(task.samples)) for task in finished] == [("done", 10)]
            assert_whole(folders, NUM_SAMPLES)
            expected = [20, 20, 20] if (kind, moment) == ("Begin", "before") else [10, 20, 30]
            assert sizes(folders) == expected
            assert list(manager.sizes.values()) == expected
        for agent in agents:
            agent.stop()


@pytest.mark.parametrize("call", ["describe", "samples", "introduce", "compact"])
def test_command_goes_on_when_an_agent_that_died_is_there_again(tmp_path, call):
    folders = three_partitions(tmp_path)
    with serving(folders) as agents:
        victim = agents[2]
        victim.kill()
        victim.start(CrashAtCall(call))
        addresses = ",".join(agent.address for agent in agents)
        words = ["partition", "migrate", "--agents", addresses, "--batch-sizes", "10,20,30"]
        command = Command(*words, "--compact", log=tmp_path / "log")
        victim.wait_for_crash()
        victim.start()
        assert command.wait() == 0, (tmp_path / "log").read_text()
        assert_whole(folders, NUM_SAMPLES)
        assert sizes(folders) == [10, 20, 30]


def test_command_finishes_an_open_migration_though_a_giver_dies_first(tmp_path):
    folders = three_partitions(tmp_path)
    with serving(folders) as agents:
        addresses = ",".join(agent.address for agent in agents)
        words = ["partition", "migrate", "--agents", addresses, "--batch-sizes", "10,20,30"]
        killed = Command(*words, log=tmp_path / "log", prepare=CrashOfManager("Commit", "before"))
        assert killed.wait() == -signal.SIGKILL
        giver = agents[0]
        giver.kill()
        giver.start(CrashAtCall("begun"))
        command = Command(*words, log=tmp_path / "log")
        giver.wait_for_crash()
        giver.start()
        assert command.wait() == 0, (tmp_path / "log").read_text()
        assert_whole(folders, NUM_SAMPLES)
        assert sizes(folders) == [10, 20, 30]


def test_command_gives_up_after_its_patience_and_says_which_agent_is_missing(tmp_path):
    folders = three_partitions(tmp_path)
    with serving(folders) as agents:
        agents[1].kill()
        addresses = ",".join(agent.address for agent in agents)
        words = ["partition", "migrate", "--agents", addresses, "--batch-sizes", "10,20,30"]
        command = Command(*words, "--patience", 5, log=tmp_path / "log")
        assert command.wait() == 1
        said = (tmp_path / "log").read_text()
        assert said.count(f"the agent at {agents[1].address}: Connection refused") == 2
        assert "asking again for up to 5 s" in said
        assert_whole(folders, NUM_SAMPLES)
