"""Types of command-line arguments."""

import argparse

import pytest

from evenstep.cli.arguments import count, parse_seeds, whole
from evenstep.errors import InvalidSetting


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("7", [7]),
        ("0-2", [0, 1, 2]),
        ("3-3", [3]),
        ("1,4,9", [1, 4, 9]),
        ("0-1,5,8-9", [0, 1, 5, 8, 9]),
    ],
)
def test_seeds_are_ranges_or_single_ones_or_both(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1--2", "0-3-5", "1,", ",1", "1.5", "0 - 3"])
def test_seeds_of_another_form_are_refused(text):
    with pytest.raises(InvalidSetting) as refused:
        parse_seeds(text)
    assert str(refused.value) == f"seeds must be like 0-7 or 1,4,9, got {text!r}"


@pytest.mark.parametrize("text", ["5-3", "1,1", "0-4,2", "3,1", "0-1,5-3", "2-4,4-6"])
def test_seeds_that_do_not_rise_are_refused(text):
    with pytest.raises(InvalidSetting) as refused:
        parse_seeds(text)
    assert str(refused.value) == f"seeds must rise, got {text!r}"


def test_whole_numbers_are_read():
    assert [count("1"), count("20"), whole("0"), whole("7")] == [1, 20, 0, 7]


@pytest.mark.parametrize(
    ("read", "text", "least"),
    [(count, "0", 1), (count, "-3", 1), (count, "x", 1), (whole, "-1", 0), (whole, "1.5", 0)],
)
def test_what_is_no_such_number_is_refused(read, text, least):
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        read(text)
    assert str(refused.value) == f"must be a whole number >= {least}, got {text!r}"
