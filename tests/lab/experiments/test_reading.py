import json
import math
from typing import Any

import pytest
import torch
from torch import Generator

from regard.lab.experiments import reading
from regard.lab.experiments.reading import (
    LECTURE,
    LSTM,
    RNN,
    SELF_LSTM,
    SELF_RNN,
    collate,
    draw_batch,
    losses,
    times_even,
)
from regard.lab.synthetic_tasks import IGNORED
from regard.symbols import EOS

CPU = torch.device("cpu")


def map_with(subject: float) -> list[list[float]]:
    """Weights in which word 4 gives word 2 this much, and the others share the rest."""
    size = len(LECTURE)
    rows = [[1 / (r + 1) if c <= r else 0.0 for c in range(size)] for r in range(size)]
    rest = (1 - subject) / 3
    rows[3] = [rest, subject, rest, rest] + [0.0] * (size - 4)
    return rows


def synthetic(
    subjects: tuple[float, float] = (0.7, 0.7),
    looking: float = 4.0,
    plain: float = 5.0,
    unknown: tuple[str, ...] = (),
    framed: float = 0.25,
) -> dict[str, Any]:
    def run(nats: float) -> dict[str, Any]:
        return {"parameters": 7, "width": 3, "nats": nats, "by_place": [nats] * 5}

    def look(nats: float, subject: float) -> dict[str, Any]:
        return run(nats) | {
            "lecture": map_with(subject),
            "own": map_with(subject),
            "own_words": list("abcdefghi"),
            "frames": 12,
            "verb_row": [0.0, framed, 0.0, 0.0],
            "subject_first": 0.5,
        }

    runs = {
        RNN: [run(plain), run(plain + 0.01)],
        SELF_RNN: [look(looking, s) for s in subjects],
        LSTM: [run(4.5), run(4.51)],
        SELF_LSTM: [look(looking, s) for s in subjects],
    }
    return {
        "set": "toys",
        "unknown": list(unknown),
        "words": 9,
        "sentences": 8,
        "steps": 6,
        "batch": 5,
        "seeds": [0, 1],
        "runs": runs,
    }


@pytest.mark.parametrize(
    ("subjects", "verdict"),
    [
        ((0.7, 0.7), "holds"),
        ((0.7, 0.2), "holds with limits"),
        ((0.25, 0.25), "does not hold"),
        ((0.3, 0.3), "does not hold"),
    ],
)
def test_chasing_looks_at_the_fbi_if_it_does_with_every_seed(
    subjects: tuple[float, float], verdict: str
) -> None:
    assert reading.judge(synthetic(subjects))[0].verdict == verdict


def test_even_weights_count_the_words_that_may_be_looked_at() -> None:
    data = synthetic((0.25, 0.5))
    assert times_even(data, SELF_RNN, frames=False) == pytest.approx([1, 2])
    assert times_even(data, SELF_LSTM, frames=False) == pytest.approx([0.75, 1.5])


def test_sentences_with_known_words_decide_where_the_text_lacks_the_lectures() -> None:
    claim = reading.judge(synthetic((0.9, 0.9), unknown=("fbi",), framed=0.1))[0]
    assert claim.verdict == "does not hold"
    assert "does not have fbi" in claim.evidence
    claim = reading.judge(synthetic((0.1, 0.1), unknown=("fbi",), framed=0.9))[0]
    assert claim.verdict == "holds"


@pytest.mark.parametrize(
    ("looking", "verdict"),
    [(4.0, "holds"), (4.7, "holds with limits"), (5.5, "does not hold")],
)
def test_looking_back_is_a_stronger_memory_if_it_guesses_better(
    looking: float, verdict: str
) -> None:
    claim = reading.judge(synthetic(looking=looking))[1]
    assert claim.verdict == verdict
    assert f"{math.exp(looking):.1f}" in claim.evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unknown", "names"),
    [((), ["lecture", "places"]), (("fbi",), ["lecture", "own", "places"])],
)
def test_a_sentence_of_the_text_is_drawn_too_where_it_lacks_words_of_the_lecture(
    unknown: tuple[str, ...], names: list[str]
) -> None:
    data = json.loads(json.dumps(synthetic(unknown=unknown)))
    plots = reading.draw(data)
    assert [plot.name for plot in plots] == names
    written = {text.get_text() for text in plots[0].figure.axes[0].texts}
    assert ("fbi? 70" if unknown else "FBI 70") in written


def test_each_word_is_asked_for_the_next_and_the_last_for_the_end() -> None:
    (tokens,), targets = collate([[5, 6, 7], [8, 9]])
    assert tokens.tolist() == [[5, 6, 7], [8, 9, 0]]
    assert targets.tolist() == [[6, 7, EOS], [9, EOS, IGNORED]]


def test_a_batch_is_of_neighbours_and_of_all_sentences_where_they_are_few() -> None:
    sentences = [[4] * n for n in range(1, 8)]
    batch = draw_batch(sentences, 3, Generator().manual_seed(0))
    lengths = (batch.inputs[0] != 0).sum(dim=1).tolist()
    assert lengths == list(range(lengths[0], lengths[0] + 3))
    assert len(draw_batch(sentences, 100, Generator()).targets) == 7


def test_a_model_that_knows_nothing_needs_the_nats_of_an_even_guess() -> None:
    model = reading.build(RNN, 11, 4, 0.0, 5)
    with torch.no_grad():
        for parameter in model.output.parameters():
            parameter.zero_()
    found = losses(model, [[4] * n for n in range(3, 40)], 7, CPU)
    assert found["nats"] == pytest.approx(math.log(11), rel=1e-5)
    assert found["by_place"] == pytest.approx([math.log(11)] * 5, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [LSTM, SELF_LSTM, pytest.param(SELF_RNN, marks=pytest.mark.long)])
def test_one_model_is_trained_and_looked_into(name: str) -> None:
    found = reading.learn(
        name=name, seed=0, data=None, words=150, embed=8, hidden=12, dropout=0.0, batch=9,
        steps=2, rate=1e-3, tests=60, device=CPU,
    )  # fmt: skip
    json.dumps(found, allow_nan=False)
    assert ("lecture" in found) == (name != LSTM)
    if name != LSTM:
        assert sum(found["lecture"][5]) == pytest.approx(1, abs=1e-3)
        assert sum(found["lecture"][3][: reading.CHOICES[name]]) == pytest.approx(1, abs=1e-3)
        assert found["frames"] > 0
