"""What models are called, and how one is stopped."""

from pathlib import Path

import pytest

from regard.serve.batching import NotWantedError
from regard.serve.limits import Limits
from regard.serve.models import longest, names, source_length, stoppable


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (["runs/a"], ["a"]),
        (["runs/a", "runs/b/"], ["a", "b"]),
        (["x/a", "y/a", "b"], ["x/a", "y/a", "b"]),
        (["x/a/best", "y/a/best"], ["x/a/best", "y/a/best"]),
        (["a", "a"], ["a 1", "a 2"]),
        (["runs/a/../b"], ["b"]),
    ],
)
def test_models_are_called_by_as_much_of_the_path_as_it_takes(runs, expected):
    assert names([Path(run) for run in runs]) == expected


def test_a_model_goes_by_the_name_of_a_link_to_it(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert names([tmp_path / "link"]) == ["link"]


def test_a_model_stops_before_its_next_step_and_is_given_back_as_it_was(models):
    model = models.by_name["looking"]
    asked = []

    def wanted():
        asked.append(1)
        return len(asked) < 4

    before = dict(vars(model.module))
    with pytest.raises(NotWantedError), stoppable(model.module, wanted):
        model("abcdefgh", beam=1)
    assert len(asked) == 4
    assert vars(model.module).keys() == before.keys()
    assert not model.module._forward_pre_hooks
    assert len(model("abcdefgh", beam=1).tokens) > 4


def test_a_check_is_stopped_too(models):
    model = models.by_name["looking"]
    with pytest.raises(NotWantedError), stoppable(model.module, lambda: False):
        model.check("abc", "c b a")


def test_lengths_are_counted_in_tokens_and_features(models):
    assert source_length(models.by_name["tagged"], "abc\tV;PST") == 5
    assert source_length(models.by_name["looking"], "") == 0


def test_only_answers_that_could_be_too_long_get_a_limit_of_their_own():
    assert longest(5, Limits(tokens=32)) is None  # 2 * 6 + 20
    assert longest(6, Limits(tokens=32)) == 32
