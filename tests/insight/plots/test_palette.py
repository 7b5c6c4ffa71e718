"""Colours stay distinct for everybody, on light and on dark backgrounds, in all views."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from evenstep.insight.plots.palette import DARK, LIGHT
from evenstep.insight.plots.plot_data import FEW

STYLE = Path(__file__).parents[3] / "evenstep/insight/dashboard/assets/style.css"

VISIONS = {
    "normal": np.eye(3),
    # Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)

DISTINCT = 10.0
"""Least distance in CIELAB; 2.3 is just noticeable where two areas touch."""
CONTRAST = 2.5
"""Least ratio of luminances of a line and its background; all lines have a label, too."""


def linear(colour):
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(colour, vision="normal"):
    """A colour in CIELAB, as seen with a vision."""
    seen = np.clip(VISIONS[vision] @ linear(colour), 0, 1)
    xyz = _XYZ @ seen / _XYZ.sum(axis=1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def confused(colours):
    """The pairs of names whose colours are too similar for some vision."""
    return [
        (one, other, vision)
        for one, other in combinations(colours, 2)
        for vision in VISIONS
        if np.linalg.norm(lab(colours[one], vision) - lab(colours[other], vision)) < DISTINCT
    ]


def contrast(one, other):
    low, high = sorted(float(_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("colour", "expected"),
    [
        ("#ffffff", (100, 0, 0)),
        ("#ff0000", (53.24, 80.09, 67.20)),
        ("#0000ff", (32.3, 79.2, -107.9)),
    ],
)
def test_cielab_is_that_of_the_textbook(colour, expected):
    np.testing.assert_allclose(lab(colour), expected, atol=0.1)


def test_red_and_green_of_equal_lightness_are_confused():
    assert confused({"red": "#d62728", "green": "#7a6a00"}) != []
    assert confused({"blue": "#0000c0", "yellow": "#d0d000"}) == []


PANELS = {
    "iteration times": ("back", "run", "plain", "optimum"),
    "many workers": ("back", "wait", "workers", "warn", "leader"),
    "timeline": ("back", "run", "warn", "wait"),
}
"""The colours that are next to each other."""


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("names", PANELS.values(), ids=PANELS)
def test_colours_of_a_panel_are_distinct(palette, names):
    assert confused({name: palette.roles[name] for name in names}) == []


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_a_few_workers_are_distinct_in_the_whole_figure(palette):
    series = [name for name in palette.roles if name.startswith("series-")]
    assert len(series) == FEW
    others = ("back", "wait", "run", "plain", "optimum")
    assert confused({name: palette.roles[name] for name in (*others, *series)}) == []


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_lines_and_text_stand_out_from_the_background(palette):
    for name, colour in palette.roles.items():
        if name not in ("back", "grid", "tile", "wait", "mark"):
            least = 4.5 if name in ("ink", "pale") else CONTRAST
            assert contrast(colour, palette.back) >= least, name


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_no_colour_has_two_roles(palette):
    # A page finds the variable of a colour by its value.
    assert len(set(palette.roles.values())) == len(palette.roles)


def test_light_and_dark_have_the_same_roles():
    assert list(LIGHT.roles) == list(DARK.roles)


def dashboard():
    """The colours of the dashboard's themes, by the selector of their block."""
    blocks = re.findall(r"(:root[^{]*)\{([^}]*)\}", STYLE.read_text(encoding="utf-8"))
    return {
        selector.strip(): dict(re.findall(r"--([\w-]+):\s*(#[0-9a-fA-F]{6})\b", block))
        for selector, block in blocks
    }


def test_the_dashboard_has_a_light_and_a_dark_theme():
    assert len(dashboard()) == 2


@pytest.mark.parametrize("theme", dashboard())
def test_the_dashboard_is_as_distinct(theme):
    colours = dashboard()[theme]
    for names in (("card", "run", "plain", "optimum"), ("card", "run", "warn", "wait")):
        assert confused({name: colours[name] for name in names}) == []


@pytest.mark.parametrize("role", ["run", "plain", "optimum", "warn", "wait", "workers"])
def test_a_colour_means_the_same_in_plots_and_on_the_dashboard(role):
    light, dark = dashboard().values()
    assert (LIGHT.roles[role], DARK.roles[role]) == (light[role], dark[role])
