import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from regard.lab import plots
from regard.lab.context import MeanInterval
from regard.lab.plots import COLOURS


def drawn(label="a line"):
    figure, (axes,) = plots.new_figure()
    line = [MeanInterval(2.0, 1.0, 3.0), MeanInterval(4.0, 3.0, 9.0), None]
    lines = {"level": [1.0], label: line}
    plots.draw_lines(axes, [1, 2, 3], lines, bounds=(0, 5), xlabel="width")
    plots.legend(axes)
    return figure


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
