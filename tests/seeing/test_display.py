"""One function writes all files, by their ending."""

import pytest

from regard.errors import ArgumentError
from regard.seeing import save
from seeing.tools import translation


@pytest.mark.parametrize(
    ("ending", "start"),
    [
        ("svg", b"<svg"),
        ("json", b"{"),
    ],
)
def test_the_ending_says_what_is_written(tmp_path, ending, start):
    path = tmp_path / f"x.{ending}"
    save(translation(), path)
    assert path.read_bytes().startswith(start)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["x.gif", "svg"])
def test_any_other_ending_is_refused(tmp_path, name):
    with pytest.raises(ArgumentError, match=r"\.html, \.svg, \.png, \.pdf, \.json"):
        save(translation(), tmp_path / name)
