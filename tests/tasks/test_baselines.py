"""Baselines: compared with the same thing written in another way, and shown beside a run."""

import math
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

import regard
from regard.errors import ArgumentError
from regard.evaluation.forecasts import LinearBaseline
from regard.tasks.baselines import fit_baseline
from regard.tasks.outputs.forecast import simple_forecasts, window_moments
from regard.training import RunFolder, make_config, resume_run, start_run
from regard.training.run_data import prepare_data

GOOD, BAD = ["good", "great", "superb"], ["bad", "dull", "awful"]
TINY = {"embed": 8, "hidden": 8, "layers": 1, "steps": 2, "device": "cpu"}


def reviews(count=120, seed=1):
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        label = draw.choice(["yes", "no"])
        words = draw.choices(["the", "film", "was", "a", "plot"], k=draw.randint(2, 5))
        words.insert(draw.randint(0, 2), draw.choice(GOOD if label == "yes" else BAD))
        rows.append((f"{' '.join(words)} {number}", label))
    return rows


def fitted(tmp_path, pairs, **settings):
    folder = RunFolder(tmp_path / "data")
    folder.create()
    data = prepare_data(make_config(settings), folder, pairs, lambda sentence: None)
    before = torch.get_rng_state()
    found = fit_baseline(data.task, data.train, data.dev, None)
    assert torch.equal(before, torch.get_rng_state())
    return data, found


def test_labels_of_which_most_would_have_no_example_have_no_baseline(tmp_path):
    pairs = [(f"a b{i}", f"c{i}") for i in range(2500)]
    assert fitted(tmp_path, pairs, tgt_tokenizer="label")[1] is None


def ngrams_of(tokens):
    """Tokens, pairs of neighbours, and n-grams of letters, of which short tokens are one."""
    letters = [
        (word[i : i + n] if len(word) > 2 else word,)
        for word in tokens
        for n in ((3, 4, 5) if len(word) > 2 else (0,))
        for i in range(len(word) - n + 1 if n else 1)
    ]
    return Counter([("token", t) for t in tokens] + list(pairwise(tokens)) + letters)


def test_numbers_are_those_of_ridge_regression_and_means(tmp_path):
    draw = random.Random(1)
    worth = {"walk": 1.0, "walked": 1.5, "no": -2.0, "be": 0.0, "b": 3.0}
    rows = [tuple(draw.choices([*worth], k=draw.randint(2, 6))) for _ in range(90)]
    pairs = [(" ".join(row), f"{sum(map(worth.get, row)):.1f}") for row in dict.fromkeys(rows)]
    data, found = fitted(tmp_path, pairs, numbers=True, src_tokenizer="space")
    texts = [
        data.task.input.encoder.tokens(data.train.corpus.src(i)[:-1])
        for i in range(len(data.train))
    ]
    grams = [ngrams_of(text) for text in texts]
    places, sources = sum(grams, Counter()), Counter(gram for own in grams for gram in own)
    # letters count by places
    often = {n: min(len(texts), (places if len(n) == 1 else sources)[n]) for n in places}
    names = sorted(n for n in often if often[n] > 1)
    idf = {n: math.log((1 + len(texts)) / (1 + often[n])) + 1 for n in names}

    def vector(counts):
        norm = math.sqrt(sum(counts[n] * idf[n] ** 2 for n in names))
        return [counts[n] * idf[n] / norm for n in names]

    x = np.array([vector(counts) for counts in grams])
    y = np.array([data.train.batch(np.array([i])).tgt_out.item() for i in range(len(texts))])
    inner, away = x - x.mean(axis=0), y - y.mean()
    ridge = inner @ np.linalg.solve(inner.T @ inner + np.eye(len(names)), inner.T @ away)
    seen = np.array([[counts[n] for n in names] for counts in grams])
    means = inner @ (seen.T @ away / (seen.sum(axis=0) + 3))
    expected = y.mean() + (ridge + means * ridge.std() / means.std()) / 2
    numbers = found.model(*data.train.batch(np.arange(len(texts)))[:2]).numbers.flatten()
    assert np.allclose(numbers, expected, atol=0.02)


def test_labels_follow_a_word(tmp_path):
    data, found = fitted(tmp_path, reviews(400), tgt_tokenizer="label")
    right = [
        out in several for out, several in zip(found.outputs, data.dev.references, strict=True)
    ]
    assert np.mean(right) > 0.9


def kneser_ney(texts, order, size):
    """The formula for one token after another, with dictionaries."""
    rows = [("<s>",) * (order - 1) + tuple(text) + ("</s>",) for text in texts]
    every = [row[i - order + 1 : i + 1] for row in rows for i in range(order - 1, len(row))]
    counts = {order: Counter(every)}
    for length in range(order - 1, 0, -1):
        counts[length] = Counter(gram[1:] for gram in counts[length + 1])

    def prob(gram):
        if not gram:
            return 1 / size
        grams, context = counts[len(gram)], gram[:-1]
        total = sum(n for other, n in grams.items() if other[:-1] == context)
        if not total:
            return prob(gram[1:])
        kinds = sum(other[:-1] == context for other in grams)
        return max(grams[gram] - 0.75, 0) / total + 0.75 * kinds / total * prob(gram[1:])

    return prob


def test_texts_have_the_perplexity_of_kneser_ney(tmp_path):
    draw = random.Random(1)
    lines = [
        " ".join(draw.choices("abcde", [5, 3, 2, 1, 1], k=draw.randint(2, 6))) for _ in range(120)
    ]
    data, found = fitted(
        tmp_path,
        [(line,) for line in dict.fromkeys(lines)],
        preset="lm-rnn",
        tgt_tokenizer="space",
    )
    train = [data.train.tgt(i).tolist() for i in range(len(data.train))]
    dev = [data.dev.corpus.tgt(i).tolist() for i in range(len(data.dev.corpus))]
    prob = kneser_ney(train, 3, data.task.output.size)
    rows = [("<s>", "<s>", *ids, "</s>") for ids in dev]
    terms = [-math.log(prob(row[i - 2 : i + 1])) for row in rows for i in range(2, len(row))]
    assert found.loss == pytest.approx(np.mean(terms), rel=1e-6)


def test_a_tag_may_follow_from_a_neighbour(tmp_path):
    draw = random.Random(1)
    rows = []
    for _ in range(300):
        words = draw.choices(["to", "the", "run", "walk", "red"], k=draw.randint(3, 6))
        before = ["", *words]
        tags = [
            "V" if w in ("run", "walk") and b == "to" else "N" if w in ("run", "walk") else "X"
            for w, b in zip(words, before, strict=False)
        ]
        rows.append((" ".join(words), " ".join(tags)))
    data, found = fitted(
        tmp_path,
        list(dict.fromkeys(rows)),
        preset="rnn",
        tgt_tokenizer="space",
    )
    assert found.outputs == [several[0] for several in data.dev.references]


def test_texts_are_copied_or_answered_as_the_nearest(tmp_path):
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefgh", k=6)) for _ in range(200)]
    data, found = fitted(tmp_path / "a", [(word, word) for word in words])
    assert found.name == "copying the source"
    assert list(found.outputs) == data.dev.sources
    places = ["north pole", "south pole", "far east", "wild west"]
    pairs = [
        (f"go to the {draw.choice('xyz')} {place} {i}", str(places.index(place)) * 3)
        for i, place in enumerate(draw.choices(places, k=200))
    ]
    data, found = fitted(tmp_path / "b", pairs, tgt_tokenizer="char")
    assert found.name == "the answer of the nearest source"
    right = [
        out in several for out, several in zip(found.outputs, data.dev.references, strict=True)
    ]
    assert np.mean(right) > 0.9


def test_the_window_of_the_question_has_the_answer(tmp_path):
    draw = random.Random(1)
    names, whose = ["Mary", "John", "Anna"], ["the", "a", "her"]
    rows = []
    for _ in range(80):
        moves = [(name, f"in {draw.choice(whose)} garden") for name in draw.sample(names, 3)]
        text = " ".join(f"{name} is {place} now." for name, place in moves)
        name, place = draw.choice(moves)
        rows.append({"story": text, "question": f"Where is {name} now?", "answer": place})
    data, found = fitted(tmp_path, rows, preset="span", src_tokenizer="word")
    both = zip(found.outputs, data.dev.references, strict=True)
    assert sum(several == [out] for out, several in both) > 0.8 * len(found.outputs)


def coloured(count=60):
    """Pictures of 6 x 10 pixels, and the share of red in them; every second one is red."""
    draw = np.random.default_rng(1)
    pictures = [draw.integers(0, 60, (6, 10, 3)).astype(np.uint8) for _ in range(count)]
    for i, picture in enumerate(pictures):
        picture[..., 0] += np.uint8(100 * (i % 2))
    return pictures


def test_labels_of_pictures_follow_from_their_pixels(tmp_path):
    pairs = [(picture, ("blue", "red")[i % 2]) for i, picture in enumerate(coloured())]
    data, found = fitted(tmp_path, pairs, tgt_tokenizer="label")
    assert found.name in ("logistic regression", "the nearest neighbour")
    assert list(found.outputs) == [several[0] for several in data.dev.references]


def test_the_best_simple_forecast_stands_beside_a_forecaster(tmp_path):
    rows = [{"a": math.sin(i * math.pi / 3) + 0.1 * math.sin(i**2)} for i in range(160)]
    data, found = fitted(tmp_path, rows, horizon=4, look_back=12)
    output = data.task.output
    scores = output.dev_scores(found.model, data.dev, torch.device("cpu")).metrics
    linear = LinearBaseline.fit(window_moments(data.train))
    simple = simple_forecasts(output, linear)
    assert list(simple) == ["repeat last value", "seasonal naive (6)", "linear"]
    errors = {}
    for name, forecast in simple.items():
        history, future = map(torch.from_numpy, data.dev.corpus.numbers(np.arange(13)))
        errors[name] = float((forecast(history) - future).square().mean())
    assert found.name == min(errors, key=errors.get)
    assert scores["mse"] == pytest.approx(errors[found.name], rel=1e-4)


def test_it_stands_beside_the_model(tmp_path, capsys):
    data = tmp_path / "reviews.tsv"
    data.write_text("".join(f"{text}\t{label}\n" for text, label in reviews(300)))
    settings = {"data": str(data), "preset": "classifier-rnn", "eval_every": 1, **TINY}
    start_run(make_config(settings), tmp_path / "run")
    said = capsys.readouterr().err
    assert (
        "the simple way, TF-IDF, logistic regression and naive Bayes, reaches dev accuracy" in said
    )
    assert "simple way" in said.split("dev accuracy ±")[0]
    assert "of the simple way, TF-IDF, logistic regression and naive Bayes" in said
    folder = RunFolder(tmp_path / "run")
    (score,) = {row["baseline_accuracy"] for row in folder.read_metrics()}
    assert score > 0.9
    assert f"| the simple way, TF-IDF, logistic regression and naive Bayes | {score:.4f} |" in (
        folder.card_file.read_text()
    )
    resume_run(tmp_path / "run", {"steps": 3})
    said = capsys.readouterr().err
    assert "reaches dev accuracy" not in said
    assert "TF-IDF, logistic regression and naive Bayes" in said
    assert folder.read_metrics()[-1]["baseline_accuracy"] == score
    start_run(make_config({**settings, "baseline": False}), tmp_path / "without")
    assert "simple way" not in capsys.readouterr().err


def test_only_tokens_have_ngrams(tmp_path):
    rows = [([[0.1 * i, 0.2]] * 3, "ab"[i % 2]) for i in range(60)]
    with pytest.raises(ArgumentError, match="ngrams must be 0 for"):
        regard.fit(rows, "classifier-rnn", output=tmp_path / "run", ngrams=2, steps=1)
