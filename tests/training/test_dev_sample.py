"""The dev sample that is decoded, its error, and the models that are kept on its verdict."""

import math
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file

from regard.data.corpus import sampling_order
from regard.evaluation.metrics import PLAIN_TEXT
from regard.training.evaluator import Evaluation, score_with_error
from regard.training.reporting import write_card
from regard.training.schedule import Progress


def test_the_first_of_a_sorted_file_hold_each_target_in_its_share():
    targets = ["a"] * 600 + ["b"] * 300 + ["c"] * 100
    order = sampling_order([f"source {i}" for i in range(1000)], targets)
    assert sorted(order) == list(range(1000))
    for first in range(1, 1000):
        counts = Counter(targets[place] for place in order[:first])
        for target, share in (("a", 0.6), ("b", 0.3), ("c", 0.1)):
            assert abs(counts[target] - share * first) <= 1
    assert order[:100] != sorted(order[:100]), "within a target, it is no order of the file"


def test_the_error_of_a_share_is_that_of_a_mean():
    outputs, references = ["a"] * 8, [["a"]] * 6 + [["b"]] * 2
    mean, error = score_with_error("accuracy", outputs, references, PLAIN_TEXT)
    assert mean == 0.75
    assert error == pytest.approx(math.sqrt(0.75 * 0.25 / 7))
    _, none_wrong = score_with_error("accuracy", outputs[:6], references[:6], PLAIN_TEXT)
    assert none_wrong == pytest.approx(1 / 6), "no less than one of them counts"


VERDICTS = [
    # kept: (score, loss), new: (score, loss), margin, whether the new one is kept
    ((0.80, 0.5), (0.81, 0.6), 0.02, False),  # chance explains it, and the loss contradicts
    ((0.80, 0.5), (0.81, 0.4), 0.02, True),  # chance explains it, and the loss agrees
    ((0.80, 0.5), (0.79, 0.4), 0.02, True),  # the loss contradicts what is kept
    ((0.80, 0.5), (0.85, 0.6), 0.02, True),  # more than chance
    ((0.80, 0.5), (0.75, 0.4), 0.02, False),
    ((0.80, 0.5), (0.81, 0.6), 0.0, True),  # the whole dev set: less certain, but right more often
    ((0.00, 0.5), (0.00, 0.4), 0.0, True),  # equal scores
    ((0.00, 0.5), (0.00, 0.5), 0.0, False),
]


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize(("kept", "new", "margin", "verdict"), VERDICTS)
def test_the_rule(kept, new, margin, verdict, higher):
    progress = Progress()
    for progress.step, (score, loss) in enumerate((kept, new), 1):
        score = score if higher else 1 - score
        found = progress.rank(score, higher_is_better=higher, kept=2, loss=loss, margin=margin)
    assert found == verdict
    assert [ranked.step for ranked in progress.best] == ([2, 1] if verdict else [1, 2])


def test_scores_of_the_whole_dev_set_have_no_margin(make_task):
    task = make_task(eval_pairs=2)
    count, total = task.evaluator.scored
    assert (count, total) == (2, len(task.evaluator.dev.sources))
    small = task.evaluator.evaluate()
    assert small.margin == pytest.approx(math.sqrt(2 * (1 - 2 / total)) * small.errors["per"])
    whole = task.evaluator.enlarged(1_000)
    assert whole.evaluate().margin == 0.0
    assert whole.enlarged(2_000) is whole, "there is no more"


def test_the_last_model_is_taken_if_it_is_better_on_more_of_the_dev_set(make_task):
    task, progress = make_task(), Progress()
    weight = next(task.learner.module.parameters())
    for progress.step, score in enumerate((0.1, 0.3), 1):  # the metric is an error rate
        torch.nn.init.constant_(weight, float(progress.step))
        progress.rank(score, higher_is_better=False, kept=1)
        task.best.keep(progress)
    scores = {1.0: 0.25, 2.0: 0.2}

    def evaluate():
        return Evaluation(scores[weight.flatten()[0].item()], {}, 0.0, None, [])

    found = task.best.write_final(progress, evaluate, task.evaluator.metric, rescore=True)
    assert [(each.name, each.found.score, each.taken) for each in found] == [
        ("best", 0.25, False),
        ("last", 0.2, True),
    ]
    write_card(task.folder, task.summary, progress, found)
    assert "| best dev per, greedy | 0.2500 at step 1 |" in task.folder.card_file.read_text()
    written = load_file(task.folder.model_file)
    assert any((tensor == 2.0).all() for tensor in written.values())
