"""Word alignments from counts: a toy language, padding, and the definition by enumeration."""

import itertools

import numpy as np
import pytest

from regard.data import word_aligner
from regard.data.word_aligner import (
    NULL,
    WIDEST,
    align_sentences,
    align_texts,
    along_jumps,
    unit_links,
    word_spans,
)

LETTERS = "abcdefghijklmnopqrst"


def translated(word):
    """Return a word of the other language, which shares no letter with the first one's."""
    return word.translate(str.maketrans(LETTERS, LETTERS.upper()))


def toy(count):
    """Return sentences of words that mean nothing, of which two neighbours swap places."""
    draw = np.random.default_rng(3)
    pairs = []
    for _ in range(count):
        words = [LETTERS[k] for k in draw.choice(len(LETTERS), draw.integers(2, 7), replace=False)]
        at = int(draw.integers(len(words) - 1))
        order = [*words[:at], words[at + 1], words[at], *words[at + 2 :]]
        pairs.append((words, [translated(word) for word in order]))
    return pairs


def test_words_that_mean_the_same_are_linked():
    pairs = toy(300)
    links = align_sentences(*map(list, zip(*pairs, strict=True)))
    linked = [
        translated(source[i]) == target[j]
        for (source, target), found in zip(pairs, links, strict=True)
        for i, j in found
    ]
    words = sum(len(source) for source, _ in pairs)
    assert sum(linked) > 0.95 * words
    assert sum(linked) > 0.95 * len(linked)


def test_posteriors_are_those_of_all_alignments():
    """Sum over all sequences of source words, each of them linked or remembered."""
    draw = np.random.default_rng(5)
    src, tgt = 3, 4
    words = draw.random((1, tgt, src)).astype(np.float32)
    none = draw.random((1, tgt)).astype(np.float32)
    jump = draw.random(2 * WIDEST + 1).astype(np.float32)
    at = np.arange(src)
    by = jump[at - at[:, None] + WIDEST].astype(float)
    by /= by.sum(axis=1, keepdims=True)
    total, hits = 0.0, np.zeros((tgt, src))
    for path in itertools.product(range(src), repeat=tgt):
        for linked in itertools.product([True, False], repeat=tgt):
            p = 1.0 / src if linked[0] else NULL * none[0, 0] / src
            p *= (1 - NULL) * words[0, 0, path[0]] if linked[0] else 1.0
            for j in range(1, tgt):
                if linked[j]:
                    p *= (1 - NULL) * by[path[j - 1], path[j]] * words[0, j, path[j]]
                else:
                    p *= NULL * none[0, j] * (path[j] == path[j - 1])
            total += p
            hits[
                [j for j in range(tgt) if linked[j]], [path[j] for j in range(tgt) if linked[j]]
            ] += p
    moved = np.zeros_like(jump)
    found = along_jumps(words, none, np.ones((1, src), bool), jump, moved)
    np.testing.assert_allclose(found[0], hits / total, rtol=1e-4)
    padded = np.zeros((1, tgt + 2, src + 1), np.float32)
    padded[:, :tgt, :src] = words
    idle = np.full((1, tgt + 2), 1 / NULL, np.float32)
    idle[:, :tgt] = none
    again = np.zeros_like(jump)
    found = along_jumps(padded, idle, np.array([[True] * src + [False]]), jump, again)
    np.testing.assert_allclose(found[0, :tgt, :src], hits / total, rtol=1e-4)
    np.testing.assert_allclose(again, moved, rtol=1e-4)


def test_counts_are_products_of_both_directions():
    (block,), tables = word_aligner._prepared([["a", "b"]], [["x"]])
    forward, backward = np.zeros((2, 1, *block.cells[0].shape[1:]), np.float32)[:, :, 1:, 1:]
    forward[0, 0, :2], backward[0, 0, :2] = (0.5, 0.2), (0.4, 0.6)
    word_aligner._count(block, tables, forward, backward)
    # words have numbers in their order, and 0 is none: what one direction leaves is not linked
    words = zip(*(side.tolist() for side in tables[0].words), strict=True)
    found = dict(zip(words, tables[0].counts, strict=True))
    assert found[1, 1] == pytest.approx(0.5 * 0.4)
    assert found[2, 1] == pytest.approx(0.2 * 0.6)
    assert found[0, 1] == pytest.approx(1 - 0.5 - 0.2)
    assert found[1, 0] == pytest.approx(1 - 0.4)
    assert found[0, 0] == 0


def test_texts_are_cut_to_words_marks_and_characters():
    text = "L'âge, 我们 x"
    assert [text[a:b] for a, b in word_spans(text)] == ["L", "'", "âge", ",", "我", "们", "x"]


def test_links_of_texts_are_spans_and_empty_texts_have_none(monkeypatch):
    texts = [(" ".join(source), " ".join(target)) for source, target in toy(300)]
    told = []
    found = align_texts([("", "a"), *texts], told.append)
    assert found[0] == []
    assert sum(told) == pytest.approx(301)
    source, target = texts[0]
    assert {(source[slice(*a)], target[slice(*b)]) for a, b in found[1]} == {
        (word, translated(word)) for word in source.split()
    }
    # fitted by portions, as large data are
    monkeypatch.setattr(word_aligner, "PORTION", 600)
    assert len(align_texts(texts)) == len(texts)


def test_units_that_overlap_a_span_are_linked():
    # parts of words: "un|break|able" with "in|cassable"
    found = unit_links(
        [((0, 11), (0, 10)), ((12, 15), (11, 14))],
        [(0, 2), (2, 7), (7, 11), (11, 12), (12, 15)],
        [(0, 2), (2, 10), (10, 11), (11, 14)],
    )
    assert found == {(i, j) for i in (0, 1, 2) for j in (0, 1)} | {(4, 3)}
