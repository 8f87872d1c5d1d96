"""Settings that follow from the data, the budget and the device."""

import json

import torch
from rich.console import Console

from regard.training import RunFolder, defaults, make_config
from regard.training.defaults import (
    Facts,
    describe_defaults,
    evaluation_interval,
    evaluation_limits,
    fill_settings,
    starts_from_counts,
)
from regard.training.evaluator import Evaluator
from regard.training.optimization import seconds_per_token
from regard.training.schedule import Intervals, Progress, has_stalled
from regard.training.setup import prepare
from training.tools import SETTINGS

CPU = Facts(examples=4_000, tokens=17.0, on_gpu=False)
FREE = ("batch_sentences", "eval_every", "warmup", "size")


def size(facts=CPU, **settings):
    return fill_settings(make_config({"preset": "transformer", **settings}), facts).size


def test_few_passes_over_many_examples_take_a_high_rate():
    many = CPU._replace(examples=25_000)

    def rate(facts=many, **settings):
        return fill_settings(make_config({"preset": "bahdanau", **settings}), facts).lr

    assert rate(minutes=2) == 5e-3
    assert rate(minutes=2, lr=1e-4) == 1e-4
    assert rate() is rate(minutes=10) is rate(CPU, minutes=2) is None
    assert rate(many._replace(on_gpu=True), minutes=2) is None
    counted = {
        "few minutes": starts_from_counts(make_config({"minutes": 2}), many),
        "no limit": starts_from_counts(make_config({}), many),
        "vectors": starts_from_counts(make_config({"minutes": 2, "src_vectors": "a"}), many),
        "few pairs": starts_from_counts(make_config({"minutes": 2}), many._replace(examples=99)),
    }
    assert [name for name, found in counted.items() if found] == ["few minutes"]
    texts = many._replace(scales_batches=False)
    lines = fill_settings(make_config({"preset": "lm-transformer", "minutes": 2}), texts)
    assert (lines.lr, lines.batch_tokens) == (6e-3, 1024)
    assert fill_settings(make_config({"preset": "lm-transformer"}), texts).batch_tokens == 4096


def interval(per_epoch=125, dev_share=0.05, **settings):
    return evaluation_interval(make_config(settings), per_epoch, dev_share)


def test_evaluations_come_with_epochs_and_ten_times_in_a_short_run():
    assert interval() == 200
    assert interval(per_epoch=500) == 500
    assert interval(per_epoch=9_000, dev_share=0.01) == 2_000
    assert interval(steps=1_000) == 100
    assert interval(epochs=10) == 125
    assert interval(steps=1_000, eval_every=7) == 7


def due(step=1, *, since=0.0, costs=(), **settings):
    """Whether to evaluate so long after evaluations that took so long."""
    progress = Progress(step=step)
    for cost in costs:
        progress.took_evaluation(cost)
    progress.seconds += since
    config = make_config({"minutes": 1, **settings})
    minutes = config.minutes if config.eval_every is None else None
    return Intervals(200, minutes, 500).evaluation_is_due(progress)


def test_a_budget_in_minutes_has_ten_evaluations_however_slow_its_steps_are():
    assert not due(since=5.9)
    assert due(since=6.0)
    assert due(step=400, since=1.0)
    assert not due(step=401, since=1.0)


def test_evaluations_take_no_more_than_a_tenth_of_the_time():
    assert not due(step=400, since=4.4, costs=[9.0, 0.5]), "it is one of the nine before it"
    assert due(step=400, since=4.5, costs=[9.0, 0.5])
    assert not due(since=17.9, costs=[1.0, 2.0])


def test_an_evaluation_reads_what_it_has_time_for():
    # a fiftieth of a minute: half of it for losses of 1 ms each, half for outputs of 10 ms each
    assert evaluation_limits(1.0, 0.001, 0.01) == (600, 60)
    assert evaluation_limits(1.0, 1.0, 1.0) == (50, 50), "but no fewer than these"
    assert evaluation_limits(1.0, 0.0, 0.0)[0] > 10**6


def test_a_slow_evaluation_is_made_smaller(make_task, monkeypatch):
    monkeypatch.setattr(Evaluator, "seconds", lambda evaluator: (1.0, 1.0))
    monkeypatch.setattr(defaults, "FEWEST_EVALUATED", 3)
    task = make_task(minutes=1.0)
    assert (len(task.evaluator.dev.scored), task.evaluator.decoded, task.config.eval_pairs) == (
        *(3, 3, 3),
    )
    assert make_task(minutes=1.0, eval_pairs=7).evaluator.decoded == 7, "as many as are asked for"
    whole = task.evaluator.dev.limited(10**9)
    assert len(make_task().evaluator.dev.scored) > len(whole.scored) == 3


def test_the_time_of_a_token_leaves_a_run_as_it_was(make_task):
    task = make_task()
    before = torch.get_rng_state()
    parts = (task.batches.epochs.corpus, task.learner.processes.fabric)
    assert seconds_per_token(task.learner.objective, *parts) > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert all(weight.grad is None for weight in task.learner.module.parameters())
    loss, decoding = task.evaluator.seconds()
    assert loss > 0
    assert decoding >= 0
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_ends_where_neither_score_nor_loss_improve_for_two_fifths_of_its_budget():
    progress = Progress()
    for step, exact, loss in ((10, 0.0, 3.0), (20, 0.0, 2.0), (30, 0.0, 2.5)):
        progress.step = progress.evaluated = step
        progress.rank(exact, higher_is_better=True, kept=5, loss=loss)
    assert (progress.improved, progress.stale) == (20, 1)
    progress.step = progress.evaluated = 40
    assert not has_stalled(progress, 0.7, None), "half of that since step 20"
    assert has_stalled(progress, 0.8, None)
    assert has_stalled(progress, 0.1, 1)
    assert not has_stalled(progress, 0.99, 2)


def test_what_was_chosen_is_told_in_a_line():
    given = make_config({"minutes": 1})
    said = describe_defaults(given, fill_settings(given, CPU), CPU, 200, 50, "pairs")
    assert said == (
        "defaults for 4,000 pairs: about 32 per batch (544 tokens), size small, warm-up over 200 "
        "steps or 10% of the budget, an evaluation every 200 steps or 6 seconds."
    )
    given = make_config({"batch_sentences": 5, "size": "tiny", "warmup": 3, "eval_every": 9})
    assert describe_defaults(given, given, CPU, 9, 50, "pairs") is None


def plain(**settings):
    return {name: value for name, value in SETTINGS.items() if name not in FREE} | settings


def test_a_run_of_an_earlier_version_goes_on_as_it_was(data, tmp_path):
    """Its record names each default of that time, except how often it was to be evaluated."""
    folder = RunFolder(tmp_path / "run")
    former = {"size": "small", "batch_tokens": 4096, "warmup": 200, "patience": 10}
    config = make_config({"data": str(data), **plain(steps=400), **former})
    folder.create()
    record = {"format": 1, "config": {**config.model_dump(), "eval_every": None}}
    folder.config_file.write_text(json.dumps(record))
    task = prepare(folder.read_config(), folder, Console(quiet=True))
    assert task.config.max_tokens == 4096
    assert task.intervals.eval_every == 200, "no tenth of its steps"
