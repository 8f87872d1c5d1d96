"""A run that starts from the network, the tokenisers and the weights of another."""

import shutil

import pytest
import torch

import regard
from cli.tools import regard as command
from cli.tools import sentence
from regard.errors import ArgumentError, RegardError
from regard.symbols import SYMBOLS
from regard.training import RunFolder, encode_run, make_config, new_config, resume_run, start_run
from training.tools import SETTINGS, assert_same, last_checkpoint, weights, write_pairs

BRIEF = {
    "steps": 6,
    "eval_every": 3,
    "save_every": 3,
    "report": False,
    "baseline": False,
    "device": "cpu",
    "precision": "32",
}
#: runs of which the weights before the first step are looked at
ONCE = {**BRIEF, "steps": 1}
SMALL = {**SETTINGS, "hidden": 8, "embed": 8, **BRIEF, "max_tgt_len": 10}
NOUNS = ("film", "play", "book", "song", "tale")
TEXTS = [f"{a} {b} {noun}" for a in ("a", "the", "so") for b in ("good", "bad") for noun in NOUNS]
LABELS = "".join(f"{text}\t{text.split()[1]}\n" for text in TEXTS)


def train(folder, name, data, **settings):
    config = new_config({"data": str(data), **settings})
    return start_run(config, folder / name, quiet=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with runs to start from: words spelt backwards, labels, and a language model."""
    folder = tmp_path_factory.mktemp("models")
    train(folder, "words", write_pairs(folder / "pairs.tsv"), **SMALL)
    (folder / "labels.tsv").write_text(LABELS)
    train(folder, "labels", folder / "labels.tsv", preset="classifier-rnn", **SMALL)
    (folder / "text.txt").write_text("\n".join(TEXTS))
    small = {"size": "tiny", "dim": 16, "heads": 2, "feed_forward": 16, "layers": 1}
    train(folder, "text", folder / "text.txt", preset="lm-transformer", **small, **BRIEF)
    return folder


@pytest.fixture
def said(capsys):
    """What a run has said, as one line."""
    return lambda: " ".join(capsys.readouterr().err.split())


def first_weights(run):
    """The weights of a run before its first step."""
    from safetensors.torch import load_file

    from regard.training.checkpoint import tensor_file

    tensors = load_file(tensor_file(run.checkpoints, 0))
    return {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}


def test_network_tokenisers_and_weights_come_along(home, tmp_path):
    other = write_pairs(tmp_path / "other.tsv", seed=5)
    run = train(tmp_path, "run", other, start=str(home / "words"), steps=1, eval_every=1)
    words, config = RunFolder(home / "words"), run.read_config()
    assert_same(first_weights(run), weights(words.path))
    assert config.model["hidden"] == 8
    assert config.size == "tiny"
    for name in ("src_tokenizer_file", "tgt_tokenizer_file"):
        assert getattr(run, name).read_bytes() == getattr(words, name).read_bytes()
    assert {*weights(run.path)} == {*weights(words.path)}


def test_a_bundled_model_and_a_step_can_be_started_from(home, tmp_path):
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"word{i}\tW ER D\n" for i in "abcdefghijklmnopqrstuvwxyz"))
    run = train(tmp_path, "g2p", data, start="g2p", encode_processes=1, **ONCE)
    assert run.read_config().model == regard.load("g2p", device="cpu").config.model
    of_step = train(tmp_path, "step", home / "pairs.tsv", start=f"{home / 'words'}@3", **ONCE)
    there = RunFolder(home / "words").load(weights=None)
    from regard.training.checkpoint import weights_of_step

    assert_same(first_weights(of_step), weights_of_step(RunFolder(home / "words"), 3))
    assert of_step.read_config().model == there.config.model


def test_it_resumes_exactly_without_the_other_model(home, tmp_path):
    shutil.copytree(home / "words", tmp_path / "old")
    chosen = {"start": str(tmp_path / "old"), "schedule": "constant", **BRIEF}
    whole = train(tmp_path, "whole", home / "pairs.tsv", **chosen)
    train(tmp_path, "parts", home / "pairs.tsv", **chosen | {"steps": 3})
    shutil.rmtree(tmp_path / "old")
    resumed = resume_run(tmp_path / "parts", {"steps": 6}, quiet=True)
    assert_same(last_checkpoint(resumed.path), last_checkpoint(whole.path))


def test_a_run_without_a_checkpoint_begins_again_from_the_same_model_alone(home, tmp_path):
    shutil.copytree(home / "words", tmp_path / "old")
    config = new_config({"data": str(home / "pairs.tsv"), "start": str(tmp_path / "old"), **ONCE})
    for name in ("same", "other"):
        encode_run(config, tmp_path / name, quiet=True)
    run = resume_run(tmp_path / "same", quiet=True)
    assert_same(first_weights(run), weights(home / "words"))
    shutil.rmtree(tmp_path / "old")
    shutil.copytree(home / "labels", tmp_path / "old")
    with pytest.raises(ArgumentError, match=r"start must be the model with the checksum .* but"):
        resume_run(tmp_path / "other", quiet=True)


def test_new_characters_are_added(home, tmp_path, said):
    data = tmp_path / "pairs.tsv"
    data.write_text((home / "pairs.tsv").read_text() + "zebra\ta r b e z\n" * 5)
    config = new_config({"data": str(data), "start": str(home / "words"), **ONCE})
    run = start_run(config, tmp_path / "run")
    old, new = RunFolder(home / "words").load(), run.load()
    assert new.src_tokenizer.vocab_size == old.src_tokenizer.vocab_size + 2
    shown = [
        t.tokens(range(old.src_tokenizer.vocab_size))
        for t in (old.src_tokenizer, new.src_tokenizer)
    ]
    assert shown[0] == shown[1]
    name = "encoder.embedding.table.weight"
    before, after = weights(home / "words")[name], first_weights(run)[name]
    torch.testing.assert_close(after[: len(before)], before, atol=0, rtol=0)
    known = before[len(SYMBOLS) :]
    added = after[len(before) :]
    assert not torch.equal(added[0], added[1])
    assert ((added - known.mean(0)).abs() < known.std(0)).float().mean() > 0.95
    words = said()
    assert "2 source tokens are new" in words
    assert "21 of 21 tensors are taken." in words


def test_other_labels_make_a_new_output_and_known_ones_a_larger_one(home, tmp_path, said):
    (tmp_path / "other.tsv").write_text(
        LABELS.replace("good\n", "warm\n").replace("bad\n", "cold\n")
    )
    (tmp_path / "more.tsv").write_text(LABELS + "it was so so\tmixed\n" * 20)
    old = weights(home / "labels")["classifier.output.weight"]
    start = {"start": str(home / "labels"), **ONCE}
    config = new_config({"data": str(tmp_path / "other.tsv"), **start})
    other = first_weights(start_run(config, tmp_path / "other"))
    words = said()
    assert "new are classifier.output" in words
    assert other["classifier.output.weight"].shape == old.shape
    assert not torch.equal(other["classifier.output.weight"], old)
    assert {*regard.load(tmp_path / "other", device="cpu").task.labels} == {"cold", "warm"}
    more = train(tmp_path, "more", tmp_path / "more.tsv", **start)
    torch.testing.assert_close(first_weights(more)["classifier.output.weight"][:-1], old)


@pytest.mark.parametrize(
    ("model", "preset", "took"),
    [("words", "classifier-rnn", "9 of 15"), ("text", "classifier-transformer", "19 of 25")],
)
def test_an_encoder_starts_a_classifier(home, tmp_path, said, model, preset, took):
    data = tmp_path / "labels.tsv"
    data.write_text(LABELS)
    config = new_config({"data": str(data), "start": str(home / model), "preset": preset, **ONCE})
    run = start_run(config, tmp_path / "run")
    assert f"{took} tensors are taken; new are classifier" in said()
    prefix = {
        "words": "encoder.stack.ahead.0",
        "text": "language.body.decoder.layers.0.feed_forward.inner",
    }
    old = [t for n, t in weights(home / model).items() if n.startswith(prefix[model])]
    new = first_weights(run)
    assert all(any(torch.equal(tensor, t) for t in new.values()) for tensor in old)
    assert old


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"start": "nowhere"}, "nowhere must be a run folder, but it is no folder"),
        ({"hidden": 16}, "hidden must be 8, as .*words has it, but it is 16"),
        ({"size": "base"}, "size must be 'tiny', as"),
        ({"preset": "transformer"}, "preset must be 'bahdanau', as"),
        ({"src_tokenizer": "word"}, "src_tokenizer must be 'char', as"),
        ({"src_case": "lower"}, "src_case must be 'keep', as"),
        ({"start_checksum": "00"}, "start must be the model with the checksum 00"),
        ({"preset": "classifier-transformer"}, "start must share weights with the network"),
        ({"src_vectors": "x.vec"}, "src_vectors must be left out where"),
    ],
)
def test_settings_that_contradict_the_model(home, tmp_path, settings, reason):
    with pytest.raises(RegardError, match=reason):
        train(
            tmp_path,
            "run",
            home / "labels.tsv",
            **{"start": str(home / "words"), **ONCE, **settings},
        )
    assert not (tmp_path / "run").exists()


def test_a_model_that_reads_something_else_is_refused(home, tmp_path):
    pictures = [([[i, 200 - i], [i, 3]], "ab"[i % 2]) for i in range(60)]
    settings = {"src_tokenizer": "pictures", "preset": "classifier-rnn"}
    reason = "src_tokenizer must be 'char', as .* has it, but it is 'pictures'"
    with pytest.raises(ArgumentError, match=reason):
        regard.fit(pictures, start=home / "words", quiet=True, **settings, **ONCE)
    tables = [([[0.5, i], [1.0, 3]], "ab"[i % 2]) for i in range(60)]
    with pytest.raises(ArgumentError, match="start must read what the data hold, which is vectors"):
        regard.fit(tables, start=home / "labels", quiet=True, output=tmp_path / "run", **ONCE)
    assert not (tmp_path / "run").exists()


def test_dropout_may_change(home, tmp_path):
    config = new_config({"start": str(home / "words"), "data": "x.tsv", "dropout": 0.4})
    assert config.model["dropout"] == 0.4
    assert make_config(config.model_dump()) == config


def test_from_and_resume_are_told_apart(home, tmp_path):
    result = command("train", "--resume", home / "words", "--from", home / "words")
    assert "--from must be left out when a run goes on" in sentence(result, 2)
    with pytest.raises(ArgumentError, match="start must stay None when a run goes on"):
        resume_run(home / "words", {"start": "g2p"}, quiet=True)


def test_a_dry_run_says_what_would_be_taken(home, tmp_path):
    words = ["--from", str(home / "words"), "--dry-run", "-o", str(tmp_path / "run"), "device=cpu"]
    result = command("train", home / "pairs.tsv", *words)
    assert "21 of 21 tensors are taken." in " ".join(result.stderr.split())
    assert not (tmp_path / "run").exists()
