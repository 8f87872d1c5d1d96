import json
from functools import partial
from itertools import product

import pytest
import torch

from regard.lab import small_models
from regard.lab.experiment import Data
from regard.lab.experiments import word_by_word
from regard.lab.synthetic_tasks import FIRST_WORD, Rewriting
from regard.symbols import EOS

CPU = torch.device("cpu")
ORDERS = word_by_word.MONOTONE + word_by_word.REORDERING


def made_up(**changes: dict[str, float]) -> Data:
    """The aligned RNN fails to reorder and does the rest, the others do all; or as said."""
    runs = []
    for order, preset, seed in product(ORDERS, word_by_word.MODELS, (0, 1)):
        fails = preset == "rnn" and order in word_by_word.REORDERING
        share = changes.get(preset, {}).get(order, 0.1 if fails else 1.0)
        run = {"preset": preset, "order": order, "seed": seed}
        runs.append(run | {"sentences": share, "words": (1 + share) / 2})
    sizes = {name: {"width": 3, "parameters": 1234} for name in word_by_word.MODELS}
    setting = {"steps": 3, "batch": 5, "rate": 0.01}
    return json.loads(json.dumps({"setting": setting, "sizes": sizes, "runs": runs}))


def verdicts(data: Data) -> list[str]:
    return [claim.verdict for claim in word_by_word.judge(data)]


def test_the_documents_picture_holds_where_only_reordering_fails():
    claims = word_by_word.judge(made_up())
    assert [claim.verdict for claim in claims] == ["holds", "holds"]
    assert "10% of sentences are right word by word (and 55% of words)" in claims[0].evidence


def test_an_aligned_rnn_that_reorders_refutes_it():
    all_right = dict.fromkeys(word_by_word.REORDERING, 1.0)
    assert verdicts(made_up(rnn=all_right))[0] == "does not hold"
    assert verdicts(made_up(rnn={word_by_word.REORDERING[0]: 1.0}))[0] == "holds with limits"


def test_reordering_that_nobody_does_is_a_limit():
    low = dict.fromkeys(word_by_word.REORDERING, 0.3)
    assert verdicts(made_up(seq2seq=low, bahdanau=low))[0] == "holds with limits"
    assert verdicts(made_up(seq2seq=low))[0] == "holds"


def test_an_aligned_rnn_that_is_behind_in_place_refutes_its_use_there():
    both = dict.fromkeys(word_by_word.MONOTONE, 0.7)
    assert verdicts(made_up(rnn=both))[1] == "does not hold"
    assert verdicts(made_up(rnn={word_by_word.MONOTONE[0]: 0.7}))[1] == "holds with limits"


def test_presets_have_equal_counts_of_parameters():
    target = small_models.count_parameters(word_by_word.build, "bahdanau", 16)
    for preset in word_by_word.MODELS:
        found = small_models.match_width(partial(word_by_word.build, preset), target)
        real = word_by_word.build(preset, found.width)
        assert sum(p.numel() for p in real.parameters()) == found.parameters
        assert abs(found.parameters - target) <= 0.05 * target


@pytest.mark.parametrize("preset", word_by_word.MODELS)
def test_a_run_gives_shares_of_words_and_sentences(preset: str, monkeypatch):
    monkeypatch.setattr(word_by_word, "EXAMPLES", 8)
    shares = word_by_word.learn(
        preset=preset, order="reversed", width=3, seed=1, rate=0.01, steps=2, batch=3, device=CPU
    )
    assert 0 <= shares["sentences"] <= shares["words"] <= 1


class Rule:
    """Stands in for decoding: writes a translation, with the last word left out on demand."""

    def __init__(self, task: Rewriting, *, short: bool) -> None:
        self.task, self.short = task, short

    def __call__(self, model, src, lengths, options):
        from regard.decoding import Hypothesis
        from regard.lab.synthetic_tasks import ORDERS as KNOWN

        gold = FIRST_WORD + KNOWN[self.task.name](src - FIRST_WORD, self.task.words)
        end = -1 if self.short else None
        return [[Hypothesis(row[:end], 0.0, 0.0, [])] for row in gold.tolist()]


@pytest.mark.parametrize(("short", "sentences"), [(False, 1.0), (True, 0.0)])
def test_right_words_and_sentences_are_counted(monkeypatch, short: bool, sentences: float):
    task = Rewriting("last word second", 8)
    monkeypatch.setattr(word_by_word, "greedy", Rule(task, short=short))
    shares = word_by_word.score(word_by_word.build("rnn", 3), task, 1, CPU)
    assert shares["sentences"] == sentences
    lengths = word_by_word.LENGTHS
    lost = len(lengths) / sum(lengths) if short else 0.0
    assert shares["words"] == pytest.approx(1 - lost)


@pytest.mark.slow
def test_an_aligned_rnn_writes_as_many_words_as_it_reads():
    model = word_by_word.build("rnn", 3)
    src = torch.randint(FIRST_WORD + 8, (2, 5))
    logits = model(src, torch.tensor([5, 5]), torch.ones(2, 6, dtype=torch.int64)).logits
    assert (logits[:, 5].argmax(-1) == EOS).all()
