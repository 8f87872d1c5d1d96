"""When a run is over."""

from regard.training.epochs import Epoch
from regard.training.progress import Progress


def test_passes_are_taken_to_their_end_however_many_batches_they_have(make_task):
    """How many there are changes from pass to pass, with the order and with how words are cut."""
    task = make_task(steps=None, epochs=2)
    pairs, batches = task.epochs[0]
    rows = [batches[i] for i in range(len(batches))]
    task.epochs = [Epoch(pairs, rows), Epoch(pairs, 3 * rows), Epoch(pairs, rows)]
    progress = Progress()
    while not task.is_over(progress):
        task.next_batches(progress)
        progress.step += 1
    assert (progress.epoch, progress.batch) == (2, 0)
    assert progress.step == 4 * len(rows)
