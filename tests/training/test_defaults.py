"""Settings that follow from the data, the budget and the device."""

from regard.training import defaults, make_config
from regard.training.defaults import (
    Facts,
    evaluation_interval,
    fill_settings,
    starts_from_counts,
)
from regard.training.evaluator import Evaluator
from regard.training.schedule import Intervals, Progress, has_stalled

MANY = Facts(examples=25_000, tokens=17.0, on_gpu=False)


def test_few_minutes_over_many_examples_take_a_high_rate_and_counted_vectors():
    brief = make_config({"preset": "bahdanau", "minutes": 2})
    few, gpu = MANY._replace(examples=4_000), MANY._replace(on_gpu=True)
    assert fill_settings(brief, MANY).lr > 1e-3
    assert fill_settings(brief, few).lr is fill_settings(brief, gpu).lr is None
    assert starts_from_counts(brief, MANY)
    assert not starts_from_counts(brief, MANY._replace(examples=99))
    texts = make_config({"preset": "lm-transformer", "minutes": 2})
    assert fill_settings(texts, MANY._replace(scales_batches=False)).batch_tokens == 1024


def test_a_gpu_that_reads_few_pairs_many_times_learns_them_by_two_passes_that_agree():
    on_gpu = Facts(examples=29_000, tokens=30.0, on_gpu=True)

    def chosen(facts=on_gpu, preset="transformer", **settings):
        values = fill_settings(make_config({"preset": preset, **settings}), facts)
        return values.rdrop, values.model.get("tied", "none")

    assert chosen() == chosen(minutes=3) == chosen(steps=6_000) == (3.0, "output")
    assert chosen(preset="bahdanau") == (3.0, "none")
    assert chosen(rdrop=0) == (0.0, "none")
    assert chosen(tied="none") == (3.0, "none")
    few = [{"minutes": 1}, {"epochs": 9}, {"steps": 900}, {"teacher": ["runs/a"]}, {"start": "g2p"}]
    other = [{"examples": 99_000}, {"on_gpu": False}, {"writes": False}]
    found = [chosen(**settings) for settings in few]
    found += [chosen(on_gpu._replace(**facts)) for facts in other]
    assert set(found) == {(0.0, "none")}


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
