"""Plots show what is there, with what their figures are, and nothing where nothing is."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from reproduction.drawing import NO_FIGURE, _draw_bars, draw
from reproduction.result import KINDS, Curve, Plot
from tests.reproduction.svg import texts

NAMES = ["x", "y", "z"]


def bars(*curves):
    return Plot("bars", "virtual", "", "s", [Curve(*curve) for curve in curves], bars=True)


@pytest.mark.parametrize("kind", KINDS)
def test_plot_is_labelled_with_what_its_figures_are(kind):
    picture = draw(Plot("a title", kind, "k", "s", [Curve("a", [0, 1], [1.0, 2.0])]))
    assert f"a title ({KINDS[kind]})" in " ".join(texts(picture))


def test_no_bar_is_drawn_where_there_is_no_figure():
    axes = Figure().subplots()
    _draw_bars(axes, bars(("a", NAMES, [1.0, None, 0.9]), ("b", NAMES, [float("nan"), 0.0, 2.0])))
    heights = [[bar.get_height() for bar in some] for some in axes.containers[:2]]
    np.testing.assert_equal(heights, [[1.0, np.nan, 0.9], [np.nan, 0.0, 2.0]])
    places = [[bar.get_x() + bar.get_width() / 2 for bar in some] for some in axes.containers[:2]]
    assert [text.get_text() for text in axes.texts] == ["-", "-"]
    marked = [text.get_position()[0] for text in axes.texts]
    np.testing.assert_allclose(marked, [places[0][1], places[1][0]])


def test_picture_says_what_a_missing_bar_means():
    shown = texts(draw(bars(("a", NAMES, [1.0, None, 0.9]), ("none", NAMES, [None] * 3))))
    assert NO_FIGURE in shown
    assert shown.count("-") == 4
    assert NO_FIGURE not in texts(draw(bars(("a", NAMES, [1.0, 0.0, 0.9]))))
