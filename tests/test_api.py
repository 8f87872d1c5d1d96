"""`regard.fit` and `regard.load`: from Python objects to answers and maps."""

import random

import pytest
import torch

import regard
from regard.errors import ArgumentError, DataError
from regard.training import RunError, RunFolder

SMALL = {"size": "tiny", "hidden": 32, "embed": 16, "max_tgt_len": 12, "batch_sentences": 16}


def pairs(count=80, seed=1):
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(3, 7))) for _ in range(count)]
    return [(word, " ".join(reversed(word))) for word in words]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("fit") / "run"
    return regard.fit(pairs(), output=path, quiet=True, steps=20, **SMALL)


@pytest.mark.slow
def test_a_text(model):
    out = model("abc")
    assert isinstance(out, regard.Output)
    assert str(out) == out.text == " ".join(out.tokens)
    assert out.src_tokens == ["a", "b", "c", "</s>"]
    assert out.log_prob == pytest.approx(sum(out.token_log_probs), abs=1e-4)
    assert out.log_prob <= 0


def test_one_prefix_is_for_all(model):
    ids = model.tgt_tokenizer.encode("c d")
    outs = model(["abcdefg", "ab"], prefix=[ids])
    assert [out.tokens[:2] for out in outs] == [["c", "d"]] * 2
    with pytest.raises(ArgumentError, match="prefix must be one list of tokens"):
        model(["ab", "cd"], prefix=[[5], [5]])


@pytest.mark.slow
def test_each_batch_draws_answers_of_its_own(model):
    def draws(seed, batch):
        found = model.predict(["abc"] * 20, num_samples=1, seed=seed, batch=batch, attention=False)
        return [out.text for out in found]

    together = len(set(draws(1, 20)))
    assert together > 7
    assert len(set(draws(1, 1))) > together / 2
    assert draws(1, 4) == draws(1, 4) != draws(2, 4)
    assert draws(1, 4)[:4] != draws(1, 4)[4:8]


def test_a_saved_model_is_a_run_like_any_other(model, tmp_path):
    path = model.save(tmp_path / "deep" / "kept")
    assert path == tmp_path / "deep" / "kept"
    again = regard.load(path)
    assert again("abcdef").log_prob == model("abcdef").log_prob
    assert RunFolder(path).finished
    assert sorted(f.name for f in path.iterdir()) == sorted(f.name for f in model.path.iterdir())
    (tmp_path / "empty").mkdir()
    assert again.save(str(tmp_path / "empty")) == tmp_path / "empty"
    assert regard.load(tmp_path / "empty")("ab").text == model("ab").text


@pytest.mark.plain
def test_a_model_is_not_saved_over_anything(model, tmp_path):
    kept = model.save(tmp_path / "kept")
    (tmp_path / "file").write_text("mine")
    for folder, words in (
        (kept, "folder must be new or empty, but it is .*kept, with files: choose another"),
        (tmp_path / "file", "folder must be new or empty, but it is .*file, a file"),
        (model.path / "inside", "folder must lie outside of the run"),
        (None, "folder must be a name, but it is None"),
    ):
        with pytest.raises(ArgumentError, match=words):
            model.save(folder)
    with pytest.raises(RunError, match="must be copied whole"):
        model.save(tmp_path / "file" / "below")
    with pytest.raises(RunError, match="one run can be saved, but this model has 2"):
        regard.load(kept, model.path).save(tmp_path / "two")
    assert not (model.path / "inside").exists()


def test_an_ensemble(model, tmp_path):
    other = regard.fit(pairs(), output=tmp_path / "run", quiet=True, steps=1, seed=2, **SMALL)
    both = regard.load(model.path, other.path)
    one, two, joint = (m("abc", beam=1, max_len=1) for m in (model, other, both))
    likelier = max(one.token_log_probs[0], two.token_log_probs[0])
    assert joint.token_log_probs[0] <= likelier + 1e-5
    (layer,) = joint.maps["cross"]
    assert layer.sum(dim=-1) == pytest.approx(torch.ones(layer.shape[:2]), abs=1e-5)


def test_runs_that_do_not_go_together(model, tmp_path):
    rows = [(src.upper(), tgt) for src, tgt in pairs()]
    other = regard.fit(rows, output=tmp_path / "run", quiet=True, steps=1, **SMALL)
    with pytest.raises(RunError, match="another src_tokenizer"):
        regard.load(model.path, other.path)


@pytest.mark.slow
def test_fit_learns_what_stands_in_dictionaries_and_not_their_names(tmp_path):
    options = {"quiet": True, "steps": 2, "precision": "32", **SMALL}
    rows = [{"src": src, "tgt": tgt} for src, tgt in pairs()]
    named = [{"fr": tgt, "en": src, "id": str(i)} for i, (src, tgt) in enumerate(pairs())]
    one = regard.fit(pairs(), output=tmp_path / "1", **options)("abcd")
    two = regard.fit(rows, output=tmp_path / "2", **options)("abcd")
    three = regard.fit(named, output=tmp_path / "3", columns=("en", "fr"), **options)("abcd")
    assert (one.log_prob, one.tokens) == (two.log_prob, two.tokens)
    assert (one.log_prob, one.tokens) == (three.log_prob, three.tokens)


@pytest.mark.plain
def test_fit_leaves_bad_pairs_of_a_list_out_and_counts_them(tmp_path, capsys):
    rows = [*pairs(), ("", "a"), {"src": "a"}, 7]
    made = regard.fit(rows, output=tmp_path / "run", skip_bad=True, steps=1, **SMALL)
    assert len(made("abc").src_tokens) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert "pairs: 3 bad lines were left out" in said


WRONG = {
    "preset": (lambda: regard.fit(pairs(), "foo", quiet=True), "preset must be one of"),
    "setting": (lambda: regard.fit(pairs(), hiden=5, quiet=True), "'hidden' is meant"),
    "no run": (regard.load, "name a run folder"),
    "a list of runs": (lambda: regard.load(["a", "b"]), r"one after another, as in load\(\*runs\)"),
    "None for pairs": (lambda: regard.fit(None), "pairs must be a file, or tuples .* it is None: "),
    "one dictionary": (lambda: regard.fit({"a": "b"}), r"pairs must be a file, .* is {'a': 'b'}: "),
}


@pytest.mark.plain
@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case):
    call, words = WRONG[case]
    with pytest.raises(ArgumentError, match=words):
        call()


OPTIONS = {
    "unknown": ({"baem": 3}, "'baem': perhaps 'beam' is meant"),
    "not a number": ({"length_penalty": "wide"}, "options must be numbers"),
    "too small": ({"beam": 0}, "beam must be at least 1"),
}


@pytest.mark.plain
@pytest.mark.parametrize("case", OPTIONS)
def test_wrong_options(model, case):
    options, words = OPTIONS[case]
    with pytest.raises(ArgumentError, match=words):
        model("abc", **options)


@pytest.mark.plain
def test_what_is_no_text(model):
    with pytest.raises(ArgumentError, match="text must be a string, but it is 5"):
        model(["abc", 5])
    for value in (3, None, {"src": "abc"}, 2.5):
        with pytest.raises(ArgumentError, match="text must be a string, or several, but it is "):
            model(value)
    with pytest.raises(ArgumentError, match="texts must be several, but it is one text, 'abc'"):
        next(model.predict("abc"))
    with pytest.raises(ArgumentError, match="texts must be several, but it is one text, 'abc'"):
        model.traces("abc")


@pytest.mark.plain
@pytest.mark.parametrize(
    "rows",
    [
        *([], [("a",)], [("a", "b", "c")], [("a", 5)], [("", "b")]),
        *([1, 2, 3], [None], [{"src": "a"}], [{"a": "b", "c": "d"}], [{"a", "b"}]),
    ],
)
def test_pairs_that_are_none(rows, tmp_path):
    with pytest.raises(DataError, match=r"^pairs"):
        regard.fit(rows, output=tmp_path / "run", quiet=True, steps=1, **SMALL)
    assert not (tmp_path / "run").exists()
