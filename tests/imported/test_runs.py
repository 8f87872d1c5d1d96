"""Imported models as runs: answers, commands, fine-tuning, and folders that are refused."""

import json
import random
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from cli.tools import regard as command
from imported.tuning import tune
from imported.zoo import (
    ENCODERS,
    build_tokenizer,
    long,
    m2m_tokenizer,
    pictures,
    recordings,
    sentences,
)
from regard.errors import RegardError
from regard.imported import ImportRefusedError
from regard.imported.families import FAMILIES
from regard.pretrained.folder import load_config, load_tokenizer
from regard.training.imported_run import import_run

#: each takes a second
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", ["bart", *long("gpt2", "llama", "t5")])
def test_a_run_folder_answers_as_the_folder_does(folders, family, tmp_path):
    path, _ = folders(family, torch.float32)
    run = import_run(path, tmp_path / "run")
    own, straight = regard.load(run), regard.load(path, engine="regard")
    texts = sentences(3)
    for text in texts:
        assert own.tgt_tokenizer.decode(own.tgt_tokenizer.encode(text)) == text
    answers = [output.text for output in own(texts, beam=2, max_len=20)]
    assert [output.text for output in straight(texts, beam=2, max_len=20)] == answers
    assert command("predict", run, "-", stdin="\n".join(texts)).exit_code == 0
    trace = own.trace(texts[0], beam=1, max_len=20)
    assert "decoder-self" in trace.kinds
    assert command("show", run, texts[0]).exit_code == 0


def test_commands_import(folders, tmp_path):
    path, _ = folders("llama", torch.float32)
    done = command("import", path, "-o", tmp_path / "run")
    assert done.exit_code == 0
    assert done.stdout.strip() == str(tmp_path / "run")
    assert regard.load(tmp_path / "run").config.preset == "lm-transformer"
    again = command("import", path, "-o", tmp_path / "run")
    assert "must be new" in again.stderr
    said = command("import", "--help").stdout.lower().replace("-", "")
    assert all(re.sub("[-_]|(?<=xlm-r)oberta", "", name) in said for name in FAMILIES)


@pytest.mark.sample(2)
@pytest.mark.parametrize("family", ENCODERS)
def test_classifiers_start_from_encoders(folders, family, tmp_path):
    path, _ = folders(family, torch.float32)
    data = tmp_path / "data.tsv"
    rows = [(text, "yes" if "cat" in text else "no") for text in sentences(120)]
    data.write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    model = regard.fit(
        data, start=str(path), output=tmp_path / "run", steps=2, quiet=True, eval_every=2
    )
    assert model.task.labels == ("no", "yes")
    assert model.config.preset == "classifier-transformer"
    start = regard.load(path, engine="regard")
    name = "classifier.encoder.encoder.layers.0.feed_forward.inner.weight"
    drift = model.module.state_dict()[name] - start.module.state_dict()[name]
    assert drift.abs().max() < 0.02
    assert model.src_tokenizer.encode("the cat") == start.src_tokenizer.encode("the cat")
    with pytest.raises(RegardError, match="must have labels to answer with"):
        start("the cat")


def test_classifiers_of_pictures_start_from_encoders(folders, tmp_path):
    path, _ = folders("vit", torch.float32)
    found = pictures(60)
    rows = [(picture, "dark" if picture.mean() < 77 else "light") for picture in found]
    model = regard.fit(
        rows, start=str(path), output=tmp_path / "run", steps=2, quiet=True, eval_every=2
    )
    start = regard.load(path, engine="regard").module.state_dict()
    for name in ("class_token", "positions.table", "stem.weight"):
        own = f"classifier.encoder.embedding.{name}"
        drift = (model.module.state_dict()[own] - start[own]).abs().max()
        assert drift < 0.02
    again, answers = regard.load(tmp_path / "run"), model(found[:3])
    assert [one.text for one in again(found[:3])] == [one.text for one in answers]
    trace = again.trace(found[0])
    assert [token.text for token in trace.source.tokens][:2] == ["[CLS]", "r1c1"]
    assert trace.source.backdrop.first == 1
    assert {m.kind: m.weights.shape[-2:] for m in trace.maps}["encoder-self"] == (10, 10)
    assert np.array_equal(trace.source.backdrop.array, found[0])
    numbers = [(picture, float(picture.mean())) for picture in found]
    regard.fit(numbers, start=str(path), output=tmp_path / "numbers", steps=2, quiet=True,
               eval_every=2, numbers=True)  # fmt: skip


def test_recordings_are_heard_in_their_language(folders, tmp_path):
    path, _ = folders("whisper", torch.float32)
    run = import_run(path, tmp_path / "run", source_language="fr", target_language="en")
    model, heard = regard.load(run), recordings(2)
    (found, _) = model(heard, beam=2, max_len=9)
    ids = model.tgt_tokenizer.imported.ids
    assert [ids[i] for i in model.tgt_tokenizer.prefix] == [5, 12, 96]
    assert list(found.token_log_probs[:3]) == [0, 0, 0]
    written = {token for one in model(recordings(20), beam=1, max_len=40) for token in one.tokens}
    suppressed = model.tgt_tokenizer.tokens([ids.index(7), ids.index(9)])
    assert len(written) > 9
    assert not written & {*suppressed}
    trace = model.check(heard[0], beam=1, max_len=9)
    assert trace.checks["greedy_text"] == model(heard[0], beam=1, max_len=9).text
    assert len(trace.source.tokens) == 50
    assert trace.source.backdrop.kind == "spectrogram"
    for language, said in (("xx", "as en, fr, but it is 'xx'"), ("en", "or en to translate it")):
        done = command("import", path, "-o", tmp_path / "no", "--src-lang", language,
                       "--tgt-lang", "fr")  # fmt: skip
        assert said in done.stderr
        assert done.exit_code != 0
    again = shutil.copytree(path, tmp_path / "copy")
    change(again, "preprocessor_config.json", hop_length=80)
    assert "makes no frames that it reads" in command("import", again, "-o", tmp_path / "no").stderr


@pytest.mark.parametrize("family", ["qwen2", *long("marian", "byt5", "albert")])
def test_fine_tuning_learns_and_resumes_exactly(folders, family, tmp_path):
    losses, exact = tune(family, folders(family, torch.float32)[0], tmp_path)
    assert losses[-1] < losses[0]
    assert exact


@pytest.fixture
def damaged(folders, tmp_path):
    """A copy of the folder of a Llama, which a test damages."""
    return shutil.copytree(folders("llama", torch.float32)[0], tmp_path / "llama")


def change(folder, name, **values):
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def weights(folder, edit):
    found = load_file(folder / "model.safetensors")
    edit(found)
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})


NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(("damage", "said"), [
    (lambda f: change(f, "config.json", auto_map={"AutoModel": "x.y"}), "auto_map"),
    (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
     "load the model with from_pretrained of transformers and save it again"),
    (lambda f: change(f, "config.json", hidden_act="gelu_10"), "its activation is 'gelu_10'"),
    (lambda f: change(f, "config.json", model_type="opt"), "its model_type is 'opt'"),
    (lambda f: change(f, "config.json", architectures=["LlamaModel"]), "its class is LlamaModel"),
    (lambda f: change(f, "generation_config.json", eos_token_id="x"), "its texts end in 'x'"),
    (lambda f: weights(f, lambda w: w.pop(NORM)), f"they lack {NORM}"),
    (lambda f: weights(f, lambda w: w.update({NORM: torch.ones(7)})),
     f"{NORM} is of the shape (7,), and not (24,)"),
    (lambda f: weights(f, lambda w: w.update({"model.extra.weight": torch.ones(7)})),
     "it has weights model.extra.weight of its own"),
    (lambda f: change(f, "config.json", num_hidden_layers=3), "they lack model.layers.2."),
    (lambda f: weights(f, lambda w: w.update({
        "model.embed_tokens.weight": torch.zeros(50, 24), "lm_head.weight": torch.zeros(50, 24)})),
     "it has an id"),
])  # fmt: skip
def test_what_cannot_be_imported_is_said_in_a_sentence(damaged, damage, said, tmp_path):
    damage(damaged)
    done = command("import", damaged, "-o", tmp_path / "run")
    assert done.exit_code == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(RegardError, match="save_pretrained"):
        import_run(tmp_path, tmp_path / "run")


def test_what_regard_does_not_compute_is_wrapped(damaged):
    change(damaged, "config.json", rope_parameters={"rope_type": "linear", "factor": 2.0,
                                                    "rope_theta": 10000.0})  # fmt: skip
    assert type(regard.load(damaged)).__name__ == "PretrainedModel"
    with pytest.raises(ImportRefusedError, match="rotary positions"):
        regard.load(damaged, engine="regard")


def test_languages_are_tokens_that_texts_begin_with(folders, tmp_path):
    from transformers import MBart50Tokenizer

    path, _ = folders("mbart", torch.float32, vocab_size=160, pad_token_id=1, bos_token_id=0)
    base = build_tokenizer("nllb").backend_tokenizer  # whose special tokens stand as mBART's do
    pieces = json.loads(base.to_str())["model"]["vocab"]
    MBart50Tokenizer(vocab=[tuple(one) for one in pieces], src_lang="en_XX").save_pretrained(path)
    run = import_run(path, tmp_path / "run", source_language="de_DE", target_language="fr_XX")
    model, text = regard.load(run), "the cat sat"
    theirs = MBart50Tokenizer.from_pretrained(path, src_lang="de_DE", tgt_lang="fr_XX")
    ids = model.src_tokenizer.imported.ids
    own = [ids[i] for i in model.source_ids([text])[0]]
    assert own == theirs(text)["input_ids"]
    assert [ids[i] for i in model.tgt_tokenizer.encode(text)] == theirs(text_target=text)[
        "input_ids"
    ][:-1]
    (found,) = model([text], beam=2, max_len=9)
    assert found.tokens[0] == "fr_XX"
    assert "fr_XX" not in found.text
    assert found.token_log_probs[0] == 0
    named = command("import", path, "-o", tmp_path / "other", "--tgt-lang", "xx_XX")
    assert "be a language of the tokenizer" in named.stderr


def test_languages_after_sources_begin_targets(folders, tmp_path):
    from transformers import MBartTokenizer

    path, _ = folders("mbart-cc25", torch.float32, vocab_size=160, pad_token_id=1, bos_token_id=0)
    pieces = json.loads(build_tokenizer("nllb").backend_tokenizer.to_str())["model"]["vocab"]
    MBartTokenizer(vocab=[tuple(one) for one in pieces]).save_pretrained(path)
    run = import_run(path, tmp_path / "run", source_language="de_DE", target_language="fr_XX")
    model, text = regard.load(run), "the cat sat"
    theirs = MBartTokenizer.from_pretrained(path, src_lang="de_DE", tgt_lang="fr_XX")
    ids = model.src_tokenizer.imported.ids
    expected = theirs(text)["input_ids"]
    assert [ids[i] for i in model.source_ids([text])[0]] == expected
    assert ids[1] == theirs.convert_tokens_to_ids("fr_XX")
    trace = model.trace(text, beam=2, max_len=5)
    shown = theirs.convert_ids_to_tokens(expected)
    assert [token.text for token in trace.source.tokens][-2:] == shown[-2:] == ["</s>", "de_DE"]


ODD = (
    "  the  cat ",
    "Café ﬁsh",
    "日本 cat",
    "the\tcat sat",
    "the __fr__ cat",
    ">>fr<< cat",
    "THE ®",
)


@pytest.mark.parametrize(("family", "kind"), [
    ("marian", "unigram"), ("m2m_100", "unigram"), ("m2m_100", "bpe")
])  # fmt: skip
def test_pieces_of_odd_texts_are_those_of_sentencepiece(folders, family, kind, tmp_path):
    path = shutil.copytree(folders(family, torch.float32)[0], tmp_path / family)
    languages = {}
    if family == "m2m_100":
        m2m_tokenizer(kind).save_pretrained(path)
        languages = {"source_language": "ta", "target_language": "fr"}
    run = import_run(path, tmp_path / "run", **languages)
    model, theirs = regard.load(run), load_tokenizer(path, load_config(path))
    theirs.src_lang = "ta"
    ids = model.src_tokenizer.imported.ids
    mixed = ["".join(random.Random(seed).choices("trees no at", k=40)) for seed in range(20)]
    for text in (*ODD, *mixed):
        own = [ids[i] for i in model.source_ids([text])[0]]
        assert own == theirs(text)["input_ids"], text
        back = theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)
        written = [i for i in model.source_ids([text])[0] if i > 3]
        assert (
            model.src_tokenizer.decode(written).strip() == re.sub("<unk>|>>fr<<", "", back).strip()
        )
    if family == "m2m_100":
        (found,) = model(["the cat"], beam=2, max_len=9)
        assert found.tokens[0] == "__fr__"
        named = command("import", path, "-o", tmp_path / "other", "--tgt-lang", "__fr__")
        assert "as af, am, ar" in named.stderr
