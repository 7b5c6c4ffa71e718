"""Settings in short form, and errors where they do not fit."""

from dataclasses import dataclass

import numpy as np
import pytest

from evenstep.core.short_form import construct, parse_spec, require_whole
from evenstep.errors import InvalidSetting


@dataclass(frozen=True)
class Example:
    inner: str
    step: int = 5
    window: int = 5
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.step < 1:
            raise InvalidSetting(f"step of example must be >= 1, got {self.step}")
        [float(share) for share in self.shares]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("even", ("even", {})),
        ("stepwise:step=10", ("stepwise", {"step": 10})),
        ("a:b=-3,c=+4", ("a", {"b": -3, "c": 4})),
        ("a:b=1.5,c=1e-3,d=.5", ("a", {"b": 1.5, "c": 0.001, "d": 0.5})),
        ("a:b=true,c=false,d=True", ("a", {"b": True, "c": False, "d": "True"})),
        ("static:shares=2/2/2/15", ("static", {"shares": (2.0, 2.0, 2.0, 15.0)})),
        ("static:shares=0.5/1", ("static", {"shares": (0.5, 1.0)})),
        ("a:file=models/best", ("a", {"file": "models/best"})),
        ("a:b=c:d=e", ("a", {"b": "c:d=e"})),
        ("a:b=+-1", ("a", {"b": "+-1"})),
        ("", ("", {})),
    ],
)
def test_a_short_form_is_a_name_and_its_settings(spec, expected):
    name, settings = parse_spec(spec)
    assert (name, settings) == expected
    assert [type(v) for v in settings.values()] == [type(v) for v in expected[1].values()]


@pytest.mark.parametrize(
    ("spec", "item"),
    [
        ("a:", ""),
        ("a:b", "b"),
        ("a:b=", "b="),
        ("a:=3", "=3"),
        ("a:b=1,", ""),
        ("a:b=1,,c=2", ""),
    ],
)
def test_what_is_no_setting_is_refused(spec, item):
    with pytest.raises(InvalidSetting, match=rf"'a' .* got {item!r}$"):
        parse_spec(spec)


def test_settings_are_passed_on_after_the_arguments():
    assert construct(Example, "example", {"step": 3}, "x") == Example("x", step=3)


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"stop": 3}, "'example' .* step, window, shares, got 'stop' .*'step'"),
        ({"zzz": 3}, "'example' .* step, window, shares, got 'zzz'$"),
        # An argument is not a setting.
        ({"inner": "y"}, "'example' .* step, window, shares, got 'inner'$"),
        ({"step": 0}, "^step of example .* 1, got 0$"),
        ({"step": "ten"}, "'example' .*'<' .* 'str' and 'int'$"),
        ({"shares": "2:2"}, "'example' .* ':'$"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, values):
    with pytest.raises(InvalidSetting, match=values):
        construct(Example, "example", settings, "x")


def test_a_setting_that_is_missing_is_named():
    with pytest.raises(InvalidSetting, match=r"'example' .* 'inner'$"):
        construct(Example, "example", {})


def test_a_policy_without_settings_takes_none():
    with pytest.raises(InvalidSetting, match=r"'even' .* got 'step'$"):
        construct(lambda: None, "even", {"step": 3})


@pytest.mark.parametrize("value", [2, np.int64(2), 2**53])
def test_a_whole_number_is_one_of_any_type(value):
    require_whole("n", value, least=2)


@pytest.mark.parametrize("value", [2.0, 2.5, float("nan"), float("inf"), "2", True, None])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(InvalidSetting, match=rf"^n of x .* got {value!r}$"):
        require_whole("n of x", value)


def test_a_whole_number_that_is_too_small_is_refused():
    with pytest.raises(InvalidSetting, match=r"^n of x .* 2, got 1$"):
        require_whole("n of x", 1, least=2)
