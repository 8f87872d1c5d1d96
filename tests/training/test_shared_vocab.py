"""One vocabulary for both sides, and models whose tables are one."""

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.errors import ArgumentError
from regard.training import RunFolder, make_config, start_run
from regard.training.setup import check_settings
from training.tools import SETTINGS

TIED = {"shared_vocab": True, "tied": "all", "src_tokenizer": "char"}


def test_one_tokeniser_is_saved_for_both_sides(make_task):
    task = make_task(shared_vocab=True)
    files = [task.folder.src_tokenizer_file, task.folder.tgt_tokenizer_file]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert task.evaluator.task.encoders.source.fingerprint == task.evaluator.task.target.fingerprint
    # it knows what either side has: words of letters, and letters with spaces between them
    assert 3 not in task.evaluator.task.encoders.source.encode("abcdefgh")
    assert 3 not in task.evaluator.task.target.encode("h g f e d c b a")


def test_without_it_each_side_has_its_own(make_task):
    task = make_task()
    assert task.evaluator.task.encoders.source.fingerprint != task.evaluator.task.target.fingerprint
    assert (task.evaluator.task.encoders.source.kind, task.evaluator.task.target.kind) == (
        "char",
        "space",
    )


@pytest.mark.parametrize("side", ["src_tokenizer", "tgt_tokenizer"])
def test_a_kind_given_for_one_side_is_that_of_both(make_task, side):
    task = make_task(shared_vocab=True, **{side: "bpe"})
    assert task.evaluator.task.encoders.source.kind == task.evaluator.task.target.kind == "bpe"


def test_features_are_known_to_both(make_task, tmp_path):
    file = tmp_path / "inflected.tsv"
    file.write_text("".join(f"{c}{c}\t{c}s\tV;{t}\n" for c in "abcdefgh" for t in ("PST", "PRS")))
    task = make_task(data=str(file), features=True, columns="0,1,2", **TIED)
    assert (
        task.evaluator.task.encoders.source.features
        == task.evaluator.task.target.features
        == ("PRS", "PST", "V")
    )
    assert (
        len(task.learner.module.encoder.embedding.table.weight)
        == task.evaluator.task.target.vocab_size
    )


@pytest.mark.plain
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tied": "all"}, r"'all' without shared_vocab: add shared_vocab=true"),
        (
            {"shared_vocab": True, "src_tokenizer": "bpe", "tgt_tokenizer": "char"},
            "must be the same with shared_vocab, but it is bpe and char",
        ),
        ({"shared_vocab": True, "src_case": "lower"}, "src_case must be keep where one tokeniser"),
        (
            {"bpe_dropout": 0.1, "src_tokenizer": "char", "tgt_tokenizer": "word"},
            "bpe_dropout must be 0 where no side is cut by bpe, but it is 0.1 with char and word",
        ),
        ({"word_dropout": 1.0}, "word_dropout must be at least 0 and less than 1"),
    ],
)
def test_settings_that_contradict_each_other(settings, words):
    with pytest.raises(ArgumentError, match=words):
        check_settings(make_config(settings))


@pytest.mark.plain
def test_presets_without_a_target_table_cannot_tie_it():
    with pytest.raises(ArgumentError, match="'tied', which seq2seq, bahdanau"):
        make_config({"preset": "conv", "tied": "all"})


@pytest.mark.plain
def test_what_is_found_not_to_be_bpe_has_no_merges_to_leave_out(make_task):
    with pytest.raises(ArgumentError, match="with char and space: add src_tokenizer=bpe"):
        make_task(bpe_dropout=0.1)


def test_merges_are_left_out_of_training_pairs_alone(make_task):
    task = make_task(shared_vocab=True, src_tokenizer="bpe", bpe_dropout=0.3, vocab_size=60)
    first, second = (task.batches.epochs[number].pairs.src_lengths.copy() for number in (0, 1))
    assert first.tolist() != second.tolist()
    assert (first >= task.batches.epochs.corpus.src_lengths).mean() > 0.9
    dev = task.evaluator.dev
    first = dev.corpus.src(int(dev.rows[0])).tolist()
    assert first[:-1] == task.evaluator.task.encoders.source.encode(dev.sources[0])


@pytest.mark.parametrize("value", [None, "none", "output"])
def test_none_is_a_word_here(value):
    assert make_config({"tied": value}).model == {"tied": value or "none"}


def test_none_leaves_other_options_to_the_preset():
    settings = {"preset": "transformer", "attention_dropout": None, "dim": None, "layers": 1}
    assert make_config(settings).model == {"layers": 1}


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["bahdanau", "transformer"])
def test_a_tied_run_is_saved_loaded_and_averaged(data, tmp_path, preset):
    sizes = {"dim": 16, "heads": 2, "feed_forward": 32, "layers": 1}
    settings = {**SETTINGS, **TIED, "steps": 8, "eval_every": 2, "max_tgt_len": 13, "ema": 0.9}
    if preset == "transformer":
        settings = {k: v for k, v in settings.items() if k not in ("hidden", "embed")} | sizes
    config = make_config({"data": str(data), "preset": preset, **settings})
    folder = start_run(config, tmp_path / "run", quiet=True)
    model = regard.load(folder.path).module
    assert model.encoder.embedding.table.weight is model.decoder.embedding.table.weight
    written = load_file(folder.model_file)
    assert "encoder.embedding.table.weight" not in written
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, written[name]), name
    assert isinstance(regard.load(folder.path)("abc").text, str)
    assert RunFolder(folder.path).finished
