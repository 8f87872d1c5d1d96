"""What a model answers."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.api.tracing import Traced
from regard.errors import ArgumentError
from regard.seeing import Trace
from regard.seeing.trace import brief


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
