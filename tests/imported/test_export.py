"""Imported runs, as they are and after training, written back for transformers."""

import pytest
import torch

import regard
from cli.tools import done, sentence
from cli.tools import regard as command
from imported.zoo import (
    ENCODERS,
    PICTURES,
    SOUNDS,
    ZOO,
    long,
    pictures,
    pixels,
    recordings,
    sentences,
    spectra,
)
from regard.training.imported_run import import_run, write_transformers
from regard.training.run_folder import RunFolder

#: each takes a second
pytestmark = pytest.mark.slow


def outputs(module, tokenizer, texts):
    """What a model of transformers computes: logits, or vectors of an encoder."""
    if tokenizer is None:
        with torch.no_grad():
            return getattr(module, "vit", module)(pixels(texts).float())[0]
    sounds = "input_features" in module.main_input_name
    given = tokenizer(sentences(3) if sounds else texts, padding=True, padding_side="right",
                      return_tensors="pt")  # fmt: skip
    given.pop("token_type_ids", None)
    told = dict(given)
    if module.config.is_encoder_decoder:
        told["decoder_input_ids"] = given["input_ids"].flip(0)
    if sounds:
        told = {"input_features": spectra(texts), "decoder_input_ids": given["input_ids"]}
    with torch.no_grad():
        found = module(**told)[0]
    real = given["attention_mask"].bool()
    return found if module.config.is_encoder_decoder else found[real]


def reopened(folder, kind):
    import transformers

    path = folder / "tokenizer_config.json"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder) if path.exists() else None
    module = getattr(transformers, kind).from_pretrained(folder, attn_implementation="eager")
    return module.eval(), tokenizer


@pytest.mark.sample(3)
@pytest.mark.parametrize("family", ZOO)
def test_what_was_imported_is_written_back(folders, family, tmp_path):
    path, theirs = folders(family, torch.float32)
    run = import_run(path, tmp_path / "run")
    back = write_transformers(run, tmp_path / "back")
    kind = RunFolder(path).imported.family.classes[0]
    module, tokenizer = reopened(back, kind)
    _, own = reopened(path, type(theirs).__name__)
    texts = pictures(3) if family in PICTURES else sentences(3)
    texts = recordings(3) if family in SOUNDS else texts
    if own is not None and family not in SOUNDS:
        assert tokenizer(texts)["input_ids"] == own(texts)["input_ids"]
    whole = theirs
    if family in ENCODERS:
        whole = getattr(theirs, theirs.base_model_prefix, theirs)
    expected = outputs(whole, own, texts)
    bound = 1e-4 * float(expected.abs().max())
    torch.testing.assert_close(outputs(module, tokenizer, texts), expected, rtol=0, atol=bound)
    if module.can_generate():
        kept = theirs.generation_config.to_diff_dict()
        assert module.generation_config.to_diff_dict() == kept
    assert kind in (back / "README.md").read_text()


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", ["gpt2", "bart", "bert", *long("gemma", "t5")])
def test_a_trained_run_is_written_back_with_its_outputs(folders, family, tmp_path):
    path, _ = folders(family, torch.float32)
    texts = sentences(60)
    rows = {"bert": [(t, t[:1]) for t in texts], "bart": [(t, t) for t in texts]}
    pairs = rows.get(family, rows["bart"] if family == "t5" else [(t,) for t in texts])
    how = {"steps": 20, "quiet": True, "eval_every": 20, "lr": 1e-2, "label_smoothing": 0.1}
    how |= {"label_smoothing": 0.0} if family == "gemma" else {}
    model = regard.fit(pairs, start=str(path), output=tmp_path / "run", **how)
    assert done(
        command("export", tmp_path / "run", "--to", "transformers", "-o", tmp_path / "back")
    )
    again = regard.load(tmp_path / "back", engine="regard")
    if family == "bert":
        rows = model.source_ids(texts[:5])
        src, lengths = model.task.input.batch(rows)
        found = [one.module.encode(src, lengths).output for one in (model, again)]
    else:
        found = [torch.tensor([o.log_prob for o in one(texts[:5])]) for one in (model, again)]
        assert [o.text for o in model(texts[:5])] == [o.text for o in again(texts[:5])]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    start = regard.load(path, engine="regard").module.state_dict()
    assert any(not torch.equal(model.module.state_dict()[n], w) for n, w in start.items()
               if "encoder" in n or "decoder" in n)  # fmt: skip


def test_other_runs_and_places_are_refused(folders, tmp_path):
    said = sentence(command("export", "g2p", "--to", "transformers", "-o", tmp_path / "x"), 1)
    assert "to be written for transformers" in said
    assert not (tmp_path / "x").exists()
    run = import_run(folders("gpt2", torch.float32)[0], tmp_path / "run")
    (tmp_path / "there").mkdir()
    where = ("-o", tmp_path / "there")
    assert "be a new folder" in sentence(command("export", run, "--to", "transformers", *where), 2)


@pytest.mark.parametrize("family", long("bart", "m2m_100", "whisper"))
def test_exported_graphs_search_as_the_model_does(folders, family, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    from regard.export.decode import Exported

    monkeypatch.setattr("regard.export.folder.TOLERANCE", 1e-2)  # logits are large
    run = import_run(folders(family, torch.float32)[0], tmp_path / "run")
    assert done(command("export", run, "-o", tmp_path / "onnx"))
    texts = recordings(8) if family in SOUNDS else sentences(8)
    model = regard.load(run)
    rows = model.source_ids(texts)
    if family in SOUNDS:
        rows = [model.task.input.encoder.mel(samples) for samples, _ in texts]
    found = Exported(tmp_path / "onnx").search(rows, beam=3, max_len=12)
    tokens = [model.tgt_tokenizer.tokens(one[0].tokens) for one in found]
    assert tokens == [list(one.tokens) for one in model(texts, beam=3, max_len=12)]
    first = model.tgt_tokenizer.tokens(model.tgt_tokenizer.prefix)
    assert first
    assert all(row[: len(first)] == first for row in tokens)
