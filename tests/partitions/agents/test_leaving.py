"""Workers that leave, or are lost, between machines."""

import json

import pytest

from evenstep.cli.main import main
from evenstep.errors import InvalidSetting
from evenstep.partitions.handover.protocol import MANAGER, Begin, Envelope
from evenstep.partitions.store import Partition, verify
from tests.partitions.agents.agents import migration, serving
from tests.partitions.store.folders import NUM_SAMPLES, three_partitions


def test_partition_of_a_leaving_worker_is_shared_out_by_agents(tmp_path, capsys):
    folders = three_partitions(tmp_path)
    with serving(folders) as agents:
        addresses = ",".join(agent.address for agent in agents)
        words = ["partition", "migrate", "--agents", addresses, "--leaving", "w2", "--json"]
        assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["sizes"] == {"w0": 30, "w1": 30, "w2": 0}
    found = verify(folders[:2])
    assert (found.problems, found.complete) == ((), True)
    assert found.num_samples == NUM_SAMPLES


@pytest.mark.timeout(90)
def test_hand_overs_with_a_lost_partition_end(tmp_path):
    folders = three_partitions(tmp_path)
    with serving(folders[:2]) as agents, migration(agents) as manager:
        samples = tuple(Partition.open(folders[0]).samples[:4].tolist())
        begin = Envelope(MANAGER, "w0", Begin("m1-0", "w2", samples, 4))
        manager._agents["w0"].deliver(begin)
        assert [one.hand_over for one in manager._agents["w0"].describe().hand_overs] == ["m1-0"]
        with pytest.raises(InvalidSetting, match=r"lost .* got w1"):
            manager.settle_lost(["w1"])
        manager.settle_lost(["w2"])
        assert manager._agents["w0"].describe().hand_overs == []
        tasks = manager.plan([1, 3], "m2")
        assert [task.phase for task in manager.carry_out(tasks)] == ["done"]
        assert manager.sizes == {"w0": 10, "w1": 30}
    assert verify(folders[:2]).num_missing == 20
