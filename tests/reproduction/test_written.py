"""What is written of every experiment: its record, its plots, and its place on the page."""

import json

import pytest

from reproduction.drawing import picture_file
from reproduction.experiments import EXPERIMENTS
from reproduction.markdown import markdown
from reproduction.page import page
from reproduction.record import load_record, record_file
from reproduction.result import KINDS
from reproduction.run import kept_records
from tests.reproduction.svg import texts

pytestmark = [pytest.mark.reproduction, pytest.mark.timeout(900)]

each = pytest.mark.parametrize("name", EXPERIMENTS)


@each
def test_record_is_the_one_that_was_made(record, out, name):
    made, kept = record(name), load_record(out, name)
    assert kept is not None
    assert kept.as_json() == json.loads(json.dumps(made.as_json()))
    assert json.loads(record_file(out, name).read_text()) == kept.as_json()


@each
def test_every_experiment_has_a_plot_unless_it_is_skipped(record, name):
    result = record(name).result
    assert not result.failed
    assert bool(result.plots) is not bool(result.skipped)


@each
def test_figures_are_of_the_kinds_that_the_list_has(record, name):
    assert set(record(name).result.kinds) <= set(EXPERIMENTS[name].kinds)


@each
def test_every_plot_is_drawn_with_its_title_and_what_its_figures_are(record, out, name):
    for i, plot in enumerate(record(name).result.plots):
        shown = " ".join(texts(picture_file(out, name, i).read_bytes()))
        assert f"{plot.title} ({KINDS[plot.kind]})" in shown


@each
def test_every_claim_that_does_not_hold_has_a_reason(record, name):
    assert [c.name for c in record(name).result.claims if not (c.holds or c.why)] == []


def test_page_has_a_section_of_every_experiment_with_all_of_it(record, out):
    made = [record(name) for name in EXPERIMENTS]
    kept = list(kept_records(out))
    shown, plain = page(kept, out), markdown(kept)
    for each in made:
        assert f'<section id="{each.name}">' in shown
        assert f"\n## {each.name}: {each.title}\n" in plain
    assert "There is no picture" not in shown
    assert shown.count("<svg ") == sum(len(each.result.plots) for each in made)
    tables = sum(len(each.result.tables) for each in made)
    assert shown.count("<table>") == tables + 1
