import unicodedata

import jiwer
import pytest
import sacrebleu

from regard.data import Tokenizer
from regard.errors import ArgumentError
from regard.evaluation import (
    PLAIN_TEXT,
    by_length,
    confidence_interval,
    paired_bootstrap,
    score,
    text_metrics,
)

SYSTEM = [
    "the cat sat on the mat",
    "there is a cat here",
    "dogs bark",
    "",
    "it is raining cats and dogs today .",
]
GOLD = [
    "the cat sat on the red mat",
    "there is a cat on the mat",
    "the dogs bark loudly",
    "nothing",
    "today it is raining cats and dogs .",
]
MORE = [["a cat was on the mat", "the cat lay on the mat"], [], ["dogs bark"], [], []]
SEVERAL = [[gold, *more] for gold, more in zip(GOLD, MORE, strict=True)]
#: all but that of examples/rating.py, which compares numbers
NAMES = [name for name in text_metrics() if name != "kappa"]


def streams(references):
    return [[r[i] if i < len(r) else None for r in references] for i in range(3)]


@pytest.mark.parametrize(
    ("references", "tokenize"),
    [
        (["我们昨天去了 Berlin 动物园。"], "zh"),
        (["昨日は動物園に行きました。"], "char"),
        (["เมื่อวานเราไปสวนสัตว์"], "char"),
        (["the cat sat on the mat , 猫"], "13a"),
        (["1 2 3 4 5"], "13a"),
    ],
)
def test_bleu_counts_words_of_the_script_and_states_how(references, tokenize):
    predictions = [references[0][:-2] + "x"]
    found = score("bleu", predictions, references)
    expected = sacrebleu.BLEU(tokenize=tokenize).corpus_score(predictions, [references]).score
    assert found.value == pytest.approx(expected, abs=1e-9)
    assert f"|tok:{tokenize}|" in found.signature
    assert confidence_interval("bleu", predictions, references).value == found.value
    named = score("bleu-char", predictions, references)
    assert "|tok:char|" in named.signature
    assert (named.value == found.value) == (tokenize == "char")


@pytest.mark.parametrize(
    ("name", "metric", "unit"),
    [
        *((f"bleu-{words}", sacrebleu.BLEU(tokenize=words), 1) for words in ("13a", "zh", "char")),
        ("chrf", sacrebleu.CHRF(), 1),
        ("ter", sacrebleu.TER(), 100),  # a share
    ],
)
def test_values_are_sacrebleus(name, metric, unit):
    one, several = score(name, SYSTEM, GOLD), score(name, SYSTEM, SEVERAL)
    expected = metric.corpus_score(SYSTEM, [GOLD]).score / unit
    assert one.value == pytest.approx(expected, abs=1e-9)
    assert one.signature == f"{name}|{metric.get_signature().format()}|norm:nfc+spaces"
    expected = metric.corpus_score(SYSTEM, streams(SEVERAL)).score / unit
    assert several.value == pytest.approx(expected, abs=1e-9)
    assert several.higher_is_better == (several.value > one.value)
    assert "nrefs:var|" in several.signature


def test_a_word_that_moves_is_one_edit_for_ter():
    # "today" moves to the front, which is one edit of eight words, and two for wer
    assert score("ter", SYSTEM[4:], GOLD[4:]).value == pytest.approx(1 / 8)
    assert score("wer", SYSTEM[4:], GOLD[4:]).value == pytest.approx(2 / 8)


@pytest.mark.parametrize(
    ("name", "rate"), [("wer", jiwer.wer), ("per", jiwer.wer), ("cer", jiwer.cer)]
)
def test_edits_are_jiwers(name, rate):
    assert score(name, SYSTEM, GOLD).value == pytest.approx(rate(GOLD, SYSTEM))


def test_errors_count_against_the_nearest_reference():
    # of two that are equally near the first counts; the second line has its nearest further back
    references = [["R EY D", "R EH D IY", "R"], ["K"]]
    system = ["R EH D", "T"]
    assert score("per", system, [*references[:1], ["T"]]).value == pytest.approx(1 / (3 + 1))
    assert score("per", system, [["R EY D Z", "R EH D IY"], ["T"]]).value == pytest.approx(1 / 5)
    assert score("exact", ["R EH D IY", "T"], references).value == pytest.approx(1 / 2)
    assert score("exact", ["R", "K"], references).value == 1


@pytest.mark.plain
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: score("blue", SYSTEM, GOLD), ["metric must", "bleu, chrf", "'blue'", "mean bleu"]),
        (lambda: score("Per", SYSTEM, GOLD), ["metric must", "'Per'", "mean per"]),
        (lambda: score("xyzzy", SYSTEM, GOLD), ["metric must", "'xyzzy'", "choose one"]),
        (lambda: by_length(["pre"], [1] * 5, SYSTEM, GOLD), ["metric must", "'pre'", "mean per"]),
        (lambda: score("bleu", SYSTEM, GOLD[:3]), ["as many", "5 predictions and 3 references"]),
        (lambda: score("bleu", [], []), ["predictions must", "one or more", "empty list"]),
        (
            lambda: score("per", ["a", "b"], [["a"], []]),
            ["references must", "one or more", "number 2 of 2"],
        ),
    ],
)
def test_wrong_calls(call, words):
    with pytest.raises(ArgumentError) as error:
        call()
    assert all(word in str(error.value) for word in words), str(error.value)
    assert str(error.value).count(".") == 1


def nfd(text):
    return unicodedata.normalize("NFD", text)


REFERENCES = {
    "char": [nfd("café"), nfd("naïve"), nfd("한국어")],
    "space": [nfd("b ã ʒ u ʁ"), "K AE T ", "D  AO G"],
    "word": ["the cat  sat .", "10\u00a0km loin", nfd("Ärger !")],
}


@pytest.mark.parametrize("kind", REFERENCES)
@pytest.mark.parametrize("name", ["exact", "cer", "wer", "per", "bleu", "chrf", "ter"])
def test_perfect_answers_are_right_however_references_are_spelled(kind, name):
    references = REFERENCES[kind]
    tokenizer = Tokenizer.train(kind, references)
    answers = [tokenizer.decode(tokenizer.encode(text)) for text in references]
    assert answers != references
    several = [["other", text] for text in references]
    right = {"bleu": 100, "chrf": 100, "exact": 1}.get(name, 0)
    for form in (PLAIN_TEXT, tokenizer):
        for gold in (references, several):
            found = score(name, answers, gold, normalizer=form)
            assert found.value == pytest.approx(right)
            assert found.signature.endswith(f"|norm:{form.normal_form}")
        same = paired_bootstrap(name, answers, references, references, normalizer=form)
        assert same.first == same.second == pytest.approx(right)
        (row,) = by_length([name], [1] * 3, answers, references, buckets=1, normalizer=form)
        assert row.values[name] == pytest.approx(right)


def test_rows_by_length_are_the_scores_of_their_sources():
    rows = by_length(["bleu", "per", "exact"], [6, 5, 2, 2, 9], SYSTEM, SEVERAL, buckets=2)
    short, long = rows
    assert [(r.shortest, r.longest, r.count) for r in rows] == [(2, 5, 3), (6, 9, 2)]
    for row, places in ((short, [1, 2, 3]), (long, [0, 4])):
        system, gold = [SYSTEM[i] for i in places], [SEVERAL[i] for i in places]
        for name, value in row.values.items():
            assert value == pytest.approx(score(name, system, gold).value)
