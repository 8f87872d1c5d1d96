"""Pictures and recordings as files, and what is wrong with some."""

import io

import numpy as np
import pytest

import regard as package
from cli.tools import regard, sentence
from pretrained import media
from regard.data.media_files import read_picture, read_sound
from regard.errors import DataError

PIL = pytest.importorskip("PIL.Image")
soundfile = pytest.importorskip("soundfile")
pytest.importorskip("scipy")


@pytest.mark.plain
def test_a_recording_is_resampled_and_said_to_be(tmp_path):
    fast = media.sweep(rate=44100)
    soundfile.write(tmp_path / "fast.flac", np.stack([fast, fast], axis=1), 44100)
    found = read_sound(tmp_path / "fast.flac", media.RATE, most=1.0)
    own = media.sweep()
    inside = slice(200, -200)  # filters ring at the ends
    assert abs(found.samples[inside] - own[: len(found.samples)][inside]).max() < 0.1
    said = " ".join(found.notes)
    assert "the 2 channels are averaged" in said
    assert "resampled from 44100 to 16000 Hz" in said


@pytest.mark.parametrize("mode", ["CMYK", "P", "RGBA", "I;16"])
def test_pictures_of_any_mode_are_read_in_colour(mode, tmp_path):
    ending = {"CMYK": "jpg", "I;16": "png"}.get(mode, "png")
    if mode == "I;16":
        image = PIL.fromarray(media.picture()[..., 0].astype(np.uint16) * 257)
    else:
        image = PIL.fromarray(media.picture()).convert(mode)
    image.save(tmp_path / f"p.{ending}")
    found = read_picture(tmp_path / f"p.{ending}").image
    assert (found.mode, found.size) == ("RGB", (40, 30))
    if mode in ("CMYK", "RGBA", "I;16"):
        wanted = media.picture()[..., :1] if mode == "I;16" else media.picture()
        assert abs(np.asarray(found).astype(int) - wanted).mean() < 12


def write_bad(folder):
    """Files with something wrong, by what is said of them."""
    png = io.BytesIO()
    PIL.fromarray(media.picture()).save(png, "png")
    (folder / "empty.png").write_bytes(b"")
    (folder / "cut.png").write_bytes(png.getvalue()[:-60])
    (folder / "text.jpg").write_text("the cat")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("empty.png", "empty.png: a picture must be a file that Pillow can read, but this"),
        ("cut.png", "cut.png: a picture must be whole, but this one cannot be decoded"),
        ("text.jpg", "text.jpg: a picture must be .* is of no format that it knows"),
        ("the cat", "a picture must be the path of a file .* no file 'the cat': check its"),
        (".", "this must be a file, but it is a folder"),
        (3, "a picture must be the path of a file or an image of Pillow, but it is int"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, given, match, monkeypatch):
    write_bad(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=match):
        read_picture(given)


@pytest.mark.slow
def test_a_picture_given_to_a_model_of_text_is_refused(hugging, media_files, tmp_path):
    from pretrained.families import save

    gpt2 = save(hugging, tmp_path / "gpt2", "gpt2")
    said = sentence(regard("show", gpt2, media_files / "p.png"), 1)
    assert "p.png: this model must be given text, but it is the file of a picture" in said
    model = package.load(gpt2)
    for given in (PIL.fromarray(media.picture()), media.sweep(), str(media_files / "s.wav")):
        with pytest.raises(DataError, match="this model must be given text"):
            model(given)


def test_a_picture_of_too_many_pixels_is_not_decoded(media_files, monkeypatch):
    monkeypatch.setattr("regard.data.media_files.MAX_PIXELS", 100)
    with pytest.raises(DataError, match=r"at most 100 pixels, .* but this one has 40 x 30"):
        read_picture(media_files / "p.png")
