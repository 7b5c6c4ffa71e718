"""What an earlier training has left unfinished, before a training begins."""

import pytest

from evenstep.partitions.handover.protocol import Given
from evenstep.pytorch.background_processes import Serving
from evenstep.pytorch.local_carrier import _finish
from tests.partitions.agents.agents import serving
from tests.partitions.store.folders import three_partitions
from tests.partitions.store.test_leaving import hand_over_until


@pytest.mark.timeout(90)
def test_training_does_not_begin_while_samples_are_in_nobodys_index(tmp_path):
    """w0 has given samples to w1, which has not heard of it."""
    first, second, third = three_partitions(tmp_path)
    hand_over_until([first, second, third], Given)
    brief = Serving(patience=1.0)
    with serving([first, third]) as agents:
        addresses = [agent.address for agent in agents]
        assert "got m1-0 on their way" in _finish(addresses, brief)
        with serving([second]) as [other]:
            assert _finish([*addresses, other.address], Serving()) == ""
