"""The Grafana dashboard uses only metrics that a manager has."""

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.manager.managers import boundary

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "grafana.json").read_text())


def queries():
    """All Prometheus queries of the dashboard."""
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    named = [v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    return panels + named


def test_every_metric_and_label_it_asks_for_is_there(manager, job):
    clients = [
        manager.connect(job, w, workers=2, total=60, policy="proportional", predictor="ema")
        for w in "ab"
    ]
    boundary(clients, 0)
    boundary(clients, 1, 10.0, 20.0)
    _, text = manager.get("/metrics")
    shown: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        shown.setdefault(family.name, set())
        for sample in family.samples:
            shown.setdefault(sample.name, set()).update(sample.labels)
        if family.type == "counter":
            # A counter without labels so far has no samples, but exists.
            shown.setdefault(f"{family.name}_total", {"problem"})
    asked = {name for query in queries() for name in re.findall(r"evenstep_\w+", query)}
    assert asked and asked <= set(shown)
    for query in queries():
        for name, label in re.findall(r"(evenstep_\w+)\{(\w+)=", query):
            assert label in shown[name], query
    for client in clients:
        client.leave()


def test_panels_have_distinct_names_and_do_not_overlap():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for position in (panel["gridPos"] for panel in panels)
        for x in range(position["x"], position["x"] + position["w"])
        for y in range(position["y"], position["y"] + position["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24


def test_every_panel_asks_the_data_source_that_the_user_chose():
    sources = {
        target["datasource"]["uid"] for panel in DASHBOARD["panels"] for target in panel["targets"]
    }
    assert sources == {"${datasource}"}
