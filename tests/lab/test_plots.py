import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from regard.lab import plots
from regard.lab.estimates import MeanInterval
from regard.lab.plots import COLOURS, DARK_COLOURS

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
BLINDNESS = {
    "none": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def lab_colour(code, matrix):
    shares = np.array([int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(matrix) @ linear, 0, 1)
    x, y, z = (np.array(TO_XYZ) @ seen) / (0.9505, 1.0, 1.089)
    f = [v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def drawn(label="a line"):
    figure, (axes,) = plots.new_figure()
    line = [MeanInterval(2.0, 1.0, 3.0), MeanInterval(4.0, 3.0, 9.0), None]
    lines = {"level": [1.0], label: line}
    plots.draw_lines(axes, [1, 2, 3], lines, bounds=(0, 5), xlabel="width")
    plots.legend(axes)
    return figure


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize("colours", [COLOURS, DARK_COLOURS], ids=["light", "dark"])
def test_colours_can_be_told_apart(kind, colours):
    seen = [lab_colour(code, BLINDNESS[kind]) for code in colours]
    apart = [np.linalg.norm(a - b) for i, a in enumerate(seen) for b in seen[:i]]
    assert min(apart) > 11


def test_every_colour_has_a_dark_one_and_a_marker():
    assert len(COLOURS) == len(set(COLOURS)) == len(DARK_COLOURS) == len(plots.MARKERS)


def test_axes_come_row_by_row():
    figure, axes = plots.new_figure(columns=3, rows=2)
    assert len(axes) == 6
    assert [at.get_subplotspec().rowspan.start for at in axes] == [0, 0, 0, 1, 1, 1]
    assert figure.get_figwidth() == plots.new_figure()[0].get_figwidth()


def test_a_line_has_its_band_and_a_gap_where_there_is_none():
    (axes,) = drawn().axes
    assert list(axes.lines[0].get_xdata()) == [1]
    assert np.isnan(axes.lines[1].get_ydata()[2])
    corners = axes.collections[1].get_paths()[0].vertices
    assert {(1, 1), (1, 3), (2, 3), (2, 5)} <= {tuple(corner) for corner in corners.tolist()}


@pytest.mark.slow
def test_a_figure_is_saved_as_both_and_always_the_same(tmp_path):
    first = plots.save(drawn(), tmp_path / "one", "x-y")
    assert plots.save(drawn(), tmp_path / "two", "x-y") == first
    for name in ("x-y.svg", "x-y.png"):
        one, two = ((tmp_path / folder / name).read_bytes() for folder in ("one", "two"))
        assert one == two
        assert len(one) > 1000
    ET.parse(tmp_path / "one" / "x-y.svg")


@pytest.mark.slow
def test_two_figures_in_a_page_share_no_id_and_refer_to_their_own(tmp_path):
    one, two = (plots.save(drawn(), tmp_path, stem) for stem in ("one", "two"))
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for svg, own in zip((one, two), ids, strict=True):
        used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg))
        assert used
        assert used <= own


@pytest.mark.slow
def test_inline_svg_follows_the_page(tmp_path):
    svg = plots.save(drawn("Σ <α> & co"), tmp_path, "x")
    assert "Σ <α> & co" in "".join(ET.fromstring(svg).itertext())
    assert svg.startswith("<svg")
    assert "<style" not in svg
    assert "var(--c1)" in svg
    assert COLOURS[1] not in svg
    assert "#ffffff" not in svg
    assert not re.search(r'<svg[^>]* (?:width|height)="', svg)
    assert COLOURS[1] in (tmp_path / "x.svg").read_text()
