"""Build traces of outputs: maps, probabilities, and how each output was found."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from torch import Tensor

from regard import safe_read
from regard.data import Tokenizer
from regard.decoding import DecodingOptions, Hypothesis
from regard.seeing import DecodingInfo, Map, ModelInfo, Text, Token
from regard.seeing.trace.trace import KINDS, SIDES, MapKind
from regard.symbols import BOS, EOS, PAD, SYMBOLS
from regard.training import RunFolder

ALTERNATIVES: Final = 3
#: tokens to ask a search for, among which are the one that is written, `pad` and `bos`
ALTERNATIVES_ASKED: Final = ALTERNATIVES + 3


def trimmed_maps(
    maps: Mapping[str, tuple[Tensor, ...]], src_len: int, tgt_len: int, *, rows_are_inputs: bool
) -> tuple[Map, ...]:
    """Return maps of all kinds, without a row for an `eos` that was cut off.

    Rows that sum to less than 1 keep their missing mass. Those of a language model, whose words
    look back, are labelled by the token just read, and not by the one that is written next.
    """
    # the decoder has read `<s>` at least, even if it wrote nothing
    # all slots of a memory and all hops are real
    sizes: dict[str, int] = {"source": src_len, "target": tgt_len, "read": max(tgt_len, 1)}
    found = []
    for kind in KINDS:
        rows, columns = SIDES[kind]
        rows = "read" if rows_are_inputs and rows == "target" else rows
        for layer, weights in enumerate(maps.get(kind, ())):
            own = weights[:, : sizes.get(rows), : sizes.get(columns)].float().numpy()
            made = Map.of(cast(MapKind, kind), layer, own, missing=True)
            found.append(replace(made, rows=rows))
    return tuple(found)


def with_probs(text: Text, log_probs: Sequence[float]) -> Text:
    """Return the text with the probability of each token."""
    tokens = zip(text.tokens, log_probs[: len(text.tokens)], strict=True)
    return replace(
        text, tokens=tuple(replace(token, prob=math.exp(min(term, 0.0))) for token, term in tokens)
    )


def with_alternatives(text: Text, found: Hypothesis, tgt: Tokenizer, *, is_label: bool) -> Text:
    """Return the text of a hypothesis with the likeliest other tokens, or other labels."""
    never = range(len(SYMBOLS)) if is_label else (PAD, BOS)
    tokens: list[Token] = []
    for token, own, others in zip(
        text.tokens, [*found.tokens, EOS], found.alternatives, strict=False
    ):
        labels = tgt.tokens([other for other, _ in others])
        likeliest = [
            (label, math.exp(log_prob))
            for label, (other, log_prob) in zip(labels, others, strict=True)
            if other != own and other not in never
        ]
        tokens.append(replace(token, alternatives=tuple(likeliest[:ALTERNATIVES])))
    return replace(text, tokens=tuple(tokens))


def decoding_info(options: DecodingOptions, found: Hypothesis, rank: int = 0) -> DecodingInfo:
    """Return how a hypothesis was decoded."""
    if options.num_samples:
        return DecodingInfo("sample", None, rank, found.log_prob)
    mode = "greedy" if options.beam == 1 else "beam"
    return DecodingInfo(mode, options.beam, rank, found.log_prob)


def model_info(paths: Sequence[Path], presets: Sequence[str]) -> ModelInfo:
    """Return name, preset, checkpoint and step of a model; of an ensemble, of each.

    The step is the last that was trained, and the checkpoint a hash of the weights.
    """
    folders = [RunFolder(path) for path in paths]
    step = next((row.get("step") for row in reversed(folders[0].metrics.rows())), None)
    return ModelInfo(
        name=" + ".join(path.resolve().name for path in paths),
        kind=" + ".join(dict.fromkeys(presets)),
        checkpoint=" + ".join(_short_hash(folder.model_file) for folder in folders),
        step=step if isinstance(step, int) and 0 <= step < 2**31 else None,
    )


def _short_hash(file: Path) -> str:
    if not file.exists():  # the model may outlive its folder
        return ""
    return hashlib.blake2b(safe_read.read_bytes(file, None), digest_size=6).hexdigest()
