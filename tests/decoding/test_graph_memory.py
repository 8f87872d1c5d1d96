"""Recorded graphs of all models share a bounded part of a GPU's memory."""

import pytest
import torch
from torch import nn

from regard.decoding import DecodingGraphs, graphs

TOTAL = 1000


@pytest.fixture
def kept(monkeypatch):
    """Recordings as they are kept, on a GPU with `TOTAL` bytes of which all are free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (TOTAL, TOTAL))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(graphs, "_kept", graphs._KeptMemory())
    return graphs._kept


def recorded(kept, size):
    found = DecodingGraphs(nn.Linear(1, 1))
    found._recordings["search"] = object()
    kept.add(found, size)
    return found


def wants_to_record(found):
    found._seen["another"] = graphs.EAGER_CALLS + 1
    return found._worth_recording("another")


def test_models_that_searched_least_recently_lose_their_graphs_first(kept):
    limit = int(TOTAL * graphs.KEPT_SHARE)
    first, second, third = (recorded(kept, limit // 2 - 1) for _ in range(3))
    assert kept.is_too_much()
    kept.add(first)  # it searches again
    assert wants_to_record(third)
    assert [bool(one._recordings) for one in (first, second, third)] == [True, False, True]
    assert not kept.is_too_much()


def test_a_model_that_searches_keeps_its_graphs(kept):
    limit = int(TOTAL * graphs.KEPT_SHARE)
    busy, idle, third = (recorded(kept, limit // 2 - 1) for _ in range(3))
    with busy._lock:
        assert wants_to_record(third)
    assert [bool(one._recordings) for one in (busy, idle, third)] == [True, False, True]


@pytest.mark.parametrize("full", ["of memory", "of graphs"])
def test_one_model_alone_begins_anew_once_its_graphs_are_of_little_use(kept, full, monkeypatch):
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 3)
    alone = recorded(kept, int(TOTAL * graphs.KEPT_SHARE) + 1 if full == "of memory" else 1)
    alone._recordings |= {i: object() for i in range(0 if full == "of memory" else 2)}
    alone._replays = 5
    for _ in range(4):
        assert not wants_to_record(alone)
        assert alone._recordings  # they are used more often than one is missed
    assert not wants_to_record(alone)
    assert not alone._recordings
    assert not kept.is_too_much()
    assert wants_to_record(alone)


def test_memory_that_others_have_is_not_waited_for(kept, monkeypatch):
    old, new = recorded(kept, 1), recorded(kept, 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, TOTAL))
    assert not wants_to_record(new)
    assert not old._recordings
    assert new._recordings  # what it has is replayed further


def test_memory_that_only_the_cache_has_is_given_back_first(kept, monkeypatch):
    free = [TOTAL // 100]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free[0], TOTAL))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.append(free.pop() + TOTAL // 5))
    model = recorded(kept, 1)
    assert not wants_to_record(model)  # nothing is cached
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: TOTAL // 5)
    assert wants_to_record(model)
    before = free[0]
    model.clear()  # so that other pools can have what its graphs had
    assert free[0] > before
    model.clear()
    assert free[0] == before + TOTAL // 5


def test_models_that_are_gone_keep_nothing(kept):
    found = recorded(kept, TOTAL)
    assert kept.is_too_much()
    del found
    assert not kept.is_too_much()
