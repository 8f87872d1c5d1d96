import re

import numpy as np
import pytest

from browser import samples
from regard.seeing import Map, Text, Token, Trace
from regard.seeing.draw.shapes import ChartAxis
from regard.seeing.page.report import MOST_COLUMNS, evenly_spaced, render_report

HISTORY = [
    {"step": 10, "tokens": 500, "seconds": 2.0, "train_loss": 3.0, "dev_loss": 2.5, "dev_per": 0.9},
    {"step": 20, "tokens": 1100, "seconds": 4.0}
    | {"train_loss": 2.0, "dev_loss": 1.5, "dev_per": 999.7},
]


def example(peak):
    weights = np.full((1, 2, 3), (1 - peak) / 2, dtype=np.float32)
    weights[:, :, 0] = peak
    return Trace(
        Text.of(["a", "b", "</s>"]), Text.of(["c", "</s>"]), (Map.of("cross", 0, weights),)
    )


def test_a_report_has_curves_maps_and_a_table_and_a_script_while_its_run_trains():
    steps = [(10, [example(0.4), samples.far()]), (20, [example(0.9), samples.far()])]
    page = render_report(HISTORY, steps, {"model": "tiny <b>"}, "a run")
    assert "<script" not in page
    assert "default-src 'none'" in page
    followed = render_report(HISTORY, steps, {}, "a run", training=True)
    assert "location.reload()" in followed
    assert "This run is training" in followed
    assert page.count("<polyline") == 4  # two losses, one metric, the speed
    assert page.count("<section") == 2
    assert page.count("<li>") == 4
    assert "tiny &lt;b&gt;" in page
    for value in ("dev per", "0.9", "2.5", "1100"):
        assert value in page
    assert "1e+03" not in page
    numbers = render_report([{**HISTORY[0], "dev_mse": 1.0}], [], {}, "x")
    assert "Loss, of standardised numbers" in numbers


@pytest.mark.parametrize("low", [0.1346, 1.1001, 1013.2, 101_325.1, 2_000_000.0])
def test_ticks_are_told_apart(low):
    axis = ChartAxis.over([low, low * 1.000004])
    units = [(label.rstrip("kM"), {"k": 1e3, "M": 1e6}.get(label[-1], 1)) for label in axis.labels]
    assert [float(number) * unit for number, unit in units] == pytest.approx(axis.ticks, rel=1e-9)
    assert len({*axis.labels}) == len(axis.ticks)


def test_labels_are_bars_of_probability_beside_the_simple_way():
    def label(prob):
        token = Token("good", prob=prob, alternatives=(("bad <b>", 1 - prob),))
        return Trace(Text.of(["a", "b"]), Text("good", (token,)))

    history = [{**row, "dev_accuracy": 0.7, "baseline_accuracy": 0.8} for row in HISTORY]
    page = render_report(history, [(10, [label(0.25)]), (20, [label(0.875)])], {}, "x")
    assert re.findall(r'<i style="width:([\d.]+)%">', page) == ["25.0", "75.0", "87.5", "12.5"]
    assert page.count('<li class="right"><bdi>good</bdi>') == 2
    assert "<bdi>bad &lt;b&gt;</bdi>" in page
    assert "The darkest colour" not in page  # there is no map
    assert "the simple way</span>" in page


@pytest.mark.parametrize("count", [0, 1, 12, 13, 1000])
def test_columns_are_thinned_evenly_and_the_ends_stay(count):
    found = evenly_spaced(count, MOST_COLUMNS)
    assert len(found) == min(count, MOST_COLUMNS)
    assert found[:1] == [0][:count]
    assert found[-1:] == [count - 1][:count]
