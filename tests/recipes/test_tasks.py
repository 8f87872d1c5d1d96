"""What each task makes of its files: small ones, and the real ones where they are."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from recipes import made
from regard.api import Model, Output
from regard.api.bundled_models import HOME
from regard.data import Tokenizer
from regard.errors import ArgumentError, DataError
from regard.evaluation.metrics import PLAIN_TEXT
from regard.recipes import TASKS
from regard.recipes.paper_metrics import bleu, bleu_of_tokens
from regard.recipes.task_data import RecipeExample, TaskData, read_evaluation, write
from regard.recipes.tasks.base import evaluate_by
from regard.recipes.tasks.questions import support_shares
from regard.recipes.tasks.sentences import informal_pairs, split_by_sentences


def prepare(task, folder, **options):
    return TASKS[task].prepare(folder, **options)


def test_cmudict_holds_out_whole_words(tmp_path):
    rows = made.cmudict(tmp_path)
    found = prepare("cmudict", tmp_path, dev_words=7)
    train, dev = found.train, found.evaluation["dev"]
    assert len(dev) == 7
    assert not {e.src for e in train} & {e.src for e in dev}
    again = [(e.src, said) for e in [*train, *dev] for said in e.references]
    assert sorted(again) == sorted(set(rows))  # a palindrome is said in one way
    assert found.evaluation["test"][1] == RecipeExample("ABE", ("A B E", "E B A"))


def test_sigmorphon_takes_the_language_as_a_symbol(tmp_path):
    made.sigmorphon(tmp_path)
    found = prepare("sigmorphon", tmp_path, part="low")
    assert found.train[0] == RecipeExample("가 값b", ("k a train",), ("kor",), "kor")
    assert found.settings["src_tokenizer"] == "char"
    assert found.train[0].model_input == "가 값b\tkor"
    assert found.train[0].lines == ["가 값b\tk a train\tkor"]


def test_multi30k_picks_its_columns(tmp_path):
    made.multi30k(tmp_path)
    found = prepare("multi30k", tmp_path, tgt="fr")
    assert found.train[0] == RecipeExample("A Dog.", ("Un chien.",), group="fr")
    assert found.evaluation["dev"][1].src == "val"
    assert list(found.evaluation) == ["dev", "test", "test2017"]
    assert "test2017" not in prepare("multi30k", tmp_path, tgt="cs").evaluation
    lower = prepare("multi30k", tmp_path, tgt="en", src="de", lowercase=True)
    assert lower.train[0] == RecipeExample("ein hund.", ("a dog.",), group="en")
    with pytest.raises(ArgumentError, match="another language than en"):
        prepare("multi30k", tmp_path, tgt="en")


SENTENCES = [(f"Go {i}.", f"Va {i}.") for i in range(60)]


def test_sentences_that_share_a_side_are_in_one_set():
    linked = [("Hi.", "Salut."), ("hi.", "Coucou."), ("Hello.", "coucou."), ("Hi.", "Salut.")]
    for number in range(20):
        pairs = [*SENTENCES, *(((f"{a}{number}", f"{b}{number}")) for a, b in linked)]
        sets = split_by_sentences(pairs, held_out=20)
        found = [{x for x in sets[name] if x not in SENTENCES} for name in sets]
        assert sorted(map(len, found)) == [0, 0, 3]
        assert sum(map(len, sets.values())) == 63
        assert 15 <= len(sets["dev"]) <= 20
        assert 15 <= len(sets["test"]) <= 20


def test_informal_pairs_lose_stop_and_capital_but_not_that_of_a_name():
    pairs = [
        ("The dog saw Tom.", "Le chien a vu Tom."),
        ("Tom saw the dog!", "Tom a vu le chien !"),
    ]
    found = informal_pairs(pairs, 1.0)
    assert sorted(found) == [
        ("Tom saw the dog!", "Tom a vu le chien !"),
        ("the dog saw Tom", "le chien a vu Tom"),
    ]
    assert informal_pairs(pairs, 0.0) == []
    assert len(informal_pairs(SENTENCES, 0.25)) == 15


def test_tatoeba_in_other_languages_and_its_english(tmp_path):
    made.tatoeba_all(tmp_path)
    chinese = prepare("tatoeba", tmp_path, tgt="cmn", part="all")
    assert chinese.train[0] == RecipeExample("Run train!", ("跑，汉。", "跑。"))
    assert chinese.settings["tgt_tokenizer"] == "char"
    german = prepare("tatoeba", tmp_path, tgt="deu", part="all", informal=1.0)
    sources = ["Run train!", "Now train.", "now train", "run train!"]
    assert sorted(example.src for example in german.train) == sorted(sources)
    with pytest.raises(ArgumentError, match=r"recipe.part must be all for deu"):
        prepare("tatoeba", tmp_path, tgt="deu")
    english = prepare("tatoeba-english", tmp_path)
    texts = [example.references[0] for example in english.train]
    assert "Run dev!" not in texts
    assert "Run test!" not in texts
    assert len(texts) == len(set(texts)) == 62


def test_ptb_has_lines_in_their_order_without_a_source(tmp_path):
    made.ptb(tmp_path)
    found = prepare("ptb", tmp_path)
    assert found.evaluation["dev"][:2] == [
        RecipeExample("", ("the valid <unk> is here",)),
        RecipeExample("", ("a b N",)),
    ]
    folder = tmp_path / "kept"
    write(found, folder)
    assert (folder / "dev.tsv").read_text() == "the valid <unk> is here\na b N\n" * 5
    assert read_evaluation(folder) == {name: list(rows) for name, rows in found.evaluation.items()}


def test_training_sees_every_language_among_the_first_dev_pairs(tmp_path):
    rows = [RecipeExample(f"w{i}", ("x", "y"), (), "a" if i < 50 else "b") for i in range(100)]
    write(TaskData(rows, {"dev": rows}), tmp_path)
    lines = (tmp_path / "dev.tsv").read_text().splitlines()
    assert sorted(lines) == sorted(line for row in rows for line in row.lines)
    first = [int(line.split("\t")[0][1:]) < 50 for line in lines[:60]]
    assert 10 < sum(first) < 50
    asked = [line.split("\t")[0] for line in lines]
    assert asked[::2] == asked[1::2]  # the references of a source stay together
    assert read_evaluation(tmp_path)["dev"] == rows


def test_sst_has_phrases_in_training_and_sentences_in_judging(tmp_path):
    made.sst(tmp_path)
    found = prepare("sst", tmp_path)
    # (is lovely) is 3, lovely is 4 and also a dev sentence, bad is 1, (bad film) 0, the roots 3, 1
    assert {(e.src, *e.references) for e in found.train} == {
        ("is lovely", "positive"),
        ("is lovely .", "positive"),
        ("It is lovely .", "positive"),
        ("bad", "negative"),
        ("bad film", "negative"),
        ("No bad film", "negative"),
    }
    judged = [[(e.src, *e.references) for e in found.evaluation[name]] for name in ("dev", "test")]
    assert judged[0] == [("lovely film", "positive"), ("lovely", "negative")]
    assert judged[1] == [("( 1/2", "negative")]  # the neutral sentence is left out


def test_sst_degrees_are_learned_and_classes_judged(tmp_path):
    made.sst(tmp_path)
    found = prepare("sst", tmp_path, degrees=True)
    learned = {e.src: e.references for e in found.train}
    assert learned["bad film"] == ("very-negative",)
    assert learned["bad"] == ("negative",)
    assert learned["film"] == ("neutral",)
    assert [e.references for e in found.evaluation["dev"]] == [
        ("positive", "very-positive"),
        ("negative", "very-negative"),
    ]
    assert [e.src for e in found.evaluation["test"]] == ["( 1/2"]  # no neutral sentence


def said(**shares):
    """Answers of a search, likeliest first."""
    rows = sorted(shares.items(), key=lambda row: -row[1])
    answers = [(word.replace("_", "-"), math.log(share)) for word, share in rows]
    return [Output(word, log, log, [], [], [], {}) for word, log in answers]


class Searches(Model):
    """A model that knows what is likely."""

    def __init__(self, found):
        self.found, self.options = found, {}
        self.task = SimpleNamespace(target=Tokenizer.train("space", ["positive negative"]))

    def predict(self, texts, **options):
        self.options = options
        for text in texts:
            first, *others = said(**self.found[text])
            yield replace(first, alternatives=tuple(others))


def test_sst_is_judged_by_classes_where_degrees_were_learned():
    found = {
        "good": {"neutral": 0.5, "very_positive": 0.3, "negative": 0.2},
        "poor": {"positive": 0.4, "negative": 0.35, "very_negative": 0.25},
    }
    model = Searches(found)
    rows = [
        RecipeExample("good", ("positive", "very-positive")),
        RecipeExample("poor", ("positive", "x")),
    ]
    verdict = TASKS["sst"].evaluate(model, rows, {"beam": 2})
    assert verdict.predictions == ["positive", "negative"]
    assert verdict.metrics[0].value == 50.0
    assert model.options["nbest"] == model.options["beam"] > 5  # every answer is found


@pytest.mark.parametrize("tree", ["(3 (2 a) (2 b)", "(7 a)", "a)", "(3 )", "good film )"])
def test_a_broken_tree_is_named(tmp_path, tree):
    made.sst(tmp_path)
    made.write(tmp_path, "sst/trees.dev.txt.gz", ["(4 fine)", tree])
    with pytest.raises(DataError, match=r"trees\.dev\.txt\.gz, line 2: the line must be a tree"):
        prepare("sst", tmp_path)


def test_a_line_that_lacks_a_column_is_named(tmp_path):
    made.sigmorphon(tmp_path)
    made.write(tmp_path, "g2p_sigmorphon2021/low.dev.tsv.gz", [("kor", "a", "b"), ("kor", "a")])
    with pytest.raises(DataError, match=r"low\.dev\.tsv\.gz, line 2: .* 3 filled columns"):
        prepare("sigmorphon", tmp_path, part="low")


def test_a_missing_file_is_named_and_where_it_comes_from(tmp_path):
    with pytest.raises(DataError, match=r"multi30k/train.*recipes/README\.md.*--data-dir"):
        prepare("multi30k", tmp_path, tgt="de")


@pytest.mark.long
@pytest.mark.slow
def test_the_bundled_dictionary_is_that_of_the_papers():
    found = TASKS["cmudict"].prepare(HOME)
    assert len(found.train) == 104_167
    counts = {name: len(examples) for name, examples in found.evaluation.items()}
    assert counts == {"dev": 2670, "test": 12_000}


@pytest.mark.parametrize("task", ["an4", "multi30k", "ptb", "sst", "tatoeba"])
def test_a_task_whose_data_are_not_bundled_asks_for_a_folder(task):
    options = {"multi30k": {"tgt": "de"}}.get(task, {})
    with pytest.raises(ArgumentError, match=r"--data-dir must name a folder with .* REGARD_DATA"):
        prepare(task, HOME, **options)


def test_a_metric_whose_package_is_missing_is_named_and_the_others_are_kept(monkeypatch, capsys):
    monkeypatch.setattr("regard.extras.is_installed", lambda name: name != "sacremoses")

    class Echo:
        tgt_tokenizer = PLAIN_TEXT

        def predict(self, inputs, **options):
            return [SimpleNamespace(text=text) for text in inputs]

    evaluate = evaluate_by(bleu, bleu_of_tokens)
    found = evaluate(Echo(), [RecipeExample("a cat sat here", ("a cat sat here",))], {})
    assert [metric.name for metric in found.metrics] == ["bleu"]
    assert "sacremoses is not installed: run `pip install 'regard[recipes]'`" in (
        capsys.readouterr().err
    )


def test_babi_holds_out_whole_stories(tmp_path):
    made.babi(tmp_path)
    found = prepare("babi", tmp_path, dev_share=0.3)
    train, dev = found.train, found.evaluation["dev"]
    assert len(train) + len(dev) == 120
    stories = [{(e.group, e.src.split(".")[0]) for e in part} for part in (train, dev)]
    assert stories[1]
    assert not stories[0] & stories[1]
    assert {e.group for e in found.evaluation["test"]} == {"1", "3"}
    more = prepare("babi", tmp_path, questions="10k", dev_share=0.3)
    assert {e.group for e in more.evaluation["test"]} == {"1"}
    assert {e.group for e in more.evaluation["test-task-3"]} == {"3"}
    assert {e.group for e in more.train} == {"1", "3"}
    write(found, tmp_path / "run")
    again = read_evaluation(tmp_path / "run")["dev"]
    assert sorted(again, key=str) == sorted(dev, key=str)  # supporting sentences and all


def test_babi_counts_attention_on_supporting_sentences():
    def example(task, support):
        return RecipeExample("A b. | C d. | E f.\tWhere?", ("x",), group=task, note=support)

    def output(*hops):
        return SimpleNamespace(maps={"hops": (torch.tensor([hops]),)}, text="x")

    examples = [example("1", "2"), example("1", "3"), example("2", "1,3"), example("4", "1")]
    outputs = [
        output([0.1, 0.9, 0.0], [0.2, 0.3, 0.5]),  # mean and most: the second
        output([0.0, 0.9, 0.1], [0.0, 0.0, 1.0]),  # mean: the third; so is the largest of all
        output([0.4, 0.6, 0.0], [0.5, 0.5, 0.0]),  # the second, which does not support
        output([1.0, 0.0, 0.0]),
    ]
    mean, any_hop = support_shares(examples, outputs)
    assert mean.groups == {"1": 100.0, "2": 0.0}
    assert mean.value == 50.0
    assert any_hop.groups == {"1": 100.0, "2": 0.0}


def an4(folder, frames=(3, 5), header="utterance\tspeaker\tframes\ttext", table=None):
    """Public files of 101 and more utterances, of which the first 100 are dev."""
    for name, count in (("train", 103), ("test", 2)):
        lengths = [frames[i % 2] for i in range(count)]
        rows = [f"u{name}{i}\ts{i % 7}\t{n}\tA B {i}" for i, n in enumerate(lengths)]
        made.write(folder, f"an4/{name}.tsv.gz", [header, *rows])
        if table is None:
            bands = np.arange(sum(lengths) * 32).reshape(-1, 32) % 251
            np.save(folder / "an4" / f"{name}.logmel32.npy", bands.astype(np.uint8))
        else:
            np.save(folder / "an4" / f"{name}.logmel32.npy", table)


def test_an4_cuts_the_frames_of_a_set_into_utterances(tmp_path):
    an4(tmp_path)
    found = prepare("an4", tmp_path)
    assert {name: len(rows) for name, rows in found.evaluation.items()} == {"dev": 100, "test": 2}
    assert [e.references for e in found.train] == [("A B 100",), ("A B 101",), ("A B 102",)]
    assert found.train[0] == RecipeExample(
        "frames/utrain100.npy", ("A B 100",), group="s2", is_file=True
    )
    settings = write(found, tmp_path / "run")
    whole = np.load(tmp_path / "an4" / "test.logmel32.npy")
    (first, second) = read_evaluation(tmp_path / "run")["test"]
    assert first.src == str(tmp_path / "run" / "frames" / "utest0.npy")
    parts = [np.load(example.src) for example in (first, second)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert [len(part) for part in parts] == [3, 5]
    assert settings["metric"] == "cer"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"header": "utterance\tframes\tspeaker\ttext"}, "the columns must be utterance, speaker"),
        ({"frames": (3, 0)}, "must have the 156 frames of the set"),
        ({"table": np.zeros((415, 31), np.uint8)}, "a .npy file of bytes, 32 for each frame"),
        ({"table": np.zeros((415, 32), np.float32)}, "a .npy file of bytes, 32 for each frame"),
        ({"table": np.array([None])}, "a .npy file of bytes, 32 for each frame"),
    ],
)
def test_an4_files_that_do_not_fit_are_named(tmp_path, changes, reason):
    an4(tmp_path, **changes)
    with pytest.raises(DataError, match=reason):
        prepare("an4", tmp_path)


def test_forecasting_counts_windows_as_published(tmp_path):
    folder = tmp_path / "illness"
    folder.mkdir()
    lines = [f"2020-01-{1 + i // 24:02d} {i % 24:02d}:00:00,{i}" for i in range(400)]
    (folder / "national_illness.csv").write_text("\n".join(["date,OT", *lines]))
    found = prepare("forecasting", tmp_path, series="illness", horizon=5)
    # 280 training rows, 40 for dev, 80 for test; of 76 test windows two batches of 32 are full
    assert [len(found.evaluation[name]) for name in ("dev", "test")] == [36, 64]
    assert found.evaluation["test"][0].src == "320"
    settings = write(found, tmp_path / "prepared")
    assert settings["data"].endswith("series.csv")
    assert settings["split"] == [0.7, 0.1, 0.2]
    assert Path(settings["data"]).read_text().splitlines() == ["date,OT", *lines]
    with pytest.raises(ArgumentError, match="series must be one of ett-h1"):
        prepare("forecasting", tmp_path, series="weather", horizon=5)
