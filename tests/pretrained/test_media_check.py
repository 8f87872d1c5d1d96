"""What mattered to models of pictures and sound: parts, their attention, and the methods."""

import numpy as np
import pytest
import torch

from regard.data.media_files import read_picture
from regard.errors import RegardError
from regard.pretrained.media_check import PictureCells, SoundSlices, picture_scorer

pytestmark = pytest.mark.slow  # transformers takes seconds to load
for package in ("transformers", "PIL.Image", "soundfile", "scipy"):
    pytest.importorskip(package)


@pytest.mark.parametrize("patches", [(3, 3), (8, 5), (14, 14), (9, 17)])
def test_a_picture_is_cut_and_joined_again(patches):
    pixels = torch.randn(3, 2 * patches[0], 5 * patches[1])
    cells = PictureCells.of(pixels, patches, fixed=1)
    parts = cells.cut(pixels)
    assert max(cells.grid) <= 8
    assert len(parts) == 1 + cells.grid[0] * cells.grid[1]
    assert torch.equal(cells.join(parts[None])[0], pixels)


def test_positions_belong_to_the_cell_that_holds_their_patch():
    cells = PictureCells.of(torch.zeros(1, 18, 17), (9, 17), fixed=2)
    assert (cells.across, cells.grid) == (3, (3, 6))
    groups = cells.groups()
    assert groups[:2] == [0, 1]
    assert groups[2] == groups[4] == groups[2 + 17] == 2  # patches 1,1 and 1,3 and 2,1
    assert groups[5] == 3  # patch 1,4
    assert groups[-1] == 1 + 18


def test_slices_of_sound_cover_what_is_no_padding():
    slices = SoundSlices.of(frames=3000, positions=1500, real=100, seconds=0.02)
    assert (slices.number, slices.positions, slices.frames) == (20, 5, 10)
    assert slices.seconds == pytest.approx(0.1)
    assert SoundSlices.of(3000, 1500, 1500, 0.02).number == 23  # the last would end too late
    assert SoundSlices.of(3000, 1500, 1, 0.02).number == 1


def test_scores_of_a_picture_are_those_of_its_pixels(media_model, media_files):
    model = media_model("vit")
    given = model.reader.checked(media_files / "p.png", None, None)
    scorer = given.scorer
    plain = scorer.replaced_logits([{}])
    assert torch.allclose(plain, scorer.logits(scorer.vectors()[None]))
    picture = model.processor(read_picture(media_files / "p.png").image, return_tensors="pt")
    with torch.no_grad():
        expected = model.module(pixel_values=picture["pixel_values"]).logits
    assert torch.allclose(plain[:, 0], expected, atol=1e-5)
    # a replaced cell is that of another place, and no other cell changes
    change = {scorer.inputs - 1: scorer.inputs - 2}
    cells = PictureCells.of(picture["pixel_values"][0], *_grid(model, media_files))
    parts = cells.cut(picture["pixel_values"][0])
    parts[-1] = parts[-2]
    with torch.no_grad():
        expected = model.module(pixel_values=cells.join(parts[None])).logits
    assert torch.allclose(scorer.replaced_logits([change])[:, 0], expected, atol=1e-5)


def _grid(model, media_files):
    drawn = model.trace(media_files / "p.png").source.backdrop
    return drawn.grid, drawn.first


def test_attention_of_cells_is_the_sum_of_their_patches(media_model, media_files, monkeypatch):
    model = media_model("vit")
    whole = model.check(media_files / "p.png", methods="attention")
    monkeypatch.setattr("regard.pretrained.media_check.MAX_CELLS", 2)
    joined = model.check(media_files / "p.png", methods="attention")
    assert whole.source.tokens[1].text == "patch 1,1"
    assert joined.source.tokens[1].text == "cell 1,1"
    assert len(joined.source.tokens) == 1 + 4  # of 3 x 3 patches, those at two sides smaller
    rows = [trace.derived["attention"][0] for trace in (whole, joined)]
    assert rows[0].sum() == pytest.approx(1, abs=1e-5)
    assert rows[1].sum() == pytest.approx(1, abs=1e-5)
    assert rows[1][0] == pytest.approx(rows[0][0], abs=1e-6)  # the class token
    own = model.reader.checked(media_files / "p.png", None, None).scorer.attention().own
    assert all(heads.sum(axis=-1) == pytest.approx(1, abs=1e-5) for heads in own)  # rows are means
    trace = model.trace(media_files / "p.png")
    expected = np.mean([layer.weights.mean(0)[0] for layer in trace.maps], axis=0)
    assert rows[0] == pytest.approx(expected, abs=1e-5)


def test_a_cell_that_decides_is_found(media_model, media_files):
    """A model that looks at one cell alone: every method must name it."""
    model = media_model("vit")
    pixels = torch.randn(3, 12, 12)
    cells = PictureCells.of(pixels, (4, 4), fixed=1)

    class Corner(torch.nn.Module):
        config = model.module.config

        def forward(self, pixel_values):
            level = pixel_values[:, :, 3:6, 6:9].mean(dim=(1, 2, 3))
            return type("Out", (), {"logits": torch.stack([level, -level], dim=1) * 9})

    from regard.seeing.attribution.methods import attribute

    scorer = picture_scorer(Corner(), pixels, cells, label=0)
    found = attribute(scorer, scorer.questions())
    place = 1 + 1 * 4 + 2
    for name in ("ablation", "gradient", "input-gradient", "integrated-gradients"):
        assert np.abs(found.scores[name][0]).argmax() == place, name
        assert np.count_nonzero(np.abs(found.scores[name][0]) > 1e-6) == 1, name
    assert "attention" in found.unavailable


def test_a_picture_is_checked_by_every_method(media_model, media_files):
    found = media_model("vit").check(media_files / "p.png")
    assert set(found.checks["methods"]) >= {"ablation", "gradient", "attention", "rollout", "norms"}
    assert found.target.tokens[0].prob == pytest.approx(
        np.exp(media_model("vit")(media_files / "p.png").score), abs=1e-5
    )
    assert found.source.backdrop.grid == (5, 5)
    assert len(found.source.tokens) == 1 + 25
    assert any("cells of the picture" in note for note in found.notes)
    # a class token is never replaced; the batches differ, and so may their kernels
    assert abs(found.derived["ablation"][0, 0]) < 1e-5


def test_a_recording_is_checked_slice_by_slice(media_model, media_files):
    model = media_model("whisper")
    found = model.check(
        media_files / "s.wav", methods="ablation,gradient,attention,norms", max_len=3
    )
    assert found.source.tokens[0].text == "0.00 s"
    assert found.source.backdrop.kind == "spectrogram"
    assert found.derived["ablation"].shape == (len(found.target.tokens), len(found.source.tokens))
    assert 0 < found.derived["attention"].sum(axis=1).max() <= 1 + 1e-5
    assert any("slices of" in note for note in found.notes)


def test_a_model_without_parts_is_refused(media_model, media_files):
    with pytest.raises(RegardError, match="must write text of a spectrogram"):
        media_model("wav2vec2").check(media_files / "s.wav")
