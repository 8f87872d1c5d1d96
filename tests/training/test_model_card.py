"""The model card."""

from dataclasses import replace

from regard.training import RunFolder
from regard.training.checkpoint import Candidate
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


def test_it_says_how_well_an_average_does_that_is_the_model(make_task):
    task = make_task()
    assert "average" not in card(task)
    found = RankedEvaluation(0.125, 3)
    assert "average" not in card(task, [Candidate("average", found)])
    rows = card(task, [Candidate("average", found, taken=True)]).splitlines()
    place = rows.index("| best dev per, greedy | 0.2500 at step 3 |")
    assert rows[place + 1] == "| dev per, greedy, of the average of the 2 best, taken | 0.1250 |"


def test_a_folder_with_a_space_is_quoted(make_task, tmp_path):
    task = make_task()
    spaced = tmp_path / "my run"
    spaced.mkdir()
    text = card(replace(task, folder=RunFolder(spaced)))
    assert f"regard predict '{spaced}' input.txt" in text
    assert f"regard evaluate '{spaced}' test.tsv" in text
