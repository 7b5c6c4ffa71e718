"""docs/run_log.md is true."""

import re
from pathlib import Path

import pytest

from evenstep.runlog import EVENTS, QUANTITIES, SOURCES, RunLogParser

DOCUMENT = (Path(__file__).parents[2] / "docs" / "run_log.md").read_text()


def test_the_example_is_a_run_log():
    [example] = re.findall(r"```json\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    parser = RunLogParser()
    assert len(parser.feed(example)) == 6
    assert not parser.cut


@pytest.mark.parametrize("name", [*QUANTITIES, *SOURCES, *EVENTS])
def test_every_name_of_the_format_is_documented(name):
    assert f"`{name}`" in DOCUMENT


@pytest.mark.parametrize("kind", EVENTS)
def test_the_keys_of_every_event_are_documented(kind):
    events = DOCUMENT.split("## Events")[1]
    [keys] = re.findall(rf"^\| [`\w, ]*`{kind}`[`\w, ]* \| (.*?) \|", events, re.MULTILINE)
    required = re.findall(r"`(\w+)`", re.sub(r"\[.*?\]", "", keys))
    assert tuple(required) == EVENTS[kind]
