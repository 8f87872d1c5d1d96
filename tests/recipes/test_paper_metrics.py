import unicodedata

import pytest
import sacrebleu

from regard.data import Tokenizer
from regard.recipes.paper_metrics import (
    Answers,
    bleu,
    bleu_lowercase,
    bleu_of_tokens,
    exact,
    mean_over_groups,
    phoneme_error_rate,
    word_error_rate,
)
from regard.recipes.task_data import RecipeExample

#: the second word has two pronunciations
WORDS = [
    RecipeExample("one", ("W AH N",), group="a"),
    RecipeExample("either", ("IY DH ER", "AY DH ER"), group="a"),
    RecipeExample("two", ("T UW",), group="b"),
    RecipeExample("four", ("F AO R",), group="b"),
    RecipeExample("five", ("F AY V",), group="b"),
]
ANSWERS = ["W AH N", "AY DH ER", "T AO", "F AO R", "F"]


def test_a_word_is_right_if_it_is_any_of_its_pronunciations():
    found = word_error_rate(Answers(WORDS, ANSWERS))
    assert found.value == pytest.approx(100 * 2 / 5)
    assert found.signature.startswith("wer|1-exact|nrefs:var|ref:any")
    assert not found.higher_is_better
    assert exact(Answers(WORDS, ANSWERS)).value == pytest.approx(60)


def test_groups_count_alike_whatever_their_sizes():
    found = mean_over_groups(word_error_rate)(Answers(WORDS, ANSWERS))
    assert found.groups == {"a": pytest.approx(0), "b": pytest.approx(100 * 2 / 3)}
    assert found.value == pytest.approx(100 / 3)
    assert found.signature.endswith("|mean-of:2")
    assert (found.name, found.higher_is_better) == ("wer", False)


def test_bleu_is_sacrebleus_with_case_and_without():
    texts = ["Ein Hund läuft über die Wiese.", "Zwei Männer sitzen auf einer Bank im Park."]
    answers = ["ein Hund läuft über die Wiese .", "Zwei Frauen sitzen auf einer Bank im park."]
    rows = [RecipeExample("x", (text,)) for text in texts]
    cased, lower = bleu(Answers(rows, answers)), bleu_lowercase(Answers(rows, answers))
    assert cased.value == pytest.approx(sacrebleu.corpus_bleu(answers, [texts]).score)
    expected = sacrebleu.corpus_bleu(answers, [texts], lowercase=True).score
    assert lower.value == pytest.approx(expected)
    assert lower.value > cased.value
    assert "case:lc" in lower.signature
    assert "case:mixed" in cased.signature


def test_bleu_of_tokens_cuts_what_french_joins():
    texts = ["L'homme d'à côté porte un T-shirt.", "Une femme court."]
    answers = ["l'enfant d'à côté porte un t-shirt.", "Une femme court."]
    rows = [RecipeExample("x", (text,), group="fr") for text in texts]
    # by hand: l' homme d' à côté porte un t-shirt . | une femme court .
    cut = ["l' homme d' à côté porte un t-shirt .", "une femme court ."]
    said = ["l' enfant d' à côté porte un t-shirt .", "une femme court ."]
    expected = sacrebleu.corpus_bleu(said, [cut], tokenize="none", force=True).score
    found = bleu_of_tokens(Answers(rows, answers))
    assert found.value == pytest.approx(expected)
    assert found.value != pytest.approx(bleu_lowercase(Answers(rows, answers)).value)
    assert "case:lc" in found.signature
    assert "tok:moses-" in found.signature


def test_references_are_brought_to_the_form_of_the_answers():
    spelled = [unicodedata.normalize("NFD", "é t é "), "b  ɔ"]
    rows = [RecipeExample("x", (text,), group="fr") for text in spelled]
    answers = ["é t é", "b ɔ"]
    assert (
        word_error_rate(Answers(rows, answers)).value
        == phoneme_error_rate(Answers(rows, answers)).value
        == 0
    )
    assert mean_over_groups(exact)(Answers(rows, answers)).value == 100
    long = [RecipeExample("x", (unicodedata.normalize("NFD", "été à la mer là"),), group="fr")]
    for count in (bleu, bleu_lowercase, bleu_of_tokens):
        found = count(Answers(long, ["été à la mer là"], Tokenizer.train("char", "abc")))
        assert found.value == pytest.approx(100)
        assert found.signature.endswith("|norm:nfc")
