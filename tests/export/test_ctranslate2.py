"""A Transformer in CTranslate2 finds what the model finds."""

import pytest
import safetensors.torch
import torch

import regard
from cli.tools import regard as command
from cli.tools import sentence
from export.tools import FRAMES, SOURCES, make_run, run_readme
from regard.export import ExportError, export
from regard.symbols import EOS

pytest.importorskip("ctranslate2")
from regard.export import ctranslate2_model
from regard.export.translate import Translator

TEXTS = [*SOURCES, "Ab\tV;PST", "what is not known", "g", "hgfedcba" * 3, "ba ab"]
SIZES = {"dim": 16, "heads": 4, "feed_forward": 24, "layers": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run and its export."""
    folder = tmp_path_factory.mktemp("ctranslate2")
    return talkative(folder / "run"), export(folder / "run", folder / "out", to="ctranslate2").path


def talkative(path, eos=0.0, **options):
    """A run whose predictions differ, and end the sooner the larger `eos` is."""
    make_run(path, "transformer", features=["V", "PST"], sizes=SIZES | options)
    weights = safetensors.torch.load_file(path / "model.safetensors")
    chance = torch.Generator().manual_seed(0)
    for name, own in weights.items():  # norms and biases that are not as they begin
        if own.ndim == 1:
            weights[name] = own + 0.3 * torch.randn(own.shape, generator=chance)
    weights["decoder.output.bias"][EOS] += eos
    safetensors.torch.save_file(weights, path / "model.safetensors")
    return path


def test_beam_search_finds_the_same_where_length_counts_alike(tmp_path):
    """Scores are not compared: CTranslate2's leave tokens out that are never written."""
    run = talkative(tmp_path / "run", eos=1.0)
    out = export(run, tmp_path / "out", to="ctranslate2").path
    rows = (model := regard.load(run, device="cpu")).source_ids(TEXTS)
    expected, translator = model(TEXTS, beam=5, length_penalty=0), Translator(out)
    found = translator.search(rows, beam=5, length_penalty=0)
    ended = [i for i, row in enumerate(rows) if len(found[i][0]) < translator.most_tokens(row)]
    tokens = [model.tgt_tokenizer.decode(found[i][0]) for i in ended]
    assert tokens == [expected[i].text for i in ended]
    assert len(set(tokens)) > 2


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "options", [{"norm_first": False}, {"tied": "output"}, {"tied": "output", "layers": 1}]
)
def test_other_transformers(tmp_path, options):
    run = talkative(tmp_path / "run", **options)
    out = export(run, tmp_path / "out", to="ctranslate2")
    assert out.difference < 1e-4
    texts = [one.text for one in regard.load(run, device="cpu")(TEXTS, beam=1)]
    assert Translator(out.path)(TEXTS, beam=1) == texts


@pytest.mark.slow
def test_the_readme_works_as_typed(folders):
    needs, shell, code = run_readme(folders[1])
    assert needs == ["ctranslate2"]
    assert len(shell) == 2
    assert len(code) == 1
    texts = ["some text", "some more"]
    assert shell[0] == Translator(folders[1])(texts)[0]
    assert code[0] == str(Translator(folders[1], "int8")(texts))


def test_a_source_without_positions_is_refused(folders):
    with pytest.raises(ValueError, match=r"at most 1024 tokens, .* but one has 1101"):
        Translator(folders[1])(["a" * 1100])


def test_what_the_engine_cannot_run_is_refused(tmp_path):
    run = make_run(tmp_path / "gru")
    told = sentence(command("export", run, "--to", "ctranslate2", "-o", tmp_path / "out"), 1)
    assert "must be a Transformer that reads text" in told
    assert "gru is bahdanau: export it with `--to onnx`." in told
    frames = make_run(tmp_path / "frames", "transformer", src=FRAMES)
    with pytest.raises(ExportError, match="that reads text"):
        export(frames, tmp_path / "out", to="ctranslate2")
    assert not (tmp_path / "out").exists()


def test_what_differs_from_the_model_is_not_left(tmp_path, monkeypatch):
    run = talkative(tmp_path / "run")
    own = ctranslate2_model._norm

    def shifted(spec, norm):
        own(spec, norm)
        spec.beta = spec.beta + 0.1

    monkeypatch.setattr(ctranslate2_model, "_norm", shifted)
    with pytest.raises(ExportError, match=r"log-probabilities by \d.*nothing was kept"):
        export(run, tmp_path / "new" / "out", to="ctranslate2")
    assert list((tmp_path / "new").iterdir()) == []
