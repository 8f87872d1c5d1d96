"""What a model answers."""

import hashlib
import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from torch import Tensor

from regard import safe_read
from regard.data import Tokenizer, pad
from regard.decoding import DecodingOptions, Hypothesis
from regard.errors import ArgumentError
from regard.evaluation import Comparison, LengthRow
from regard.models import SequenceModel
from regard.models.protocol import Maps, inference
from regard.ops.primitives import log_softmax
from regard.seeing import DecodingInfo, Map, ModelInfo, Text, Token, Trace
from regard.seeing.trace import KINDS, SIDES, MapKind, brief
from regard.symbols import BOS, EOS
from regard.training import RunFolder

ALTERNATIVES: Final = 3
#: bytes at the end of metrics.jsonl that hold its last rows
METRICS_TAIL: Final = 1 << 16
CUT_OFF: Final = "the limit of length cut the output off: it has no </s>"


@dataclass(frozen=True)
class Traced:
    """What a trace holds besides its maps.

    Attributes:
        source: what the model was given.
        target: what it wrote.
        model: which model it is.
        decoded: how the target came about.
        reads: whether the decoder's rows are named by what it has just read, and not by what it
            writes next. So it is for a language model, whose words look back.
        notes: what else a reader must know.
    """

    source: Text
    target: Text
    model: ModelInfo
    decoded: DecodingInfo
    reads: bool = False
    notes: tuple[str, ...] = ()

    def trace(self, maps: Maps) -> Trace:
        """The trace with these maps, of which there may be rows for an `eos` that never came."""
        ended = any(token.special for token in self.target.tokens[-1:])
        return Trace(
            source=self.source,
            target=self.target,
            maps=_as_maps(maps, len(self.source.tokens), len(self.target.tokens), self.reads),
            model=self.model,
            decoded=self.decoded,
            notes=self.notes if ended else (*self.notes, CUT_OFF),
        )


def check_kinds(kinds: Collection[str] | None) -> Collection[str]:
    """The kinds of maps that are wanted: all if None."""
    if kinds is None:
        return KINDS
    wrong = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind not in KINDS]
    if wrong:
        raise ArgumentError(
            "kinds", f"be a list of some of {', '.join(KINDS)}", repr(wrong[0]), "choose among them"
        )
    return kinds


def with_probs(text: Text, log_probs: Sequence[float]) -> Text:
    """The text with the probability of each token."""
    tokens = zip(text.tokens, log_probs[: len(text.tokens)], strict=True)
    return replace(
        text, tokens=tuple(replace(token, prob=math.exp(min(term, 0.0))) for token, term in tokens)
    )


def with_alternatives(text: Text, log_probs: Tensor, ids: Sequence[int], tgt: Tokenizer) -> Text:
    """The text with what else could have stood at each place; `log_probs` is (places, vocab)."""
    best = log_probs.topk(min(ALTERNATIVES + 1, log_probs.shape[1]))
    tokens: list[Token] = []
    for token, own, probs, others in zip(
        text.tokens, [*ids, EOS], best.values.exp().tolist(), best.indices.tolist(), strict=False
    ):
        pairs = zip(tgt.tokens(others), probs, others, strict=True)
        found = [(shown, prob) for shown, prob, other in pairs if other != own]
        tokens.append(replace(token, alternatives=tuple(found[:ALTERNATIVES])))
    return replace(text, tokens=tuple(tokens))


def next_log_probs(
    module: SequenceModel, src: Tensor, lengths: Tensor, targets: Sequence[Sequence[int]]
) -> list[Tensor]:
    """Log-probabilities of all tokens at each place of each target, (places, vocab)."""
    read, places = pad([[BOS, *ids] for ids in targets])
    with inference(module):
        logits: Tensor = module(src, lengths, read.to(src.device)).logits
        log_probs = log_softmax(logits).cpu()
    return [row[:count] for row, count in zip(log_probs, places.tolist(), strict=True)]


def how_decoded(options: DecodingOptions, found: Hypothesis, rank: int = 0) -> DecodingInfo:
    """What the options made decoding do."""
    if options.num_samples:
        return DecodingInfo("sample", None, rank, found.log_prob)
    mode = "greedy" if options.beam == 1 else "beam"
    return DecodingInfo(mode, options.beam, rank, found.log_prob)


def model_info(paths: Sequence[Path], presets: Sequence[str]) -> ModelInfo:
    """Which model it is; of an ensemble, each of them.

    The step is the last that was trained, and the checkpoint a hash of the weights.
    """
    folders = [RunFolder(path) for path in paths]
    return ModelInfo(
        name=" + ".join(path.resolve().name for path in paths),
        kind=" + ".join(dict.fromkeys(presets)),
        checkpoint=" + ".join(_short_hash(folder.model_file) for folder in folders),
        step=_last_step(folders[0]),
    )


def _last_step(folder: RunFolder) -> int | None:
    """The step of the last row of the metrics, which nothing has checked; None if unknown."""
    if not folder.metrics_file.exists():
        return None
    with safe_read.open_regular(folder.metrics_file, inside=folder.path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - METRICS_TAIL))
        lines = file.read(METRICS_TAIL).splitlines()
    for line in reversed(lines):
        try:
            row = safe_read.parse_json(line)
        except safe_read.InvalidJSONError:  # the last one may be cut off
            continue
        step = row.get("step") if isinstance(row, dict) else None
        return step if isinstance(step, int) and 0 <= step < 2**31 else None
    return None


def _short_hash(file: Path) -> str:
    if not file.exists():  # the model may outlive its folder
        return ""
    return hashlib.blake2b(file.read_bytes(), digest_size=6).hexdigest()


def _as_maps(maps: Maps, src_len: int, tgt_len: int, reads: bool) -> tuple[Map, ...]:
    """Maps of all kinds and layers; rows that sum to less than 1 keep what they lack."""
    # what the decoder has read is `<s>` at least, even where it wrote nothing
    sizes: dict[str, int | None]
    sizes = {"source": src_len, "target": tgt_len, "read": max(tgt_len, 1), "slots": None}
    found = []
    for kind in KINDS:
        rows, columns = SIDES[kind]
        rows = "read" if reads and rows == "target" else rows
        for layer, weights in enumerate(maps.get(kind, ())):
            own = weights[:, : sizes[rows], : sizes[columns]].float().numpy()
            made = Map.of(cast(MapKind, kind), layer, own, missing=True)
            found.append(replace(made, rows=rows))
    return tuple(found)


@dataclass(frozen=True)
class Output:
    """An answer, and where each of its tokens looked.

    Attributes:
        text: the answer.
        score: what it was ranked by.
        log_prob: its log-probability.
        tokens: its tokens; the last row of the maps belongs to `</s>`, which is not among them.
        src_tokens: the tokens of the source, `</s>` last.
        token_log_probs: log-probabilities of the tokens, `</s>` last.
        maps: weights by kind, a tensor (heads, rows, columns) per layer; empty if not asked for.
        alternatives: further answers, best first.
        finished: False if the limit of length cut the answer off.
        unknown: what stands in the source where the model has no token for it.
        traced: what `trace` holds besides the maps; None if they were not asked for.
    """

    text: str
    score: float
    log_prob: float
    tokens: list[str]
    src_tokens: list[str]
    token_log_probs: list[float]
    maps: dict[str, tuple[Tensor, ...]]
    alternatives: tuple["Output", ...] = ()
    finished: bool = True
    unknown: tuple[str, ...] = ()
    traced: Traced | None = None

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        parts = [brief(self.text), f"score={self.score:.4g}"]
        parts += [f"maps={list(self.maps)}"] * bool(self.maps)
        parts += [f"alternatives={len(self.alternatives)}"] * bool(self.alternatives)
        parts += ["finished=False"] * (not self.finished)
        return f"Output({', '.join(parts)})"

    @cached_property
    def trace(self) -> Trace:
        """All that is known of the answer, to draw and to keep: tokens, probabilities, maps.

        An answer that was cut off has no `</s>`, so its trace has no row for it.
        """
        if self.traced is None:
            raise ArgumentError(
                "attention", "be True for a trace", False, "call the model without attention=False"
            )
        return self.traced.trace(self.maps)

    def save(self, path: str | Path, **options: Any) -> None:
        """Writes html, svg, png, pdf, csv or json, by the ending; see `regard.seeing.save`."""
        self.trace.save(path, **options)

    def _repr_html_(self) -> str | None:
        """The figure, in a notebook; None, which is the text, where there is nothing to draw."""
        return None if self.traced is None else self.trace._repr_html_()


class MetricRow(NamedTuple):
    """A metric with its interval, and how it was computed."""

    name: str
    value: float
    low: float
    high: float
    signature: str


class EvaluationResult(NamedTuple):
    """What was found, on how many pairs."""

    pairs: int
    rows: list[MetricRow]
    lengths: list[LengthRow]
    against: Comparison | None

    def __repr__(self) -> str:
        rows = "".join(f", {row.name}={row.value:.4g}" for row in self.rows)
        return f"Result(pairs={self.pairs}{rows})"
