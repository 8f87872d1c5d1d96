"""Backdrops: what a source looks like, drawn and saved with a trace."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from regard.errors import ArgumentError
from regard.seeing import Map, Text, Token, Trace, TraceError, select
from regard.seeing.trace import storage
from regard.seeing.trace.trace import MAX_BYTES, Backdrop, overlaid, png, series, spectrogram

GRID = (3, 5)


def picture():
    """A class token and 3 x 5 patches, of which the class token looks at one: row 2, column 4."""
    draw = np.random.default_rng(1)
    backdrop = Backdrop.of("picture", draw.integers(0, 255, (21, 35, 3)), grid=GRID, first=1)
    names = [f"patch {r + 1},{c + 1}" for r in range(3) for c in range(5)]
    text = Text("p.png", (Token("[CLS]", special=True), *map(Token, names)), backdrop)
    weights = np.full((2, 16, 16), 0.5 / 15, dtype=np.float32)
    weights[:, :, 1 + 1 * 5 + 3] = 0.5
    return Trace(text, text, (Map.of("encoder-self", 0, weights),))


def heard():
    """Two outputs that look at positions of a recording."""
    levels = np.linspace(-6, 0, 7 * 22).reshape(7, 22)
    source = Text("s.wav", tuple(Token(f"{i / 10:.2f} s") for i in range(11)))
    source = replace(source, backdrop=spectrogram(levels, 11, 1.1))
    weights = np.zeros((1, 2, 11), dtype=np.float32)
    weights[0, 0, 2] = weights[0, 1, 7] = 1
    return Trace(source, Text.of(["a", "b"]), (Map.of("cross", 0, weights),))


def through_json(trace):
    return storage.from_json(json.loads(json.dumps(storage.to_json(trace))))


@pytest.mark.parametrize("made", [picture, heard])
def test_a_backdrop_is_saved_with_its_trace_once(made):
    trace = made()
    content = storage.to_json(trace)
    assert "backdrop" not in content["target"]
    again = through_json(trace)
    assert again.source == trace.source
    assert np.array_equal(again.source.backdrop.array, trace.source.backdrop.array)


def changed(**fields):
    content = storage.to_json(picture())
    content["source"]["backdrop"] |= fields
    return content


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"shape": [21, 35, 1]}, "pixels must inflate to 735 bytes"),
        ({"shape": [2048, 2048, 3]}, "pixels must inflate to 12,582,912 bytes"),
        ({"data": "???"}, "pixels are damaged"),
        ({"grid": [3, 4]}, "a cell for each of the 16 source tokens, but it has 12 after"),
        ({"first": -1}, "greater than or equal to 0"),
        ({"kind": "<script>"}, "kind"),
        ({"seconds": -1.0}, "greater than or equal to 0"),
        ({"href": "http://x"}, "extra inputs"),
    ],
)
def test_a_backdrop_from_elsewhere_is_checked(fields, match):
    with pytest.raises(TraceError, match=match):
        storage.from_json(changed(**fields))


@pytest.mark.plain
def test_pixels_must_fit_their_shape():
    with pytest.raises(ArgumentError, match="pixels must be the 6 bytes"):
        Backdrop("series", (2, 3, 1), b"12345", (1, 3))


def test_large_sources_are_averaged():
    found = series(np.random.default_rng(0).normal(size=(5003, 211)))
    assert found.shape == (80, 1500, 1)
    assert found.grid == (1, 5003)
    assert len(found.pixels) <= MAX_BYTES
    steady = series(np.repeat([[0.0], [1.0]], 2500, axis=0))
    assert set(steady.array.ravel().tolist()) <= {0, 255}


def test_a_view_carries_the_backdrop_of_its_columns():
    view = select(picture())
    assert view.backdrop.first == 1
    hidden = select(picture(), special="hide")
    assert (hidden.backdrop.first, len(hidden.columns)) == (0, 15)
    trace = heard()
    own = Map.of("decoder-self", 0, np.tril(np.full((1, 2, 2), 0.5)), missing=True)
    both = replace(trace, maps=(*trace.maps, own))
    assert select(both, kind="decoder-self").backdrop is None
    assert select(both).backdrop is not None


def test_weights_tint_their_cells_alone():
    backdrop = picture().source.backdrop
    shares = np.zeros(15, dtype=np.float32)
    shares[1 * 5 + 3] = 1
    plain = overlaid(backdrop, np.zeros(15, dtype=np.float32)).astype(int)
    changed = (overlaid(backdrop, shares).astype(int) != plain).any(axis=-1)
    rows, columns = np.nonzero(changed)
    assert (rows.min(), rows.max()) == (7, 13)  # 21 pixels of 3 rows
    assert (columns.min(), columns.max()) == (21, 27)  # 35 pixels of 5 columns


def test_png_files_are_read_by_others():
    image = pytest.importorskip("PIL.Image")
    for channels in (1, 3):
        pixels = np.random.default_rng(2).integers(0, 255, (7, 5, channels)).astype(np.uint8)
        with image.open(io.BytesIO(png(pixels))) as found:
            read = np.asarray(found).reshape(pixels.shape)
        assert np.array_equal(read, pixels)
