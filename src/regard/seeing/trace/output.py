"""Outputs of models: of our own, and of those of transformers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from jaxtyping import Float

from regard.errors import ArgumentError
from regard.seeing.trace.trace import Trace, brief

NO_VALUES: Final = np.zeros(0, np.float32)


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
        maps: weights by kind, a tensor (heads, rows, columns) per layer, or an array if
            transformers runs the model; empty if not asked for. Our own are cut from those of the
            batch when they are read.
        alternatives: further outputs, best first.
        finished: False if the length limit cut the output off.
        unknown: parts of the source that the model has no token for.
        trace_maker: makes `trace`; None if maps were not asked for.
        probabilities: of all labels, the likeliest first, if targets are labels; else empty.
        prompt: what a model of transformers has read; the rendered template of a chat.
        continues: whether the output continues the prompt, as that of a decoder-only model.

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
    maps: Mapping[str, tuple[Any, ...]]
    alternatives: tuple["Output", ...] = ()
    finished: bool = True
    unknown: tuple[str, ...] = ()
    trace_maker: Callable[[], Trace] | None = field(default=None, compare=False)
    probabilities: LabelProbabilities = field(default_factory=LabelProbabilities)
    prompt: str = ""
    continues: bool = False

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        parts = [brief(self.text), f"score={self.score:.4g}"]
        parts += [f"prompt={brief(self.prompt)}"] * bool(self.prompt)
        parts += [f"maps={list(self.maps)}"] * bool(self.maps)
        parts += [f"alternatives={len(self.alternatives)}"] * bool(self.alternatives)
        parts += ["finished=False"] * (not self.finished)
        return f"Output({', '.join(parts)})"

    @property
    def whole_text(self) -> str:
        """The prompt and the output where the output continues it; else the output."""
        return self.prompt + self.text if self.continues else self.text

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
