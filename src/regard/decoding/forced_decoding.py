"""Forced decoding: score given targets, with the attention of a model that writes them."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from regard.decoding.hypothesis import (
    Hypothesis,
    length_penalty,
    maps_on_cpu,
    row_maps,
)
from regard.decoding.search import CROSS
from regard.decoding.search_history import Alternatives
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
from regard.symbols import BOS, EOS, PAD


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
        options: the length penalty counts towards the score; the others are ignored.
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
        own = own.masked_fill(torch.arange(own.shape[1], device=src.device) >= steps[:, None], 0.0)
        log_prob = own.sum(dim=1)
        score = log_prob / length_penalty(steps.double(), options.length_penalty)
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
            attention=row_maps(maps, i, len(tokens) + 1, sizes[i]),
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
