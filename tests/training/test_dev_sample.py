"""The dev sample that is decoded, its error, and the models that are kept on its verdict."""

import itertools
import math
import random
import re
from collections import Counter

import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file

from regard.data.dev_set import sampling_order
from regard.evaluation import confidence_interval
from regard.evaluation.metrics import PLAIN_TEXT
from regard.training import RunFolder, evaluator, make_config
from regard.training.evaluator import Evaluation, score_with_error
from regard.training.progress import Progress, RankedEvaluation
from regard.training.run import start_run
from regard.training.setup import prepare

TINY = {"embed": 8, "hidden": 8, "layers": 1, "device": "cpu", "report": False}


def test_the_first_of_a_sorted_file_hold_each_target_in_its_share():
    targets = ["a"] * 600 + ["b"] * 300 + ["c"] * 100
    order = sampling_order([f"source {i}" for i in range(1000)], targets)
    assert sorted(order) == list(range(1000))
    for first in range(1, 1000):
        counts = Counter(targets[place] for place in order[:first])
        for target, share in (("a", 0.6), ("b", 0.3), ("c", 0.1)):
            assert abs(counts[target] - share * first) <= 1
    assert order[:100] != sorted(order[:100]), "within a target, it is no order of the file"


def test_the_order_of_the_file_does_not_matter():
    rows = [(f"source {i}", "ab"[i % 2]) for i in range(50)]
    mixed = random.Random(1).sample(rows, len(rows))
    first, second = (
        [some[place] for place in sampling_order(*zip(*some, strict=True))]
        for some in (rows, mixed)
    )
    assert first == second


def test_targets_that_occur_once_stand_among_the_others():
    targets = ["yes"] * 500 + [f"once {i}" for i in range(500)]
    order = sampling_order(targets, targets)
    assert 35 <= sum(place < 500 for place in order[:100]) <= 65


def test_the_first_of_sorted_numbers_are_spread_over_all():
    numbers = [f"{i / 7:.3f}" for i in range(1000)]
    order = sampling_order([f"text {i}" for i in range(1000)], numbers)
    # the mean of 100 draws from 0 to 999 has a standard error of 29
    assert 400 < sum(order[:100]) / 100 < 600


def test_the_error_of_a_share_is_that_of_a_mean():
    outputs, references = ["a"] * 8, [["a"]] * 6 + [["b"]] * 2
    mean, error = score_with_error("accuracy", outputs, references, PLAIN_TEXT)
    assert mean == 0.75
    assert error == pytest.approx(math.sqrt(0.75 * 0.25 / 7))
    _, none_wrong = score_with_error("accuracy", outputs[:6], references[:6], PLAIN_TEXT)
    assert none_wrong == pytest.approx(1 / 6), "no less than one of them counts"


def test_the_error_of_bleu_is_near_that_of_resampling():
    draw = random.Random(1)
    references = [[" ".join(draw.choices("abcdefgh", k=12))] for _ in range(200)]
    outputs = [
        " ".join(w if draw.random() < 0.8 else "x" for w in r[0].split()) for r in references
    ]
    value, error = score_with_error("bleu", outputs, references, PLAIN_TEXT)
    found = confidence_interval("bleu", outputs, references, samples=300)
    assert value == pytest.approx(found.value)
    assert error == pytest.approx((found.high - found.low) / 2 / 1.96, rel=0.2)


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


def test_equal_scores_leave_it_to_the_loss():
    zero = RankedEvaluation(0.0, 1, 2.0)
    assert Progress(best=[zero, zero]).loss_decided
    assert not Progress(best=[zero]).loss_decided
    assert not Progress(best=[zero, zero._replace(score=0.1)]).loss_decided


def _texts(draw, folder):
    word = draw.choice(("good", "bad"))
    return f"{word} {draw.random()}", word


def _pictures(draw, folder):
    """A picture in the folder of its class."""
    label = draw.choice(("dark", "light"))
    path = folder / label / f"{draw.random()}.png"
    path.parent.mkdir(exist_ok=True)
    shade = draw.randrange(100) + 155 * (label == "light")
    Image.new("L", (4, 4), shade).save(path)
    return str(path), label


def _tags(draw, folder):
    tag, words = draw.choice("XY"), draw.randint(1, 3)
    return " ".join(str(draw.random()) for _ in range(words)), " ".join(tag * words)


def _spans(draw, folder):
    place = draw.choice(("hall", "garden"))
    return f"Mary went to the {place}. {draw.random()}\tWhere is Mary?", place


KINDS = {
    "labels": (_texts, {"preset": "classifier-rnn", "src_tokenizer": "space"}),
    "pictures": (_pictures, {"preset": "classifier-rnn", "patch": 2}),
    "tags": (_tags, {"preset": "rnn", "src_tokenizer": "space", "tgt_tokenizer": "space"}),
    "spans": (_spans, {"preset": "span", "src_tokenizer": "word", "layers": None}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_one_answer_scores_what_it_is_worth(kind, tmp_path, monkeypatch):
    """Dev files sorted by target: the first rows have one target, and it was right for all."""
    make, settings = KINDS[kind]
    draw = random.Random(1)
    rows = sorted((make(draw, tmp_path) for _ in range(240)), key=lambda row: row[1])
    header = "story\tquestion\tanswer\n" if kind == "spans" else ""
    for name, some in (("train", rows[::2]), ("dev", rows[1::2])):
        text = "".join("\t".join(row) + "\n" for row in some)
        (tmp_path / f"{name}.tsv").write_text(header + text)
    files = {
        name: str(tmp_path / f"{file}.tsv") for name, file in (("data", "train"), ("dev", "dev"))
    }
    given = {**files, **TINY, "eval_pairs": 40, "steps": 1, **settings}
    config = make_config({name: value for name, value in given.items() if value is not None})
    folder = RunFolder(tmp_path / "run")
    folder.create()
    task = prepare(config, folder, Console(quiet=True))
    always = rows[1][1].split()[0]
    monkeypatch.setattr(
        evaluator.Evaluator,
        "outputs",
        lambda self: [
            " ".join([always] * len(several[0].split()))
            for several in self.dev.references[: self.decoded]
        ],
    )
    found = task.evaluator.evaluate()
    assert 0.35 < found.score < 0.65
    assert found.margin > 0


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
    written = load_file(task.folder.model_file)
    assert any((tensor == 2.0).all() for tensor in written.values())


@pytest.mark.slow
def test_a_run_on_a_file_sorted_by_label_keeps_a_model_that_tells_them_apart(tmp_path, capsys):
    """It kept one that had one answer to everything, at a dev accuracy of 100%."""
    draw, words = random.Random(1), {"up": "good fine great warm", "down": "bad dull poor cold"}
    rows = []
    for label in itertools.islice(itertools.cycle(words), 2_000):
        others = draw.choices(["the", "film", "a", "plot", "of", "and"], k=6)
        rows.append((" ".join([*others, draw.choice(words[label].split())]), label))
    rows.sort(key=lambda row: row[1])
    data = tmp_path / "train.tsv"
    data.write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    settings = {"preset": "classifier-rnn", "steps": 100, "eval_every": 20, "eval_pairs": 20}
    config = make_config({"data": str(data), **TINY, "lr": 0.03, **settings})
    start_run(config, tmp_path / "run")
    said = capsys.readouterr().err
    assert re.search(r"that of 20 of \d+ dev sources, drawn by hash; ± is its standard error", said)
    assert re.search(r"\d%\s±\d+\.\d\d%", said)
    (final,) = re.findall(r"dev accuracy on (\d+) of \1 dev examples: (.*)% of the best", said)
    assert float(final[1]) > 70, "one answer to all is right for half"
