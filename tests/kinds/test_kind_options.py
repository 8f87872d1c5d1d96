"""Settings that only some kinds of data have."""

import pytest
from pydantic import Field

from regard import kinds
from regard.errors import ArgumentError
from regard.kinds import FramePairs, KindOptions, TextPairs, choose_kind, possible_kinds
from regard.training.config import kind_settings, make_config


class Windows(KindOptions):
    window: int = Field(25, description="milliseconds of a window", ge=5)
    shape: str = Field("hann", description="shape of a window")


class Reaches(KindOptions):
    reach: int = Field(96, description="steps to look ahead", ge=1)


@pytest.fixture(autouse=True)
def options(monkeypatch):
    monkeypatch.setattr(FramePairs, "options_type", Windows)
    monkeypatch.setattr(TextPairs, "options_type", Reaches)


def test_they_are_settings_of_a_run():
    config = make_config({"window": "30"})
    assert config.kind_options == {"window": 30}
    assert FramePairs.options(config) == Windows(window=30, shape="hann")
    assert make_config({"shape": "box"}, config).kind_options == {"window": 30, "shape": "box"}


def test_they_are_saved_and_read_again():
    config = make_config({"window": 30})
    assert make_config(config.model_dump(exclude_unset=True)) == config


def test_they_leave_the_kinds_that_have_them():
    assert possible_kinds(make_config({"window": 30})) == [FramePairs]
    assert possible_kinds(make_config({"reach": 3})) == [TextPairs]
    assert len(possible_kinds(make_config({}))) > 1
    assert choose_kind(make_config({"reach": 3}), list).kind is TextPairs


def test_a_value_against_their_rules_is_refused():
    with pytest.raises(ArgumentError, match="window must be at least 5, but it is 2"):
        make_config({"window": 2})
    with pytest.raises(ArgumentError, match="kind_options must be a table"):
        make_config({"kind_options": 3})


def test_a_name_that_no_kind_has_is_refused():
    with pytest.raises(ArgumentError, match="perhaps 'window' is meant"):
        make_config({"windows": 3})
    with pytest.raises(ArgumentError, match="have a name that regard knows"):
        make_config({"kind_options": {"height": 3}})


def test_settings_of_two_kinds_are_refused():
    config = make_config({"window": 30, "reach": 3})
    with pytest.raises(ArgumentError, match=r"window \(of frame-pairs\), reach \(of text-pairs"):
        possible_kinds(config)


def test_they_are_listed_by_kind():
    rows = kind_settings()
    assert {"frame-pairs", "text-pairs"} <= rows.keys()
    assert rows["text-pairs"][0] == ("reach", "96", "steps to look ahead")


def test_every_setting_has_a_description_and_no_second_meaning():
    from regard.training.config import Config, preset_options

    for fields in kinds.kind_options().values():
        for name, field in fields.items():
            assert field.description
            assert name not in Config.model_fields
            assert name not in preset_options("transformer")
