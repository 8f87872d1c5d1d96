"""Outputs of a model, and the traces that are built from them."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, cast, final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from regard import safe_read
from regard.data import Tokenizer
from regard.decoding import DecodingOptions, Hypothesis
from regard.errors import ArgumentError
from regard.seeing import DecodingInfo, Map, ModelInfo, Text, Token, Trace
from regard.seeing.trace.trace import KINDS, SIDES, MapKind, brief
from regard.symbols import BOS, EOS, PAD, SYMBOLS
from regard.training import RunFolder

ALTERNATIVES: Final = 3
#: tokens to ask a search for, among which are the one that is written, `pad` and `bos`
ALTERNATIVES_ASKED: Final = ALTERNATIVES + 3
NO_VALUES: Final = np.zeros(0, np.float32)
CUT_OFF: Final = "the limit of length cut the output off: it has no </s>"


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
    return ModelInfo(
        name=" + ".join(path.resolve().name for path in paths),
        kind=" + ".join(dict.fromkeys(presets)),
        checkpoint=" + ".join(_short_hash(folder.model_file) for folder in folders),
        step=_last_step(folders[0]),
    )


def _last_step(folder: RunFolder) -> int | None:
    """Return the step of the last valid row of the metrics; None if unknown."""
    step = next((row.get("step") for row in reversed(folder.metrics.rows())), None)
    return step if isinstance(step, int) and 0 <= step < 2**31 else None


def _short_hash(file: Path) -> str:
    if not file.exists():  # the model may outlive its folder
        return ""
    return hashlib.blake2b(safe_read.read_bytes(file, None), digest_size=6).hexdigest()


@final
class LabelProbabilities(Mapping[str, float]):
    """Probability by label, the likeliest first; sorted when it is asked for."""

    def __init__(
        self,
        labels: Sequence[str] = (),
        values: Float[np.ndarray, " labels"] = NO_VALUES,
        *,
        exclusive: bool = True,
    ) -> None:
        self._labels, self._values, self.exclusive = labels, values, exclusive

    @cached_property
    def _by_label(self) -> dict[str, float]:
        order = np.argsort(-self._values, kind="stable").tolist()
        return {self._labels[i]: float(self._values[i]) for i in order}

    def __getitem__(self, label: str) -> float:
        return self._by_label[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_label)

    def __len__(self) -> int:
        return len(self._labels)

    def __repr__(self) -> str:
        return repr({label: round(value, 4) for label, value in self._by_label.items()})


@dataclass(frozen=True)
class Output:
    """An output text, and the attention of each of its tokens.

    Attributes:
        text: the output.
        score: what it was ranked by.
        log_prob: its log-probability.
        tokens: its tokens; the last row of the maps belongs to `</s>`, which is not among them.
        src_tokens: the tokens of the source, `</s>` last.
        token_log_probs: log-probabilities of the tokens, `</s>` last.
        maps: weights by kind, a tensor (heads, rows, columns) per layer; empty if not asked for.
            They are cut from those of the batch when they are read.
        alternatives: further outputs, best first.
        finished: False if the length limit cut the output off.
        unknown: parts of the source that the model has no token for.
        trace_maker: makes `trace`; None if maps were not asked for.
        probabilities: of all labels, the likeliest first, if targets are labels; else empty.

    Examples:
        >>> out = regard.load("g2p")("cat")
        >>> out.text, out.tokens
        ('K AE T', ['K', 'AE', 'T'])
        >>> out.maps["cross"][0].shape  # (heads, rows, columns)
        torch.Size([1, 4, 4])
        >>> out.trace
        Trace('cat' -> 'K AE T', maps=['cross'], model='g2p')
    """

    text: str
    score: float
    log_prob: float
    tokens: list[str]
    src_tokens: list[str]
    token_log_probs: list[float]
    maps: Mapping[str, tuple[Tensor, ...]]
    alternatives: tuple["Output", ...] = ()
    finished: bool = True
    unknown: tuple[str, ...] = ()
    trace_maker: Callable[[], Trace] | None = field(default=None, compare=False)
    probabilities: LabelProbabilities = field(default_factory=LabelProbabilities)

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
        """Tokens, probabilities and maps of the output, to draw and to save.

        An output that was cut off has no `</s>`, so its trace has no row for it.
        """
        if self.trace_maker is None:
            raise ArgumentError(
                "attention", "be True for a trace", False, "call the model without attention=False"
            )
        return self.trace_maker()

    def save(self, path: str | Path, **options: Any) -> None:
        """Write html, svg, png, pdf or json, by the ending; see `regard.seeing.save`."""
        self.trace.save(path, **options)

    def _repr_html_(self) -> str | None:
        """Return the figure for a notebook; None, which shows the text, if there are no maps."""
        return None if self.trace_maker is None else self.trace._repr_html_()

    def __getstate__(self) -> dict[str, Any]:
        # a copy has the trace in the place of the model that makes it
        maker = None if self.trace_maker is None else partial(replace, self.trace)
        return {**vars(self), "trace_maker": maker}
