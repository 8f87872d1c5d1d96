"""The numbers of the home page."""

import pytest

from website import home


@pytest.mark.parametrize(
    ("metric", "score", "simple", "left"),
    [
        ("accuracy", 0.9, 0.8, 0.5),
        ("mse", 0.3, 0.4, 0.75),
        ("nats per character", 1.1, 1.0, 1.1),
        ("chrf", 10.0, 20.0, 1.125),
    ],
)
def test_the_error_is_a_share_of_that_of_the_simple_way(metric, score, simple, left):
    record = {"metric": metric, "score": score, "simple": simple}
    assert home.error_left(record) == pytest.approx(left)


def test_a_bar_is_the_mean_of_its_seeds_and_the_shortest_comes_first():
    records = [
        {"case": "reviews", "metric": "accuracy", "score": 0.9, "simple": 0.8},
        {"case": "reviews", "metric": "accuracy", "score": 0.8, "simple": 0.8},
        {"case": "stars", "metric": "mse", "score": 0.3, "simple": 0.6},
        {"case": "broken", "metric": None, "error": "no model", "simple": None},
    ]
    bars = home.chart({"records": records}, "zh")
    assert bars == [{"name": "星级评分，CSV", "percent": 50}, {"name": "影评，CSV", "percent": 75}]


def test_every_measured_data_set_has_a_name():
    import json

    results = json.loads(home.RESULTS.read_text("utf-8"))
    assert {record["case"] for record in results["records"]} <= set(home.NAMES)
