"""The model card."""

from regard.training.reporting import write_card
from regard.training.schedule import Progress, RankedEvaluation
from regard.version import __version__


def card(task, candidates=()):
    best = [RankedEvaluation(0.25, 3), RankedEvaluation(0.5, 6)]
    progress = Progress(step=6, epoch=2, seconds=90.0, best=best)
    write_card(task.folder, task.summary, progress, candidates)
    return task.folder.card_file.read_text(encoding="utf-8")


def test_it_says_what_the_model_is_and_how_well_it_does(make_task, data):
    task = make_task()
    text = card(task)
    assert text.startswith(f"# {task.folder.path.name}\n")
    assert "preset `bahdanau`, size `tiny`" in text
    assert f"{sum(p.numel() for p in task.learner.module.parameters()):,} weights" in text
    assert f"`{data}`: {len(task.batches.epochs.corpus):,} training pairs" in text
    assert "best dev per, greedy | 0.2500 at step 3" in text
    assert "6 steps, 2 epochs, 1.5 minutes" in text
    assert f"regard {__version__}" in text
