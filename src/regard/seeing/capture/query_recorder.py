"""Record the queries and keys of a module's attention, by which a weight can be explained.

    with record_queries(module) as seen:
        trace = ...  # one pass, or greedy decoding
    trace = seen.added_to(trace)

Kept are calls of `F.scaled_dot_product_attention`. Queries and keys are only added to a map that
they explain: where `scale * q.k` differs from the logarithm of a weight by one number for each row.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.seeing.capture.recorder import RecordedCall, record_vectors
from regard.seeing.trace.trace import Map, QueryKeys, Trace
from regard.seeing.trace.view import select

#: numbers of all queries and keys of a trace at most
MAX_NUMBERS: Final = 2_000_000
#: weights below this say little about their scores, and how far others may be off
LEAST: Final = 1e-4
CLOSE: Final = 0.05
NONE: Final = (
    "queries and keys cannot be had: they are kept of torch's scaled_dot_product_attention, if "
    "nothing but a mask is added to its scores, in one pass or in greedy decoding with a whole "
    "cache"
)


class _Call(NamedTuple):
    """Queries (heads, q_len, dim) and keys (heads, kv_len, dim) of one call of one row."""

    query: Tensor
    key: Tensor
    scale: float


class QueryRecorder:
    """Queries and keys by the name of the module that attended, in the order of their calls."""

    def __init__(self, recorded: Sequence[RecordedCall]) -> None:
        self.recorded = recorded

    @property
    def calls(self) -> dict[str, list[_Call]]:
        """Calls of each module, of batches of one."""
        found: dict[str, list[_Call]] = {}
        for name, query, key, scale in self.recorded:
            if query.ndim != 4 or len(query) > 1 or query.is_nested:
                continue
            q, k = query[0], key[0]
            if len(k) != len(q):  # several heads share a key
                k = k.repeat_interleave(len(q) // len(k), dim=0)
            size = q.shape[-1] ** -0.5 if scale is None else float(scale)
            found.setdefault(name, []).append(_Call(q, k, size))
        return found

    def added_to(self, trace: Trace) -> Trace:
        """Return a trace with the queries and keys of its maps, as far as there is room.

        The layer that is shown first has them first.
        """
        left = {name: list(calls) for name, calls in self.calls.items()}
        matched: dict[int, QueryKeys] = {}
        for i, one in enumerate(trace.maps):
            made = (_explaining(one, calls) for calls in left.values())
            explained = next((vectors for vectors in made if vectors is not None), None)
            if explained is not None:
                matched[i] = explained
        first, room = select(trace).layer if trace.maps else 0, MAX_NUMBERS
        found: dict[int, QueryKeys] = {}
        for i in sorted(matched, key=lambda i: (trace.maps[i].layer != first, i)):
            if matched[i].size <= room:
                room -= matched[i].size
                found[i] = matched[i]
        notes = list(trace.notes)
        if not found:
            notes.append(NONE)
        elif len(found) < len(trace.maps):
            notes.append(f"{len(found)} of {len(trace.maps)} maps have their queries and keys")
        return replace(trace, queries=tuple(found[i] for i in sorted(found)), notes=tuple(notes))


@contextmanager
def record_queries(module: nn.Module) -> Iterator[QueryRecorder]:
    """Record the queries and keys of a module while it runs inside the block."""
    with record_vectors(module) as recorded:
        yield QueryRecorder(recorded)


def _explaining(found: Map, calls: list[_Call]) -> QueryKeys | None:
    """Return the queries and keys that a map's weights are computed from; None if these are not.

    They are those of one call, the first of several layers that share a module, which is then taken
    from the calls; or those of all calls, as the steps of decoding.
    """
    for call in calls:
        vectors = _vectors(found, call)
        if vectors is not None:
            calls[:] = [other for other in calls if other is not call]
            return vectors
    joined = _joined(calls) if len(calls) > 1 else None
    return None if joined is None else _vectors(found, joined)


def _vectors(found: Map, call: _Call) -> QueryKeys | None:
    """Return the queries and keys of a call, cut to a map, if they explain it."""
    heads, rows, columns = found.weights.shape
    if call.query.shape[0] != heads or call.query.shape[1] < rows or call.key.shape[1] < columns:
        return None
    query, key = call.query[:, :rows], call.key[:, :columns]
    if not _explains(found, (query @ key.mT).numpy() * call.scale):
        return None
    return QueryKeys.of(found.kind, found.layer, query.numpy(), key.numpy(), call.scale)


def _joined(calls: list[_Call]) -> _Call | None:
    try:
        return _Call(torch.cat([call.query for call in calls], dim=1), *calls[-1][1:])
    except RuntimeError:  # heads of another number or size
        return None


def _explains(found: Map, scores: Any) -> bool:
    """Return whether weights are a softmax of scores, up to what was masked."""
    weights = found.weights
    seen = weights > LEAST
    rest = np.where(seen, np.log(np.maximum(weights, LEAST)) - scores, np.nan)
    with np.errstate(all="ignore"):
        middle = np.where(seen, rest, 0).sum(-1) / np.maximum(seen.sum(-1), 1)
    off = np.where(seen, np.abs(rest - middle[..., None]), 0.0)
    return bool(seen.any()) and float(off.max()) < CLOSE
