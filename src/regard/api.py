"""Two functions and a model: `fit`, `load`, and what they return."""

import difflib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from regard import device as devices
from regard.data import pad, parse_features, source_ids
from regard.decoding import DecodingOptions, Ensemble, Hypothesis, decode, replace_unknown
from regard.errors import ArgumentError, DataError
from regard.models import SequenceModel
from regard.symbols import UNK
from regard.training import RunError, RunFolder, Saved, make_config, start_run

BATCH = 32


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
    """

    text: str
    score: float
    log_prob: float
    tokens: list[str]
    src_tokens: list[str]
    token_log_probs: list[float]
    maps: dict[str, tuple[Tensor, ...]]
    alternatives: tuple["Output", ...] = ()

    def __str__(self) -> str:
        return self.text


class Model:
    """A trained model: call it with a text, or with many."""

    def __init__(
        self, runs: Sequence[Saved], paths: Sequence[str | Path], device: torch.device
    ) -> None:
        first = runs[0]
        for other, path in zip(runs[1:], paths[1:], strict=True):
            for side in ("src_tokenizer", "tgt_tokenizer"):
                if getattr(other, side).fingerprint != getattr(first, side).fingerprint:
                    raise RunError(
                        f"runs must have the same tokens to answer together, but {path} has "
                        f"another {side} than {paths[0]}: train them on the same data with the "
                        f"same tokenisers."
                    )
        self.path, self.device, self.config = Path(paths[0]), device, first.config
        self.src_tokenizer, self.tgt_tokenizer = first.src_tokenizer, first.tgt_tokenizer
        models = [run.model for run in runs]
        self.module: SequenceModel = models[0] if len(models) == 1 else Ensemble(models)

    @overload
    def __call__(self, text: str, **options: Any) -> Output: ...

    @overload
    def __call__(self, text: Iterable[str], **options: Any) -> list[Output]: ...

    def __call__(self, text: str | Iterable[str], **options: Any) -> Output | list[Output]:
        """Answers a text, or each of several.

        Options are those of `DecodingOptions`: `beam=5`, `nbest=3`, `length_penalty=0.6`, ...; and
        `attention=False` to leave the maps out, which is faster.
        """
        if isinstance(text, str):
            return next(self.predict([text], **options))
        return list(self.predict(text, **options))

    def predict(
        self,
        texts: Iterable[str],
        *,
        attention: bool = True,
        replace_unk: bool = False,
        batch: int = BATCH,
        **options: Any,
    ) -> Iterator[Output]:
        """Answers texts one after another, as many at a time as `batch` says.

        A text may end in a tab and features, as in `write<TAB>V;PST`.
        """
        settings = _decoding_options(self.config.beam, options)
        if batch < 1:
            raise ArgumentError("batch", "be at least 1", batch, f"{BATCH} is a good size")
        chunk: list[str] = []
        for text in texts:
            self.check(text)
            chunk.append(text)
            if len(chunk) == 16 * batch:
                yield from self._chunk(chunk, settings, attention, replace_unk, batch)
                chunk = []
        yield from self._chunk(chunk, settings, attention, replace_unk, batch)

    def check(self, text: str) -> None:
        """Raises where a text cannot be a source of this model."""
        if not isinstance(text, str):
            raise ArgumentError("text", "be a string", repr(text), "convert it to one")
        allowed = 1 if self.src_tokenizer.features else 0
        if text.count("\t") > allowed:
            have = "features after one tab" if allowed else "no tab, since the run has no features"
            raise DataError(
                "text",
                None,
                f"a source must have {have}, but this one has {text.count(chr(9))}",
                "leave the targets out, for example with `cut -f1`",
            )

    def _chunk(
        self,
        texts: list[str],
        options: DecodingOptions,
        attention: bool,
        replace_unk: bool,
        batch: int,
    ) -> list[Output]:
        """Like lengths go together, so that little is padded; answers come in the order asked."""
        plain, features = zip(*(_split(text) for text in texts), strict=True) if texts else ((), ())
        ids = source_ids(self.src_tokenizer, plain, features)
        order = sorted(range(len(texts)), key=lambda i: len(ids[i]))
        answers: list[Output | None] = [None] * len(texts)
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            src, lengths = pad([ids[i] for i in rows])
            with torch.inference_mode():
                found = decode(
                    self.module,
                    src.to(self.device),
                    lengths.to(self.device),
                    options,
                    need_weights=attention or replace_unk,
                )
            for i, hypotheses in zip(rows, found, strict=True):
                answers[i] = self._output(ids[i], hypotheses, attention, replace_unk)
        return [answer for answer in answers if answer is not None]

    def _output(
        self, ids: list[int], hypotheses: Sequence[Hypothesis], attention: bool, replace_unk: bool
    ) -> Output:
        src_tokens = self.src_tokenizer.tokens(ids)
        outputs = [self._one(h, src_tokens, attention, replace_unk) for h in hypotheses]
        return replace(outputs[0], alternatives=tuple(outputs[1:]))

    def _one(
        self, found: Hypothesis, src_tokens: list[str], attention: bool, replace_unk: bool
    ) -> Output:
        text = self.tgt_tokenizer.decode(found.tokens)
        if replace_unk and UNK in found.tokens:
            text = self._without_unknown(found, src_tokens)
        return Output(
            text=text,
            score=found.score,
            log_prob=found.log_prob,
            tokens=self.tgt_tokenizer.tokens(found.tokens),
            src_tokens=src_tokens,
            token_log_probs=list(found.token_log_probs),
            maps=dict(found.attention) if attention else {},
        )

    def _without_unknown(self, found: Hypothesis, src_tokens: list[str]) -> str:
        words = replace_unknown(
            self.tgt_tokenizer.tokens(found.tokens), found.attention, src_tokens[:-1]
        )
        unknown = [word for word, i in zip(words, found.tokens, strict=True) if i == UNK]
        return self.tgt_tokenizer.decode(found.tokens, unk=unknown)


def _split(text: str) -> tuple[str, tuple[str, ...]]:
    """A text and its features, which a tab separates."""
    plain, _, features = text.partition("\t")
    return plain, parse_features(features)


def _decoding_options(beam: int, options: dict[str, Any]) -> DecodingOptions:
    try:
        return DecodingOptions(**{"beam": beam, **options})
    except TypeError as error:
        known = list(DecodingOptions.__dataclass_fields__)
        wrong = [name for name in options if name not in known]
        if not wrong:
            raise ArgumentError("options", "be numbers", f"{options} ({error})", "check") from None
        close = difflib.get_close_matches(wrong[0], known, n=1, cutoff=0.0)[0]
        raise ArgumentError(
            "option", f"be one of {', '.join(known)}", repr(wrong[0]), f"perhaps {close!r} is meant"
        ) from None


def load(*runs: str | Path, device: str = "auto") -> Model:
    """The model of a run folder; of several, their ensemble."""
    if not runs:
        raise ArgumentError("runs", "be one folder or more", "missing", "name a run folder")
    where = devices.pick(device)
    return Model([RunFolder(run).load(where) for run in runs], runs, where)


def fit(
    pairs: str | Path | Iterable[tuple[str, ...]],
    preset: str = "bahdanau",
    *,
    output: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Model:
    """Trains a model and returns it.

    Args:
        pairs: a file, or tuples of source and target.
        preset: the model, by name.
        output: the run folder; a temporary one if None.
        quiet: whether to show nothing.
        settings: those of `regard.training.Config`, and sizes of the preset: `steps=2000`, ...
    """
    folder = Path(tempfile.mkdtemp(prefix="regard-")) / "run" if output is None else Path(output)
    if isinstance(pairs, str | Path):
        config = make_config({"data": str(pairs), "preset": preset, **settings})
        start_run(config, folder, quiet=quiet)
    else:
        rows = [tuple(pair) for pair in pairs]
        start_run(make_config({"preset": preset, **settings}), folder, pairs=rows, quiet=quiet)
    return load(folder, device=str(settings.get("device", "auto")))
