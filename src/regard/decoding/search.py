"""Greedy search, beam search and sampling: one loop, for every model and device.

A hypothesis that ends leaves its beam to another one, and a row leaves the batch when none of its
live hypotheses can win any more. The loop is given what takes the steps, see `search_steps`.
"""

from collections.abc import Collection, Generator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from regard.decoding.candidates import check_prefix
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.search_history import (
    Alternatives,
    FinishedHypotheses,
    Hypothesis,
    RowMaps,
    StepRecord,
    length_penalty,
    maps_on_cpu,
    read_hypotheses,
)
from regard.decoding.search_steps import (
    GraphBlocks,
    SearchSettings,
    SearchSteps,
    SingleSteps,
    Streamed,
)
from regard.decoding_options import DEFAULT, DecodingOptions
from regard.errors import ArgumentError
from regard.models.protocol import (
    Lengths,
    SequenceModel,
    Src,
    check_batch,
    check_tokens,
    inference,
    real_lengths,
)
from regard.ops.primitives import log_softmax
from regard.preemption import preemption_point
from regard.symbols import BOS, EOS, PAD

#: The maps that hypotheses carry by default.
CROSS: Final = ("cross",)


def decode(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
    *,
    need_weights: bool = False,
    kinds: Collection[str] = CROSS,
    graphs: DecodingGraphs | None = None,
    alternatives: int = 0,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of a batch of sources: samples if `num_samples` is set, else by search.

    A search extends the likeliest `beam` hypotheses at every step; a beam of 1 is greedy. A
    hypothesis ends when its `eos` is among the best `beam` candidates. A source is done when
    `nbest` of its hypotheses have ended and no live one can score better, so none is cut short.

    Samples may be equal. Their log-probabilities are the model's own, before temperature, `top_k`
    and `top_p`.

    Args:
        model: any model; it is run without dropout and given back as it was.
        src: source tokens, or vectors or images for a model with an adapter; the values beyond
            `lengths` do not matter.
        lengths: number of real source tokens of each row; it may be 0. All are real if None.
        options: see `DecodingOptions`.
        need_weights: whether hypotheses carry attention maps.
        kinds: the maps that they carry then: `cross`, `decoder-self`, `decoder-history`,
            `encoder-self`, `encoder-history`, `memory`. Kinds that the model does
            not have are left out.
        graphs: of this model, to replay the steps on a GPU; None runs them one by one.
        alternatives: likeliest tokens at each place that hypotheses carry.

    Returns:
        A list of hypotheses for each source, best first. It is shorter than `nbest` where the
        constraints allow fewer targets.
    """
    check_batch(src, lengths)
    settings = SearchSettings(model, options, tuple(kinds) if need_weights else (), alternatives)
    steps = run_search(settings, src, lengths, graphs)
    with inference(model):
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: list[list[Hypothesis]] = end.value
                return found


def stream(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
    *,
    kinds: Collection[str] = (),
    graphs: DecodingGraphs | None = None,
    alternatives: int = 0,
) -> Generator[Streamed, None, list[list[Hypothesis]]]:
    """Search greedily, yield each token at once, and return the hypotheses; see `decode`.

    Of the options, the limits, the prefix and the constraints count. The model is set to evaluation
    at each step and set back before the token is yielded, so an abandoned stream leaves nothing
    behind.
    """
    check_batch(src, lengths)
    options = replace(options, beam=1, nbest=1, num_samples=0, temperature=1.0, top_k=0, top_p=1.0)
    settings = SearchSettings(model, options, tuple(kinds), alternatives, stream=True)
    steps = run_search(settings, src, lengths, graphs)
    while True:
        try:
            with inference(model):
                written = next(steps)
        except StopIteration as end:
            found: list[list[Hypothesis]] = end.value
            return found
        yield from written


def run_search(
    settings: SearchSettings, src: Src, lengths: Lengths, graphs: DecodingGraphs | None = None
) -> Generator[list[Streamed], None, list[list[Hypothesis]]]:
    """Search; yield the new tokens after each step, and return the hypotheses at the end.

    The caller puts the model into inference mode while this runs, and not in between.
    """
    check_prefix(settings.options.prefix, rows=len(src))
    with nullcontext(False) if graphs is None else graphs.claim(src) as is_free:
        steps: SearchSteps = SingleSteps(settings)
        if is_free and graphs is not None:
            steps = GraphBlocks(settings, graphs)
        search = steps.start(src, lengths)
        history, finished, step = list[StepRecord](), list[FinishedHypotheses](), 0
        while step <= steps.longest:
            preemption_point()
            after, records, gone, written = steps.take(search, step)
            history += records
            step += len(records)
            if gone is not None:
                finished.append(gone)
            if settings.stream:
                yield written
            if after is None:
                break
            search = after
        else:
            finished.append(search.beams.finished)
    ended = FinishedHypotheses.concatenate(finished).first(settings.options.nbest)
    samples = settings.plan.samples
    return read_hypotheses(history, ended, settings.kinds, steps.maps, steps.lengths, samples)


def force_decode(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    tgt: Sequence[Sequence[int]],
    options: DecodingOptions = DEFAULT,
    *,
    need_weights: bool = True,
    kinds: Collection[str] = CROSS,
    alternatives: int = 0,
) -> list[Hypothesis]:
    """Return the hypotheses that decoding would return if it found these targets.

    Args:
        model: any model; it is run without dropout and given back as it was.
        src: source tokens.
        lengths: number of real source tokens of each row; all are real if None.
        tgt: the tokens of a target for each source, without `bos` and `eos`.
        options: the length penalty and the number of forced tokens count towards the score; the
            others are ignored.
        need_weights: whether hypotheses carry attention maps.
        kinds: the maps that they carry, as in `decode`.
        alternatives: likeliest tokens at each place that they carry.
    """
    check_batch(src, lengths)
    if len(tgt) != len(src):
        raise ArgumentError(
            "tgt",
            f"have a target for each of the {len(src)} sources",
            f"a list of {len(tgt)}",
            "an empty target is an empty list",
        )
    kinds = kinds if need_weights else ()
    read, written = _shifted(tgt, src.device)
    with inference(model):
        out = model(src, lengths, read, need_weights=bool(kinds))
        check_tokens("tgt", written, out.logits.shape[2])
        read_lengths = real_lengths(src, lengths) if out.lengths is None else out.lengths
        others = Alternatives.of(out.logits.flatten(0, 1), alternatives) if alternatives else None
        own = log_softmax(out.logits).gather(2, written[..., None]).squeeze(2)
        steps = torch.tensor([len(tokens) + 1 for tokens in tgt], device=src.device)
        step = torch.arange(own.shape[1], device=src.device)
        own = own.masked_fill((step >= steps[:, None]) | (step < options.forced), 0.0)
        log_prob = own.sum(dim=1)
        score = log_prob / length_penalty(steps.double(), options)
    maps, sizes = maps_on_cpu(out.maps, kinds), read_lengths.tolist()
    places: list[list[list[tuple[int, float]]]] = [[] for _ in tgt]
    if others is not None:
        shape = (*own.shape, -1)
        parts = (part.view(shape).tolist() for part in (others.tokens, others.log_probs))
        places = [
            [list(zip(*place, strict=True)) for place in zip(*row, strict=True)]
            for row in zip(*parts, strict=True)
        ]
    lists = (score.tolist(), log_prob.tolist(), own.tolist())
    return [
        Hypothesis(
            tokens=list(tokens),
            score=total,
            log_prob=sum_,
            token_log_probs=terms[: len(tokens) + 1],
            attention=RowMaps((maps, i), tgt_len=len(tokens) + 1, src_len=sizes[i]),
            alternatives=places[i][: len(tokens) + 1],
        )
        for i, (tokens, total, sum_, terms) in enumerate(zip(tgt, *lists, strict=True))
    ]


def _shifted(tgt: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return what the model reads, `bos` first, and what it writes, (batch, longest + 1)."""
    width = max(map(len, tgt), default=0)
    read = [[BOS, *tokens, *[PAD] * (width - len(tokens))] for tokens in tgt]
    written = [[*tokens, EOS, *[PAD] * (width - len(tokens))] for tokens in tgt]
    return torch.tensor(read, device=device), torch.tensor(written, device=device)
