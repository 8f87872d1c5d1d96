"""Recipes from the files to result.json, through the command line."""

import json

import pytest

from cli.tools import done, regard, sentence
from recipes import made
from regard.recipes.tasks import base

pytestmark = pytest.mark.slow

RECIPE = """
preset = "bahdanau"
size = "tiny"
hidden = 16
embed = 8
batch_sentences = 16
max_tgt_len = 8
steps = 3
report = false
threads = 1

[recipe]
task = "cmudict"
dev_words = 7

[[recipe.published]]
system = "theirs"
by = "them"
figures = { wer = 1.5 }
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A folder to stand in, with data and a recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_COMMIT", "abc")
    monkeypatch.delenv("REGARD_DATA", raising=False)
    made.cmudict(tmp_path / "data")
    (tmp_path / "small.toml").write_text(RECIPE)
    return tmp_path


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def test_a_recipe_trains_and_scores_dev_and_test_once(small):
    output = regard("train", "small", "--data-dir", "data", "seed=3", "device=cpu")
    assert done(output) == "runs/recipes/small-3\n"
    run = small / "runs" / "recipes" / "small-3"
    result = result_of(run)
    assert {"dev", "test"} == set(result["scores"])
    assert result["scores"]["dev"]["examples"] == 7
    assert result["scores"]["test"]["figures"].keys() == {"wer", "per"}
    assert (result["commit"], result["seed"], result["task"]) == ("abc", 3, "cmudict")
    assert result["command"] == "regard train recipes/small seed=3"
    assert result["training"]["steps"] == 3
    assert result["training"]["tokens_per_s"] > 0
    assert result["curve"]["metric"] == "per"
    (seconds, _), *_ = result["curve"]["points"]
    assert seconds == pytest.approx(60 * result["training"]["minutes"])
    assert (result["device"], result["cores"]) == ("cpu", 1)
    assert result["weights"] > 1000
    assert result["published"][0]["figures"] == {"wer": 1.5}
    assert len((run / "recipe" / "test.answers.txt").read_text().splitlines()) == 2
    assert "test: wer" in output.stderr
    again = regard("train", "--resume", run)
    assert "all sets are scored already" in again.stderr
    assert result_of(run) == result


def test_a_run_that_learns_on_is_scored_anew(small):
    done(regard("train", "small", "--data-dir", "data", "-q", "-o", "out"))
    done(regard("train", "--resume", "out", "-q", "steps=5", "--no-test"))
    result = result_of(small / "out")
    assert result["training"]["steps"] == 5
    assert set(result["scores"]) == {"dev"}
    assert result["command"] == "regard train recipes/small steps=5"
    assert result["settings"]["steps"] == 5
    said = sentence(regard("train", "--resume", "out", "recipe.dev_words=3"), 2)
    assert "recipe.dev_words must stay as it is" in said


def test_an_ensemble_is_made_of_runs_by_name_and_seed(small):
    for seed in (1, 2):
        done(regard("train", "small", "--data-dir", "data", "-q", f"seed={seed}"))
    text = '[recipe]\ntask = "cmudict"\ndev_words = 7\nmembers = ["small:1", "small:2"]\n'
    (small / "both.toml").write_text(text)
    done(regard("train", "both", "--data-dir", "data", "-q"))
    runs = small / "runs" / "recipes"
    both, one = (result_of(runs / name) for name in ("both-1", "small-1"))
    assert both["weights"] == 2 * one["weights"]
    assert both["members"] == ["small:1", "small:2"]
    assert set(both["scores"]) == {"dev", "test"}
    assert "has scores" in sentence(regard("train", "both", "--data-dir", "data"), 1)


@pytest.mark.long
def test_a_member_has_learned_to_its_end(small):
    done(regard("train", "small", "--data-dir", "data", "-q"))
    run = small / "runs" / "recipes" / "small-1"
    (run / "README.md").rename(run / "aside.md")  # the card is written last
    text = '[recipe]\ntask = "cmudict"\ndev_words = 7\nmembers = ["small:1"]\n'
    (small / "alone.toml").write_text(text)
    said = sentence(regard("train", "alone", "--data-dir", "data"), 2)
    assert "be a finished run, but it is 'small:1', which is not" in said
    assert "regard train --resume" in said
    (small / "alone.toml").write_text(text.replace("small:1", "runs/recipes/small-1"))
    done(regard("train", "alone", "--data-dir", "data", "-q"))


@pytest.mark.long
def test_a_model_learns_the_answers_of_its_teacher(small):
    done(regard("train", "small", "--data-dir", "data", "-q"))
    done(
        regard(
            *("train", "small", "--data-dir", "data", "-q", "-o", "runs/recipes/pupil"),
            *('recipe.teacher=["small:1"]', "recipe.decoding.beam=1", "recipe.decoding.max_len=7"),
        )
    )
    runs = small / "runs" / "recipes"
    sets = [(runs / name / "recipe" / "train.tsv").read_text() for name in ("small-1", "pupil")]
    gold, taught = ([line.split("\t") for line in rows.splitlines()] for rows in sets)
    assert [src for src, _ in taught] == list(dict.fromkeys(src for src, _ in gold))
    words = [src for src, _ in taught]
    (small / "words.txt").write_text("".join(f"{word}\n" for word in words))
    said = done(
        regard("predict", runs / "small-1", "words.txt", "--beam=1", "--max-len=7")
    ).splitlines()
    first = dict(reversed(gold))
    assert [tgt for _, tgt in taught] == [
        answer or first[word] for answer, word in zip(said, words, strict=True)
    ]


@pytest.mark.long
def test_a_pupil_learns_probabilities_and_words_that_have_no_answer(small):
    done(regard("train", "small", "--data-dir", "data", "-q"))
    made.write(small / "data", "words/list.txt.gz", ["aab 0.1", "Hidden 1 2", "abba 3", "it 4"])
    words = "recipe.words=words/list.txt"
    said = sentence(regard("train", "small", "--data-dir", "data", "-o", "out", words), 2)
    assert "recipe.teacher must name runs" in said
    assert "missing for 1 of them" in said
    assert not (small / "out").exists()
    taught = ('recipe.teacher=["small:1"]', words, "recipe.decoding.max_len=7")
    done(regard("train", "small", "--data-dir", "data", "-q", "-o", "runs/recipes/pupil", *taught))
    runs = small / "runs" / "recipes"
    sets = [(runs / name / "recipe" / "train.tsv").read_text() for name in ("small-1", "pupil")]
    gold, pupil = (rows.splitlines() for rows in sets)
    assert pupil[: len(gold)] == gold
    answer = done(regard("predict", runs / "small-1", "-", "--max-len=7", stdin="HIDDEN\n"))
    more = [line.split("\t")[0] for line in pupil[len(gold) :]]
    assert more == (["HIDDEN"] if answer.strip() else [])
    config = json.loads((runs / "pupil" / "config.json").read_text())
    assert config["config"]["teacher"] == ["runs/recipes/small-1"]
    assert result_of(runs / "pupil")["options"]["words"] == "words/list.txt"


def test_a_language_model_is_judged_by_perplexity(small):
    made.ptb(small / "data")
    text = 'preset = "lm-rnn"\nhidden = 16\nembed = 8\nsteps = 2\nthreads = 1\n'
    (small / "text.toml").write_text(text + '[recipe]\ntask = "ptb"\n')
    done(regard("train", "text", "--data-dir", "data", "-q", "-o", "out", "device=cpu"))
    scores = result_of(small / "out")["scores"]
    found = json.loads(done(regard("evaluate", "out", "data/ptb/ptb.test.txt.gz", "--json")))
    figure = scores["test"]["figures"]["perplexity"]
    assert figure["value"] == pytest.approx(found["metrics"][0]["value"], rel=1e-6)
    # five and three words, and a line end each
    assert "words:50|" in figure["signature"]
    assert found["tokens"] == 50


@pytest.mark.long
def test_bundled_data_need_no_folder(small, monkeypatch):
    names = {"train.tsv": "train.tsv.gz", "test.multiref.tsv": "test.multiref.tsv.gz"}
    for name, file in names.items():
        path = small / "data" / "cmudict_g014b2b" / file
        monkeypatch.setitem(base.BUNDLED, f"cmudict_g014b2b/{name}", path)
    result = regard("train", "small", "device=cpu")
    assert done(result) == "runs/recipes/small-1\n"
    assert "no --data-dir: using the bundled data of cmudict." in result.stderr
    assert result_of(small / "runs" / "recipes" / "small-1")["scores"].keys() == {"dev", "test"}


WRONG = {
    "no data folder": (
        ["small", "recipe.words=glove/words.txt"],
        2,
        ["--data-dir", "glove/words.txt", "missing", "REGARD_DATA"],
    ),
    "an option": (["small", "--data-dir", "data", "recipe.x=1"], 2, ["recipe.x", "dev_words"]),
    "a member": (
        ["small", "--data-dir", "data", 'recipe.members=["other:2"]'],
        2,
        ["'other:2'", "runs/recipes", "seed=2"],
    ),
    "other vectors": (
        ["small", "--data-dir", "nothing", "src_vectors=wide.txt"],
        2,
        ["embed must be 3, the width of the vectors in wide.txt", "it is 8"],
    ),
}


@pytest.mark.plain
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_sentence(small, case):
    (small / "runs").mkdir()
    (small / "wide.txt").write_text("a 0.1 0.2 0.3\n")
    words, code, parts = WRONG[case]
    said = sentence(regard("train", *words), code)
    for part in parts:
        assert part in said
    assert not list((small / "runs").iterdir())
