"""Figures: SVG that is well formed and says what it shows; PNG and PDF from the same shapes."""

import re
import struct
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

from regard.seeing import Map, Text, Trace, select
from regard.seeing.draw import figure
from regard.seeing.draw.figure import FigureLayout
from regard.seeing.draw.shapes import MOST, STOPS, colour
from seeing.tools import HOSTILE, assert_tidy, of_labels, translation
from seeing.trace.test_backdrop import picture

SVG = "{http://www.w3.org/2000/svg}"


def drawn(view, **options):
    return ET.fromstring(figure.svg(view, **options))


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


def cells(root):
    """What the cells say when pointed at."""
    found = (element.find(f"{SVG}title") for element in root.iter(f"{SVG}rect"))
    return [title.text for title in found if title is not None]


def test_every_cell_is_there_and_says_its_weight():
    found = cells(drawn(select(translation())))
    assert len(found) == 3 * 4
    assert "chat ← unhappy: 0.400" in found
    assert "le ← the: 0.700" in found
    shares = (-1.0, 0.0, 1 / 12, 1 / 6, 2.0)  # the first two of seven colours, and half way between
    stops = [STOPS[0], STOPS[0], "#e4ecf8", STOPS[1], STOPS[6]]
    assert list(map(colour, shares)) == stops


def test_hostile_tokens_stay_text():
    root = drawn(select(of_labels(HOSTILE, HOSTILE)))
    found = texts(root)
    for text in ("</script>", "<b>", "&amp;", '"', "👩‍👩‍👧", "مرحبا", "今日", "∅", "↵", "⇥", "]]>"):
        assert found.count(text) == 2  # a row and a column
    assert "x" * 23 + "…" in found
    assert "^[[31m" in found
    assert {element.tag for element in root.iter()} <= {
        SVG + name for name in ("svg", "title", "desc", "rect", "text", "g", "path")
    }


def test_labels_stay_inside_the_figure():
    labels = ["a-rather-long-label-here", "b", "今日は晴れです", "and-another-long-one"]
    root = drawn(select(of_labels(labels, labels)))
    width, height = float(root.get("width")), float(root.get("height"))
    for element in root.iter(f"{SVG}text"):
        moved = re.match(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
        x, y = map(float, moved.groups() if moved else (element.get("x"), element.get("y")))
        assert 0 <= x <= width
        assert 0 <= y <= height
        if element.get("text-anchor") == "end":
            assert x - 7 * len(element.text) >= 0


def test_the_strongest_patches_are_named_below_their_pictures():
    assert_tidy(drawn(select(picture())))


def test_a_large_map_is_a_small_file_with_each_weight_in_it():
    size = 512
    labels = [str(i) for i in range(size)]
    weights = np.eye(size, dtype=np.float32)[None]
    trace = Trace(Text.of(labels), Text.of(labels), (Map.of("cross", 0, weights),))
    text = figure.svg(select(trace))
    assert len(text) < 400_000
    assert text.count("M") >= size
    root = ET.fromstring(text)
    assert len(list(root.iter())) < 5000
    assert len(re.findall("M", "".join(p.get("d") for p in root.iter(f"{SVG}path")))) == size


def test_beyond_the_most_a_single_peak_survives_and_the_cut_is_said():
    size = 2 * MOST + 1
    weights = np.zeros((1, 1, size), dtype=np.float32)
    weights[0, 0, 700], weights[0, 0, 701] = 0.9, 0.1
    trace = Trace(
        Text.of([str(i) for i in range(size)]), Text.of("x"), (Map.of("cross", 0, weights),)
    )
    layout = FigureLayout(select(trace))
    assert layout.view.weights.shape == (1, 342)  # three to a cell
    assert layout.view.weights[0, 700 // 3] == pytest.approx(0.9)
    assert any("3 inputs to a cell" in note for note in layout.notes)


@pytest.mark.slow
def test_png_and_pdf_are_what_they_say():
    labels = ["今日", "مرحبا", "$x^$", "\x1b", "</s>"]
    view = replace(select(translation(), words=False), columns=labels)
    png, pdf = (figure.raster(view, ending) for ending in ("png", "pdf"))
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    root = drawn(view)
    assert abs(width - 2 * float(root.get("width"))) <= 2
    assert abs(height - 2 * float(root.get("height"))) <= 2
    assert pdf.startswith(b"%PDF")
    assert figure.raster(view, "pdf") == pdf  # no date is in it
