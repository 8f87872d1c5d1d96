"""What if, for runs: each change against what the model does when it is made in another way."""

import numpy as np
import pytest
import torch

import regard
from regard.api.predictor import _modules
from regard.data import Tokenizer
from regard.errors import RegardError
from regard.models.encoders import Encoder
from regard.seeing.attribution.interventions import Intervention, intervened
from untrained import write_run

SIZES = {"embed": 6, "hidden": 10}
LAYERS = {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 2}
PRESETS = {
    "bahdanau": SIZES,
    "self-attentive": SIZES,
    "transformer": LAYERS,
    "conv": {"dim": 12},
    "monotonic": SIZES,
    "lm-transformer": LAYERS,
    "lm-self-attentive": SIZES,
}
KINDS = {
    "bahdanau": ["cross"],
    "self-attentive": ["cross", "encoder-history", "decoder-history"],
    "transformer": ["cross", "encoder-self", "decoder-self"],
    "lm-transformer": ["decoder-self"],
    "lm-self-attentive": ["decoder-history"],
}
CASES = [(preset, kind) for preset, kinds in KINDS.items() for kind in kinds]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Untrained models by preset, with weights so large that answers differ; each built once."""
    root, built = tmp_path_factory.mktemp("runs"), {}

    def model(preset):
        if preset not in built:
            tgt = Tokenizer.train("space", ["a b c d e f g h"])
            language = preset.startswith("lm-")
            src = tgt if language else Tokenizer.train("char", ["abcdefgh"], features=["V"])
            path = write_run(root / preset, src, tgt, preset, beam=1, **PRESETS[preset])
            built[preset] = regard.load(path, device="cpu")
        return built[preset]

    return model


def text_of(preset):
    return "a b c d" if preset.startswith("lm-") else "abcd"


def map_of(trace, kind, layer=0):
    return next(one for one in trace.of_kind(kind) if one.layer == layer).weights


@pytest.mark.sample(6)
@pytest.mark.parametrize("beam", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("preset", "kind"), CASES)
def test_a_cell_has_the_weight_that_is_set_and_the_others_share_the_rest(
    models, preset, kind, beam
):
    model, options = models(preset), {"beam": beam, "max_len": 9, "min_len": 4}
    text = text_of(preset)
    found = model.what_if(text, cells=[(kind, 0, 0, 2, 1, 0.75)], **options)
    row = map_of(found.traces[1], kind)[0, 2]
    assert row[1] == pytest.approx(0.75, abs=1e-4)
    assert row.sum() == pytest.approx(1, abs=1e-4)
    # up to the row nothing has changed, if the search took the same path
    if kind.startswith("encoder") or found.answers[0].split()[:3] == found.answers[1].split()[:3]:
        before = map_of(found.traces[0], kind)[0, 2]
        rest = np.delete(before, 1)
        expected = rest / rest.sum() * 0.25
        others = np.delete(row, 1)
        width = min(len(expected), len(others))
        np.testing.assert_allclose(others[:width], expected[:width], atol=1e-4)
    assert model.trace(text, **options).target.text == found.answers[0]  # the model is as before


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize(("preset", "kind"), CASES)
def test_steps_of_a_search_agree_with_one_pass_over_the_answer(models, preset, kind):
    model, text, cells = models(preset), text_of(preset), [(kind, 0, None, 2, 1, 0.75)]
    found = model.what_if(text, cells=cells, max_len=9, min_len=4, forbid_unknown=True)
    target = found.answers[1]
    modules = _modules(model.predictor, model.trace, text, found.traces[0])
    encoders = [part for part in model.module.modules() if isinstance(part, Encoder)]
    change = Intervention.of(cells=cells)
    with intervened(change, model.predictor.module, modules, dict, encoders):
        forced = model.trace(text, target)
    plain = model.trace(text, target)
    changed = 0.0
    for one in found.traces[1].maps:
        rows = one.weights.shape[1]  # a cut answer ends without its last row
        again = map_of(forced, one.kind, one.layer)[:, :rows, : one.weights.shape[2]]
        np.testing.assert_allclose(again, one.weights, atol=1e-4)
        before = map_of(plain, one.kind, one.layer)[:, :rows, : one.weights.shape[2]]
        changed = max(changed, float(np.abs(again - before).max()))
    assert changed > 0.05


@pytest.mark.parametrize("preset", ["bahdanau", "transformer"])
def test_an_answer_begins_with_the_prefix_and_goes_on_from_it(models, preset):
    model = models(preset)
    found = model.what_if("abcd", prefix="c b", max_len=8)
    assert found.answers[1].split()[:2] == ["c", "b"]
    ids = model.tgt_tokenizer.encode("c b")
    assert found.answers[1] == model("abcd", prefix=[ids], max_len=8).text


def test_a_head_that_is_off_adds_nothing(models):
    model = models("transformer")
    found = model.what_if("abcd", heads_off=[("cross", 1, 2)], max_len=8)
    attention = model.module.decoder.decoder.layers[1].cross
    before = attention.out_proj.weight.detach().clone()
    with torch.no_grad():
        attention.out_proj.weight[:, 8:12] = 0  # the third of three slices
        expected = model.trace("abcd", max_len=8)
        attention.out_proj.weight.copy_(before)
    assert found.answers[1] == expected.target.text
    for one, other in zip(found.traces[1].maps, expected.maps, strict=True):
        assert one.weights == pytest.approx(other.weights, abs=1e-5)


def test_a_cell_beyond_the_answer_is_a_remark(models):
    found = models("bahdanau").what_if("abcd", cells=[("cross", 0, 0, 40, 1, 0.5)], max_len=6)
    assert found.answers[0] == found.answers[1]
    assert "the map has no such cell" in found.notes[0]


@pytest.mark.parametrize(
    ("preset", "change", "words"),
    [
        ("bahdanau", {}, "change must be a token to replace"),
        ("bahdanau", {"replace": {4: "a"}}, "a token that is part of the text"),
        ("bahdanau", {"heads_off": [("cross", 0, 5)]}, "one of the 1 heads"),
        ("bahdanau", {"cells": [("cross", 0, 0, 0, 9, 0.5)]}, "one that row 0 can attend to"),
        ("bahdanau", {"prefix": "a", "num_samples": 2}, "seed must be given"),
        ("transformer", {"cells": [("decoder-self", 0, 0, 1, 2, 0.5)]}, "none after the row"),
        ("self-attentive", {"heads_off": [("encoder-history", 0, 0)]}, "an output projection"),
        ("monotonic", {"cells": [("cross", 0, 0, 0, 0, 0.9)]}, "whose weights are a softmax"),
    ],
)
def test_what_cannot_be_changed_is_one_sentence(models, preset, change, words):
    with pytest.raises(RegardError, match=words) as told:
        models(preset).what_if(text_of(preset), max_len=6, **change)
    assert str(told.value).count(". ") == 0
