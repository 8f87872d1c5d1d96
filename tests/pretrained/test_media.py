"""Models of pictures and of sound: weights, answers, labels, and what is wrong with a file.

What is expected comes from `output_attentions` of transformers with eager attention.
"""

import io
import shutil

import numpy as np
import pytest
import torch

import regard as package
from cli.tools import done, regard, sentence
from pretrained import media
from regard.data.media_files import read_picture, read_sound
from regard.errors import DataError, RegardError
from regard.pretrained import PretrainedError
from regard.seeing import Trace
from seeing.tools import pairwise

pytestmark = pytest.mark.slow  # transformers takes seconds to load
PIL = pytest.importorskip("PIL.Image")
soundfile = pytest.importorskip("soundfile")
pytest.importorskip("scipy")


def eager_maps(model, **inputs):
    """Weights by kind of one pass with eager attention, and the logits."""
    before = model.module.config._attn_implementation
    model.module.set_attn_implementation("eager")
    with torch.no_grad():
        found = model.module(**inputs, output_attentions=True)
    model.module.set_attn_implementation(before)
    return found


def assert_maps(maps, expected, atol):
    for own, weights in zip(maps, expected, strict=True):
        np.testing.assert_allclose(own.weights, weights[0].float().numpy(), atol=atol)


@pytest.mark.parametrize(
    ("family", "how", "precision"), pairwise(["vit", "deit"], ["sdpa", "eager"], ["32", "bf16"])
)
def test_weights_and_classes_of_pictures_are_those_of_transformers(
    media_model, media_files, family, how, precision
):
    model = media_model(family, how, precision)
    found = model(media_files / "p.png")
    with PIL.open(media_files / "p.png") as image:
        pixels = model.processor(image, return_tensors="pt")["pixel_values"]
    given = {"pixel_values": pixels.to(model.module.dtype)}
    with torch.no_grad():
        plain = model.module(**given).logits[0].float()
    expected = eager_maps(model, **given)
    assert_maps(found.trace.maps, expected.attentions, atol=1e-5 if precision == "32" else 0.01)
    assert found.text == ["cat", "dog", "mat"][int(plain.argmax())]
    assert found.score == pytest.approx(float(plain.log_softmax(-1).max()), abs=1e-6)
    assert found.trace.notes[0].startswith(f"class and probability: {found.text} ")


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
    ("family", "given", "match"),
    [
        ("vit", "empty.png", "empty.png: a picture must be a file that Pillow can read, but this"),
        ("vit", "cut.png", "cut.png: a picture must be whole, but this one cannot be decoded"),
        ("vit", "text.jpg", "text.jpg: a picture must be .* is of no format that it knows"),
        ("vit", "the cat", "a picture must be the path of a file .* no file 'the cat': check its"),
        ("vit", ".", "this must be a file, but it is a folder"),
        ("vit", 3, "a picture must be the path of a file or an image of Pillow, but it is int"),
    ],
)
def test_what_cannot_be_read_is_named(media_model, tmp_path, family, given, match, monkeypatch):
    write_bad(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=match):
        media_model(family)(given)


def test_a_picture_given_to_a_model_of_text_is_refused(hugging, media_files, tmp_path):
    from pretrained.families import save

    gpt2 = save(hugging, tmp_path / "gpt2", "gpt2")
    said = sentence(regard("show", gpt2, media_files / "p.png"), 1)
    assert "p.png: this model must be given text, but it is the file of a picture" in said
    model = package.load(gpt2)
    for given in (PIL.fromarray(media.picture()), media.sweep(), str(media_files / "s.wav")):
        with pytest.raises(DataError, match="this model must be given text"):
            model(given)


def test_a_picture_of_too_many_pixels_is_not_decoded(media_model, media_files, monkeypatch):
    monkeypatch.setattr("regard.data.media_files.MAX_PIXELS", 100)
    with pytest.raises(DataError, match=r"at most 100 pixels, .* but this one has 40 x 30"):
        media_model("vit")(media_files / "p.png")


def test_a_model_without_classes_is_drawn_but_predicts_nothing(media_model, media_files):
    model = media_model("vit", classes="ViTModel")
    assert model.reads == "picture"
    assert model.trace(media_files / "p.png").kinds == ["encoder-self"]
    with pytest.raises(RegardError, match="must have an output layer to predict"):
        model(media_files / "p.png")


def test_models_whose_attention_is_not_over_all_patches_are_refused(hugging, media_files, tmp_path):
    config = hugging.SwinConfig(
        image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    hugging.SwinForImageClassification(config).save_pretrained(tmp_path)
    size = {"height": 16, "width": 16}
    hugging.ViTImageProcessorPil(size=size).save_pretrained(tmp_path)
    with pytest.raises(PretrainedError, match="must attend over all of its patches, 8 x 8 here"):
        package.load(tmp_path)(media_files / "p.png")


def test_folders_that_lack_a_part_are_named(media_folder, media_files, tmp_path):
    shutil.copytree(media_folder("vit"), tmp_path / "bare")
    (tmp_path / "bare" / "preprocessor_config.json").unlink()
    with pytest.raises(PretrainedError, match="must hold an image processor"):
        package.load(tmp_path / "bare")
    shutil.copytree(media_folder("vit"), tmp_path / "code")
    (tmp_path / "code" / "preprocessor_config.json").write_text('{"auto_map": {"x": "y"}}')
    with pytest.raises(PretrainedError, match="asks for code of its own"):
        package.load(tmp_path / "code")


def test_an_image_processor_of_another_size_is_named(hugging, media_folder, media_files, tmp_path):
    shutil.copytree(media_folder("vit"), tmp_path / "vit")
    size = {"height": 24, "width": 24}
    hugging.ViTImageProcessorPil(size=size).save_pretrained(tmp_path / "vit")
    with pytest.raises(PretrainedError, match=r"but it makes \(24, 24\)"):
        package.load(tmp_path / "vit")(media_files / "p.png")


def test_show_writes_files_that_hold_the_picture(media_folder, media_files, tmp_path):
    for ending in ("svg", "html", "png", "json"):
        path = tmp_path / f"vit.{ending}"
        done(regard("show", media_folder("vit"), media_files / "p.png", "-o", path))
    assert (tmp_path / "vit.svg").read_text().count("data:image/png;base64,") == 2
    assert Trace.load(tmp_path / "vit.json").source.backdrop.kind == "picture"
    with PIL.open(tmp_path / "vit.png") as drawn:
        pixels = np.asarray(drawn.convert("RGB")).reshape(-1, 3).astype(int)
    # the disc of the picture is drawn, and is nowhere else in the figure
    assert (abs(pixels - [250, 210, 40]).max(axis=1) < 12).sum() > 500


def test_predict_takes_files_and_lists_of_files(media_folder, media_files, tmp_path):
    told = ("predict", media_folder("vit"))
    once = done(regard(*told, media_files / "p.png"))
    assert once.strip() in ("cat", "dog", "mat")
    assert done(regard(*told, media_files / "p.png", media_files / "p.png")) == 2 * once
    (tmp_path / "names.txt").write_text(f"{media_files / 'p.png'}\n{media_files / 'p.png'}\n")
    assert done(regard(*told, tmp_path / "names.txt")) == 2 * once
    write_bad(tmp_path)
    result = regard(*told, media_files / "p.png", tmp_path / "cut.png", "--skip-bad")
    assert done(result).splitlines() == [once.strip(), ""]
    assert "cut.png" in result.stderr
