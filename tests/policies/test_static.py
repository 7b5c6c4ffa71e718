"""`static` splits by the shares of the user."""

import pytest

from evenstep.core import Limits
from evenstep.errors import InvalidSetting
from evenstep.policies import Static, make_policy
from tests.policies.examples import view_of


def sizes_of(shares, current, limits=None, times=None):
    decision, state = Static(shares).plan(view_of(current, times, limits=limits), None)
    assert (state, decision.reason) == (None, "static shares")
    return decision.sizes.tolist()


def test_the_shares_of_the_paper():
    assert sizes_of((2.0, 2.0, 2.0, 15.0), [21] * 4) == [8, 8, 8, 60]


def test_shares_are_relative():
    assert sizes_of((0.1, 0.3), [8, 8]) == sizes_of((5, 15), [8, 8]) == [4, 12]


def test_what_does_not_come_out_even_is_split_exactly():
    # 16 / 3 each; ties to the lower worker.
    assert sizes_of((1, 1, 1), [16, 0, 0]) == [6, 5, 5]


def test_times_do_not_matter():
    assert sizes_of((1, 3), [8, 8], times=[9.0, 0.1]) == [4, 12]


def test_limits_come_before_shares():
    assert sizes_of((1, 3), [8, 8], Limits.of(2, cap=[16, 10])) == [6, 10]
    assert sizes_of((1, 1000), [8, 8], Limits.of(2, minimum=3)) == [3, 13]


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_shares_that_cannot_be_are_refused(bad):
    with pytest.raises(InvalidSetting, match=rf"^static share .*> 0, got {bad} for worker 1$"):
        Static((1.0, bad))


def test_no_shares_are_refused():
    with pytest.raises(InvalidSetting, match=r"^static shares .*one per worker, got none$"):
        Static(())


@pytest.mark.parametrize(
    "use",
    [
        lambda policy: policy.init(3),
        lambda policy: policy.plan(view_of([4, 4, 4]), None),
        lambda policy: policy.remap(None, [0, 1, -1]),
    ],
)
def test_shares_must_be_one_per_worker(use):
    with pytest.raises(InvalidSetting, match=r"^static shares .*one per worker \(3\), got 2$"):
        use(Static((1.0, 2.0)))


@pytest.mark.parametrize("spec", ["static:shares=2:2:15", "static:shares=a/b", "static:shares=3"])
def test_shares_written_in_another_way_are_refused(spec):
    with pytest.raises(InvalidSetting, match=r"^settings of 'static' .*: "):
        make_policy(spec)
