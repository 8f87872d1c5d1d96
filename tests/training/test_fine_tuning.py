"""A run that starts from the network, the tokenisers and the weights of another."""

import json
import re
import shutil

import numpy as np
import pytest
import torch

import regard
from cli.tools import regard as command
from cli.tools import sentence
from regard.data.corpus import Ids
from regard.errors import ArgumentError, RegardError
from regard.symbols import SYMBOLS
from regard.training import RunFolder, make_config, new_config, resume_run, start_run
from regard.training.epochs import MixedPairs, Replay
from regard.training.setup import check_settings
from training.tools import SETTINGS, assert_same, begin, last_checkpoint, weights, write_pairs

# whole runs, whose parts are tested with the checks of shapes
pytestmark = pytest.mark.plain

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
    run = train(tmp_path, "g2p", data, start="g2p", **ONCE)
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
        begin(config, tmp_path / name)
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
    assert regard.load(tmp_path / "run", device="cpu").task.labels


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


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "must be a run folder, but it has no config.json"),
        ({"config.json": "{}"}, "config.json must be a run's settings, but it cannot be read"),
        ({"config.json": '{"model_type": "bert"}'}, "must hold weights in model.safetensors"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(home, tmp_path, files, reason):
    (tmp_path / "other").mkdir()
    for name, text in files.items():
        (tmp_path / "other" / name).write_text(text)
    with pytest.raises(RegardError, match=reason):
        train(tmp_path, "run", home / "labels.tsv", start=str(tmp_path / "other"), **ONCE)
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


def test_frozen_parts_stay_as_they_were_and_have_no_state(home, tmp_path, said):
    chosen = {"start": str(home / "words"), "freeze": "embeddings,encoder", "schedule": "constant"}
    config = new_config({"data": str(home / "pairs.tsv"), **chosen, **BRIEF})
    run = start_run(config, tmp_path / "run")
    assert "frozen: embeddings, encoder, which are " in said()
    before, after = weights(home / "words"), last_checkpoint(run.path)
    same = {name for name, weight in before.items() if torch.equal(weight, after[f"model.{name}"])}
    assert same == {name for name in before if name.startswith("encoder.") or "embedding" in name}
    moments = [name for name in after if name.endswith(".exp_avg")]
    learned = before.keys() - same
    assert len(moments) == len(learned)
    train(tmp_path, "parts", home / "pairs.tsv", **chosen, **BRIEF | {"steps": 3})
    resumed = resume_run(tmp_path / "parts", {"steps": 6}, quiet=True)
    assert_same(last_checkpoint(resumed.path), last_checkpoint(run.path))


@pytest.mark.parametrize(
    ("freeze", "reason"),
    [
        ("tail", "freeze must name .* are embeddings, body, output, layers:0-0, but it is 'tail'"),
        ("layers:0-3", "freeze must name parts of the network"),
        ("embeddings,body,output", "freeze must leave some of the network to learn"),
    ],
)
def test_what_cannot_be_frozen(home, tmp_path, freeze, reason):
    start = {"start": str(home / "text"), "freeze": freeze, **ONCE}
    with pytest.raises(ArgumentError, match=reason):
        train(tmp_path, "run", home / "text.txt", **start)
    assert not (tmp_path / "run").exists()


def test_layers_are_frozen_by_number(home, tmp_path):
    start = {"start": str(home / "text"), "freeze": "layers:0", **ONCE, "schedule": "constant"}
    run = train(tmp_path, "run", home / "text.txt", **start, lr=0.1)
    before, after = weights(home / "text"), last_checkpoint(run.path)
    same = {name for name, weight in before.items() if torch.equal(weight, after[f"model.{name}"])}
    assert same == {name for name in before if ".layers.0." in name}


def test_replayed_examples_have_their_share_and_a_run_resumes_exactly(home, tmp_path, monkeypatch):
    new = write_pairs(tmp_path / "new.tsv", seed=7)
    seen = []
    gather = MixedPairs.gather

    def counted(self, side, rows):
        seen.append((len(rows), int((rows >= len(self.own.src_lengths)).sum())))
        return gather(self, side, rows)

    monkeypatch.setattr(MixedPairs, "gather", counted)
    chosen = {
        "start": str(home / "words"),
        "replay": str(home / "pairs.tsv"),
        "replay_share": 0.25,
        "schedule": "constant",
        "batch_sentences": 16,
    }
    whole = train(tmp_path, "whole", new, **chosen, **BRIEF | {"steps": 16})
    total, old = map(sum, zip(*seen, strict=True))
    assert abs(old / total - 0.25) < 0.03
    train(tmp_path, "parts", new, **chosen, **BRIEF | {"steps": 8})
    resumed = resume_run(tmp_path / "parts", {"steps": 16}, quiet=True)
    assert_same(last_checkpoint(resumed.path), last_checkpoint(whole.path))


def test_each_pass_replays_other_examples_and_all_come_in_turn():
    old, own = Examples([2, 3, 5, 7, 11]), Examples([13] * 6)
    replay = Replay(old, 0.25, seed=1)
    passes = [replay.beside(own, number) for number in range(5)]
    assert [len(one.rows) for one in passes] == [2] * 5
    rows = np.concatenate([one.rows for one in passes])
    assert sorted(rows[:5]) == sorted(rows[5:]) == [0, 1, 2, 3, 4]
    assert rows[:5].tolist() != rows[5:].tolist()
    taken = np.array([7, 0, 6])
    ids = passes[0].gather("src", taken)
    sizes = passes[0].src_lengths[taken].tolist()
    assert ids.lengths.tolist() == sizes
    expected = [old.lengths[passes[0].rows[1]], 13, old.lengths[passes[0].rows[0]]]
    assert sizes == expected
    found = [ids.values[s : s + n].tolist() for s, n in zip(ids.starts, ids.lengths, strict=True)]
    assert found == [[n] * n for n in expected]


class Examples:
    """Examples of some lengths, whose ids are these lengths."""

    def __init__(self, lengths):
        self.lengths = lengths
        self.src_lengths = self.tgt_lengths = np.array(lengths, np.int32)

    def gather(self, side, rows):
        values = np.concatenate([np.full(n, n) for n in self.lengths])
        starts = np.cumsum(self.lengths) - self.lengths
        return Ids(starts[rows], self.src_lengths[rows], values)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"freeze": "encoder"}, "freeze must be left out where start is not given"),
        ({"replay": "x.tsv"}, "replay must be left out where start is not given"),
        ({"replay_share": 0.5}, "replay_share must be left out where replay is not given"),
        ({"guide_weight": 0.5}, "guide_weight must be left out where guide is not given"),
        ({"adapter_rank": 4}, "adapter_rank must be left out where adapter is not given"),
    ],
)
def test_settings_that_need_another_one(home, settings, reason):
    with pytest.raises(ArgumentError, match=reason):
        check_settings(make_config({"data": str(home / "pairs.tsv"), **settings}))


def test_replay_of_another_task_is_refused(home, tmp_path):
    other = tmp_path / "other.tsv"
    other.write_text("".join(f"{text}\tVVWW XXYY ZZ{i}\n" for i, text in enumerate(TEXTS)))
    start = {"start": str(home / "words"), "replay": str(other), **ONCE}
    with pytest.raises(ArgumentError, match="replay must hold examples of what the model knew"):
        train(tmp_path, "run", home / "pairs.tsv", **start)
    assert not (tmp_path / "run").exists()


def test_a_run_says_what_it_has_forgotten(home, tmp_path, said):
    (tmp_path / "more.tsv").write_text(LABELS.replace("the bad", "the very bad"))
    start = {"start": str(home / "labels"), "lr": 0.05, **BRIEF}
    config = new_config({"data": str(tmp_path / "more.tsv"), **start})
    run = start_run(config, tmp_path / "run")
    old, new = (RunFolder(place) for place in (home / "labels", tmp_path / "run"))
    rows = [json.loads(line) for line in new.metrics.path.read_text().splitlines()]
    assert rows[0]["step"] == 0
    before = json.loads(max(run.checkpoints.glob("*.json")).read_text())["record"]["numbers"]
    best = max(row["dev_accuracy"] for row in old.read_metrics())
    assert before["progress"]["before"] == pytest.approx(best)
    words = said()
    assert f"on the dev set of {home / 'labels'}, accuracy was {best:.2%} before and is " in words
    assert "On the dev set of" in run.card_file.read_text()
    start_run(make_config({**dict(config), "lr": 1e-9, "eval_pairs": 1}), tmp_path / "same")
    first, final = re.search(r"data it was (\S+) and is (\S+)\.", said()).groups()
    assert first == final  # of the same examples, though more are scored at the end


def test_what_cannot_be_measured_is_said_and_replay_measures_it(home, tmp_path, said):
    shutil.copytree(home / "words", tmp_path / "old")
    shutil.rmtree(tmp_path / "old" / "data")
    new = write_pairs(tmp_path / "new.tsv", seed=7)
    start = {"data": str(new), "start": str(tmp_path / "old"), **BRIEF}
    start_run(new_config(start), tmp_path / "alone")
    assert "what was forgotten of" in said()
    start_run(new_config({**start, "replay": str(home / "pairs.tsv")}), tmp_path / "replay")
    assert f"on the dev set of {tmp_path / 'old'}, per was" in said()
