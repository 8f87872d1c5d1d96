import pytest
import torch

from examples import read_vectors as example
from regard.decoding import Hypothesis


def test_each_frame_is_its_sound_as_loud_as_it_is_there(monkeypatch):
    monkeypatch.setattr(example, "NOISE", 0.0)
    heard = example.speak(20)
    for row, sounds in enumerate(heard.sounds):
        owners = heard.owners[row, : heard.lengths[row]].tolist()
        assert sorted(set(owners)) == list(range(len(sounds)))
        for place, sound in enumerate(sounds):
            frames = heard.src[row, [i for i, owner in enumerate(owners) if owner == place]]
            assert 3 <= len(frames) <= 7
            loudness = frames @ example.SPECTRA[sound] / example.SPECTRA[sound].square().sum()
            # it rises to the middle of the sound, and falls in the same way
            torch.testing.assert_close(loudness, loudness.flip(0))
            assert loudness.diff()[: (len(frames) - 1) // 2].min() > 0
        assert heard.src[row, heard.lengths[row] :].isnan().all()


def test_the_nearest_spectrum_hears_what_has_no_noise(monkeypatch):
    monkeypatch.setattr(example, "NOISE", 0.0)
    monkeypatch.setattr(example, "SPECTRA", 10 * torch.eye(8, example.FEATURES))
    heard = example.speak(50)
    once = [[s for i, s in enumerate(row) if row[:i][-1:] != [s]] for row in heard.sounds]
    assert example.share(example.nearest(heard), once) == 1.0


def heard_and_found():
    """Three sounds of 3, 2 and 2 frames, in four joined frames, and a map made by hand."""
    owners = torch.tensor([[0, 0, 0, 1, 1, 2, 2]])
    heard = example.Spoken(torch.zeros(1, 7, 13), torch.tensor([7]), [[4, 0, 1]], owners)
    weights = torch.tensor([[0.6, 0.4, 0, 0], [0.1, 0.2, 0.7, 0], [0, 0.5, 0.3, 0.2], [0, 0, 0, 1]])
    tokens = [example.FIRST + sound for sound in (4, 0, 1)]
    return heard, Hypothesis(tokens, 0.0, 0.0, [0.0] * 4, {"cross": (weights[None],)})


def test_attention_to_its_own_sound():
    heard, found = heard_and_found()
    # frames 0 and 1 hold the first sound, 1 and 2 the second, 2 and 3 the third
    expected = ((0.6 + 0.4) + (0.2 + 0.7) + (0.3 + 0.2)) / 3
    assert example.own_share([found], heard) == pytest.approx(expected)


def test_the_map_as_text(capsys):
    heard, found = heard_and_found()
    example.draw(found, heard)
    assert capsys.readouterr().out.splitlines() == [
        "spoken  |eeab|",
        "      e |▓▒  |",
        "      a |░░▓ |",
        "      b | ▓▒░|",
        "   </s> |   █|",
    ]


def test_wrong_options(capsys):
    for arguments in (["smells"], ["--steps", "1"]):
        with pytest.raises(SystemExit):
            example.main(arguments)
    assert "--steps must be at least 2, but it is 1" in capsys.readouterr().err


@pytest.mark.long
def test_it_learns_to_hear(monkeypatch):
    monkeypatch.setattr(example, "NOISE", 0.3)
    torch.manual_seed(0)
    model, heard = example.build_listener(), example.speak(200)
    example.listen(model, 120)
    found = example.understand(model, heard)
    answers = [[token - example.FIRST for token in best.tokens] for best in found]
    right = example.share(answers, heard.sounds)
    print(f"{right:.1%} right, {example.own_share(found, heard):.0%} of attention to its own sound")
    assert right >= 0.7
    assert example.own_share(found, heard) >= 0.6


@pytest.mark.long
@pytest.mark.slow
def test_it_learns_to_see(capsys):
    example.main(["images", "--steps", "60"])
    first, *_ = capsys.readouterr().out.splitlines()
    assert float(first.split()[1].rstrip("%")) >= 50  # a tenth by chance
