"""Comparison of exported graphs with their model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from regard import ops
from regard.decoding import DecodingOptions, decode
from regard.errors import ExportError
from regard.export.decode import Exported
from regard.models import SequenceModel
from regard.models.protocol import inference
from regard.symbols import BOS, EOS
from regard.tasks.inputs.graph_inputs import GraphInputs
from regard.training import Saved

TOLERANCE: Final = 1e-4
#: lengths of the sources of each batch: one alone, the shortest that there is, and mixed ones
BATCHES: Final = ((6,), (1, 1), (9, 2, 17, 5))
#: steps to compare at most
MAX_STEPS: Final = 24
#: random sources whose predictions are compared, and their longest
SOURCES: Final = 100
LONGEST: Final = 20
BATCH: Final = 32
#: share of equal predictions below which graphs of 32 bits are refused: rounding may change the
#: places of two hypotheses whose scores differ in the sixth digit, but seldom does
LEAST_EQUAL: Final = 0.95


class ExportCheck(NamedTuple):
    """Result of a comparison of exported graphs with their model.

    Attributes:
        largest_difference: of a log-probability or an attention weight.
        beam: width of the search whose predictions are compared.
        sources: number of these.
        equal_predictions: number of sources for which both find the same tokens.
    """

    largest_difference: float
    beam: int
    sources: int
    equal_predictions: int


def verify(
    saved: Saved, folder: Path, sources: Sequence[str] | None = None, *, exact: bool = True
) -> ExportCheck:
    """Compare graphs with their model: log-probabilities, then predictions by beam search.

    Args:
        saved: the model.
        folder: with the graphs and all that `decode.py` needs.
        sources: whose predictions are compared, or none; random ones if None.
        exact: raise ExportError if log-probabilities differ by more than `TOLERANCE`, or more than
            a few predictions do.
    """
    with readable_errors():
        exported = Exported(folder)
        worst = _verify_log_probs(saved, exported, TOLERANCE if exact else float("inf"))
        equal = _equal_predictions(saved, exported, sources)
    found = ExportCheck(worst, exported.options.beam, len(equal), sum(equal))
    if exact and found.equal_predictions < LEAST_EQUAL * found.sources:
        raise ExportError(
            f"the graphs must find the model's predictions by beam search, but "
            f"{found.equal_predictions} of {found.sources} are equal, so that nothing was kept: "
            f"report it with the versions of torch, onnx and onnxruntime."
        )
    return found


def _verify_log_probs(saved: Saved, exported: Exported, tolerance: float) -> float:
    """Return the largest difference of a log-probability or an attention weight.

    Both follow the model's greedy search, and the log-probabilities of all tokens are compared at
    each step. Raises ExportError if they differ by more than the tolerance, or are NaN.
    """
    model, inputs = saved.sequence_model, saved.task.input.graph_inputs()
    chance = torch.Generator().manual_seed(1)
    with inference(model), ops.use_backend("reference"):
        batches = [_differences(model, exported, inputs, n, chance) for n in BATCHES]
        worst = float(np.max([one for batch in batches for one in batch]))
    if not worst <= tolerance:  # so that NaN fails too
        raise ExportError(
            f"the graphs must give the model's log-probabilities within {tolerance:g}, but the "
            f"largest difference is {worst:.2g}, so that nothing was kept: report it with the "
            f"versions of torch, onnx and onnxruntime."
        )
    return worst


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn the errors of onnxruntime into a sentence."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise ExportError(
            f"the graphs must run by onnxruntime, but version {onnxruntime.__version__} says "
            f"{str(error).splitlines()[0]!r}, so that nothing was kept: try another version, or "
            f"report it."
        ) from error


def _differences(
    model: SequenceModel,
    exported: Exported,
    inputs: GraphInputs,
    batch: tuple[int, ...],
    chance: torch.Generator,
) -> Iterator[float]:
    lengths = inputs.possible(torch.tensor(batch))
    plain = inputs.draw(lengths, chance)
    src = inputs.as_read(plain)
    answers = [found[0].tokens for found in decode(model, src, lengths, DecodingOptions(beam=1))]
    tokens = torch.full_like(lengths, BOS)
    state = model.start(model.encode(src, lengths))
    graph_state = exported.first(plain.numpy(), lengths.numpy())
    for step in range(min(max(map(len, answers)) + 1, MAX_STEPS)):
        out = model.step(tokens, state, need_weights=True)
        log_probs, graph_state, looked = exported.next(tokens.numpy(), graph_state)
        yield _largest(out.logits.log_softmax(-1), log_probs)
        for weights, seen in zip(out.maps.get("cross", ()), looked, strict=False):
            yield _largest(weights.squeeze(2), seen)
        state = out.state
        tokens = torch.tensor([row[step] if step < len(row) else EOS for row in answers])


def _largest(ours: Tensor, theirs: Any) -> float:
    return float(np.abs(ours.numpy() - theirs).max())


def _equal_predictions(
    saved: Saved, exported: Exported, sources: Sequence[str] | None
) -> list[bool]:
    """Return whether the model and its graphs find the same tokens, for each source."""
    options = DecodingOptions(beam=exported.options.beam)
    batches = _random_batches(saved) if sources is None else _batches(saved, exported, sources)
    return [
        ours[0].tokens == theirs[0].tokens
        for rows, src, lengths in batches
        for ours, theirs in zip(
            decode(saved.sequence_model, src, lengths, options),
            exported.search(rows, batch=len(rows)),
            strict=True,
        )
    ]


#: sources as the graphs read them, as the model does, and their lengths
_Batch = tuple[list[Any], Tensor, Tensor]


def _random_batches(saved: Saved) -> Iterator[_Batch]:
    """Yield batches of random sources of several lengths."""
    inputs, chance = saved.task.input.graph_inputs(), torch.Generator().manual_seed(2)
    positions = torch.randint(2, LONGEST + 1, (SOURCES,), generator=chance).sort().values
    for part in torch.split(positions, BATCH):
        lengths = inputs.lengths(part)
        plain = inputs.draw(lengths, chance)
        rows = [row[:length].numpy() for row, length in zip(plain, lengths.tolist(), strict=True)]
        if not plain.is_floating_point():
            rows = [row.tolist() for row in rows]
        yield rows, inputs.as_read(plain), lengths


def _batches(saved: Saved, exported: Exported, sources: Sequence[str]) -> Iterator[_Batch]:
    """Yield batches of a user's sources, of similar lengths."""
    given = sorted(sources, key=len)
    for start in range(0, len(given), BATCH):
        part = given[start : start + BATCH]
        own = saved.task.input.rows(part)
        yield [exported.source.encode(source) for source in part], *saved.task.input.batch(own)
