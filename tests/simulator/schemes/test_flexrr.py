"""`flexrr`: pairs of lagging workers and helpers, worked out by hand."""

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.simulator.schemes import FlexRR, make_scheme


def helped(flexrr, remaining, batch_size=100):
    found = flexrr.check(np.array(remaining), batch_size)
    return list(
        zip(found.lagging.tolist(), found.helpers.tolist(), found.counts.tolist(), strict=True)
    )


def test_furthest_behind_gives_to_furthest_ahead():
    flexrr = FlexRR(5, trigger=0.2, share=0.1)
    assert helped(flexrr, [80, 10, 50, 30, 60]) == [(0, 1, 10), (4, 3, 10)]


def test_lag_up_to_the_trigger_is_left_alone():
    flexrr = FlexRR(2, trigger=0.2)
    assert helped(flexrr, [50, 30]) == []
    assert helped(flexrr, [51, 30]) == [(0, 1, 2)]


def test_pair_shares_its_difference_at_most():
    assert helped(FlexRR(2, trigger=0.0, share=0.5), [10, 3]) == [(0, 1, 3)]


def test_idle_worker_helps_however_small_the_lag():
    assert helped(FlexRR(2, trigger=0.2), [3, 0]) == [(0, 1, 1)]
    assert helped(FlexRR(2, trigger=0.2), [1, 0]) == []


def test_single_worker_has_none_to_help():
    assert helped(FlexRR(1), [50]) == []


def test_settings_are_read_from_the_short_form():
    flexrr = make_scheme("flexrr:checks=10,trigger=0.1,share=0.5,monitoring=0.1,moving=0.2", 3)
    assert isinstance(flexrr, FlexRR)
    assert (flexrr.checks, flexrr.trigger, flexrr.share) == (10, 0.1, 0.5)
    assert (flexrr.monitoring, flexrr.moving) == (0.1, 0.2)


@pytest.mark.parametrize(
    "setting", ["checks=0", "trigger=-1", "share=0", "share=2", "monitoring=-0.1", "moving=nan"]
)
def test_settings_are_checked(setting):
    with pytest.raises(InvalidSetting, match=f"{setting.partition('=')[0]} of flexrr"):
        make_scheme(f"flexrr:{setting}", 3)
