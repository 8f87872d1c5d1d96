"""What several processes must agree on, told by one that believes to be among them."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from regard.errors import RegardError
from regard.training import RunError, RunFolder
from regard.training import distributed as processes_of
from regard.training.distributed import join_processes
from regard.training.epochs import TrainingBatches
from regard.training.run import _told_of_lost_process
from training.tools import run_processes


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_the_examples_of_a_step_do_not_depend_on_the_number_of_processes(make_task, processes):
    epochs = make_task(batch_sentences=5).batches.epochs
    ranks = [TrainingBatches(epochs, rank=rank, processes=processes) for rank in range(processes)]
    place = (0, 0)
    for _ in range(40):
        expected = epochs[place[0]].batches[place[1]]
        taken = [batches.take(*place) for batches in ranks]
        shares = [share for (share,), *_ in taken]
        assert sorted(np.concatenate([s.rows for s in shares if s.weight])) == sorted(expected)
        assert len({share.global_tgt_tokens for share in shares}) == 1
        (place,) = {(epoch, batch) for _, epoch, batch in taken}
    assert place[0] > 0, "more than one epoch"


def test_a_lost_process_is_told_in_one_sentence(tmp_path):
    gone = r"all 4 processes .* one is gone .*--max-restarts"
    for count, error, match in ((4, "gloo: reset", gone), (4, "x", "^x$"), (1, "gloo", "^gloo$")):
        kind = RunError if match == gone else RuntimeError
        with pytest.raises(kind, match=match), _told_of_lost_process(count, RunFolder(tmp_path)):
            raise RuntimeError(error)


def _join_and_sum():
    join_processes(torch.device("cpu"))
    total = torch.ones(())
    dist.all_reduce(total)
    assert total == 2
    dist.destroy_process_group()


@pytest.mark.slow
def test_processes_do_not_wait_for_those_of_an_earlier_start(monkeypatch):
    """torchrun keeps its store, and what lost processes have left there."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set(processes_of.STORE_KEY, "1 0123")  # nobody answers there
    env = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": store.port}
    for _ in range(2):
        assert run_processes(2, _join_and_sum, **env) == [0, 0]

    # nor for ever, if the first one never answers
    store.set(processes_of.STORE_KEY, "1 0123")
    monkeypatch.setattr(processes_of, "LONG_WAIT", processes_of.SHORT_WAIT / 10)
    with pytest.raises(RegardError, match=r"does not answer at 127\.0\.0\.1"):
        processes_of._store_of_first(store, "127.0.0.1")
