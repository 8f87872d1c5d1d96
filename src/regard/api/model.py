"""A trained model that answers texts."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, overload

import torch
from torch import Tensor

from regard.api.asking import Wish, check_several, decoding_options
from regard.api.checking import checked
from regard.api.keeping import copy_run
from regard.api.output import Output
from regard.api.texts import text_given, text_written, unknown_in, unknown_note, words_of
from regard.api.together import each
from regard.api.tracing import (
    Traced,
    check_kinds,
    how_decoded,
    model_info,
    next_log_probs,
    with_alternatives,
    with_probs,
)
from regard.data import pad, parse_features
from regard.data import source_ids as encoded
from regard.decoding import (
    DecodingOptions,
    Ensemble,
    Hypothesis,
    decode,
    force_decode,
    replace_unknown,
)
from regard.errors import ArgumentError, DataError, RegardError
from regard.evaluation import Perplexity, perplexity
from regard.models import TEXT_PRESETS, SequenceModel
from regard.seeing import Decoded, ModelInfo, Text, Trace
from regard.symbols import UNK
from regard.training import RunError, Saved

BATCH: Final = 32


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
        self._paths = [Path(path) for path in paths]
        self._presets = [run.config.preset for run in runs]
        self.src_tokenizer, self.tgt_tokenizer = first.src_tokenizer, first.tgt_tokenizer
        models = [run.model for run in runs]
        self.module: SequenceModel = models[0] if len(models) == 1 else Ensemble(models)

    @cached_property
    def info(self) -> ModelInfo:
        """Which model it is, as traces name it."""
        return model_info(self._paths, self._presets)

    @overload
    def __call__(self, text: str, **options: Any) -> Output: ...

    @overload
    def __call__(self, text: Iterable[str], **options: Any) -> list[Output]: ...

    def __call__(self, text: str | Iterable[str], **options: Any) -> Output | list[Output]:
        """Answers a text, or each of several; a language model goes on with it.

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
        kinds: Collection[str] | None = None,
        replace_unk: bool = False,
        batch: int = BATCH,
        **options: Any,
    ) -> Iterator[Output]:
        """Answers texts one after another, as many at a time as `batch` says.

        Args:
            texts: sources; each may end in a tab and features, as in `write<TAB>V;PST`. Of a
                language model, how its answers begin.
            attention: whether answers carry where the model looked.
            kinds: which maps they carry then; all that the model has if None.
            replace_unk: whether unknown words become the source word most looked at.
            batch: sources at a time.
            options: those of `DecodingOptions`.
        """
        check_several(texts)
        settings = decoding_options(self.config.beam, options)
        wish = Wish(settings, attention, check_kinds(kinds), replace_unk)
        if replace_unk and self.config.reads_texts:
            raise ArgumentError(
                "replace_unk", "be left out for a language model", True, "it has no source to copy"
            )
        if batch < 1:
            raise ArgumentError("batch", "be at least 1", batch, f"{BATCH} is a good size")
        chunk: list[str] = []
        before = 0
        for text in texts:
            self.check_source(text)
            chunk.append(text)
            if len(chunk) == 16 * batch:
                now = range(before, before + len(chunk))
                yield from self._chunk(chunk, wish.of(now), batch)
                before, chunk = before + len(chunk), []
        yield from self._chunk(chunk, wish.of(range(before, before + len(chunk))), batch)

    def check_source(self, text: str) -> None:
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

    def trace(
        self,
        text: str,
        target: str | None = None,
        *,
        kinds: Collection[str] | None = None,
        **options: Any,
    ) -> Trace:
        """Where each position looked while the model answered a text.

        Args:
            text: the source; of a language model, how its answer begins.
            target: what the model is made to write; its own answer if None.
            kinds: which maps to keep: `cross`, `encoder-self`, `decoder-self`, `encoder-history`,
                `decoder-history`, `memory`; all that the model has if None.
            options: of decoding, as for a call; without effect if `target` is given.
        """
        ((_, found),) = self._traces([text], _alone(target), kinds, options)
        return found

    def traces(
        self,
        texts: Sequence[str],
        targets: Sequence[str] | None = None,
        *,
        kinds: Collection[str] | None = None,
        **options: Any,
    ) -> list[Trace]:
        """What `trace` gives for each of several texts, worked out as one batch."""
        return [found for _, found in self._traces(texts, targets, kinds, options)]

    def check(self, text: str, target: str | None = None, **options: Any) -> Trace:
        """The trace with what mattered beside what was looked at; see `seeing.checks.check`.

        Args:
            text: the source.
            target: what the model is made to write; its own answer if None.
            options: of decoding, as for a call; without effect if `target` is given.
        """
        if self.config.reads_texts:
            raise RegardError(
                "a check must have a source whose tokens can be taken away, but a language model "
                "has none: see where it looked with `regard show` or Model.trace."
            )
        ((tgt, trace),) = self._traces([text], _alone(target), None, options)
        (src,) = self.source_ids([text])
        return checked(self.module, self.src_tokenizer, self.tgt_tokenizer, src, tgt, trace)

    def perplexity(self, texts: str | Iterable[str]) -> Perplexity:
        """How well a language model foresees a text, or several, each by itself.

        A text may have many lines: each is then foreseen with those before it.
        """
        if not self.config.reads_texts:
            raise RegardError(
                f"perplexity must be asked of a language model, but the preset of this run is "
                f"{self.config.preset}: train one of {', '.join(TEXT_PRESETS)}."
            )
        several = [texts] if isinstance(texts, str) else list(texts)
        for text in several:
            self.check_source(text)
        return perplexity(self.module, self.tgt_tokenizer, several)

    def save(self, folder: str | Path) -> Path:
        """Copies the run to a folder, for `regard.load` and the command line; gives its path.

        A model that `fit` made without `output` lies in a temporary folder until then.

        Args:
            folder: a new one, or an empty one.
        """
        if len(self._paths) > 1:
            raise RunError(
                f"one run can be saved, but this model has {len(self._paths)}: load and save each "
                f"of them alone."
            )
        return copy_run(self.path, folder)

    def _traces(
        self,
        texts: Sequence[str],
        targets: Sequence[str] | None,
        kinds: Collection[str] | None,
        options: dict[str, Any],
    ) -> list[tuple[list[int], Trace]]:
        """For each text the ids of its target, and the trace."""
        for text in texts:
            self.check_source(text)
        settings, wanted = decoding_options(self.config.beam, options), check_kinds(kinds)
        ids, tgt = self.source_ids(texts), self.tgt_tokenizer
        src, lengths = self.on_device(ids)
        if targets is None:
            begun = self.begun(settings, ids)
            best = decode(self.module, src, lengths, begun, need_weights=True, kinds=wanted)
            found = [hypotheses[0] for hypotheses in best]
            written = [
                text_written(tgt, h.tokens, unk=self._unknown(text), finished=h.finished)
                for h, text in zip(found, texts, strict=True)
            ]
            decoded = [how_decoded(settings, h) for h in found]
        else:
            forced = [self._target_ids(target) for target in targets]
            found = force_decode(self.module, src, lengths, forced, settings, kinds=wanted)
            written = [text_given(tgt, *pair) for pair in zip(targets, forced, strict=True)]
            decoded = [Decoded(log_prob=h.log_prob) for h in found]
        others = next_log_probs(self.module, src, lengths, [h.tokens for h in found])
        traces = []
        for i, h in enumerate(found):
            shown = with_alternatives(written[i], others[i], h.tokens, tgt)
            traced = self._traced(texts[i], ids[i], shown, h, decoded[i])
            traces.append((h.tokens, traced.trace(h.attention)))
        return traces

    def _target_ids(self, target: str) -> list[int]:
        if not isinstance(target, str):
            raise ArgumentError("target", "be a string", repr(target), "convert it to one")
        return self.tgt_tokenizer.encode(target)

    def _traced(
        self, text: str, ids: list[int], written: Text, found: Hypothesis, decoded: Decoded
    ) -> Traced:
        source = text_given(self.src_tokenizer, text, ids[:-1])
        target = with_probs(written, found.token_log_probs)
        notes = unknown_note(self.src_tokenizer, source)
        return Traced(source, target, self.info, decoded, self.config.reads_texts, notes)

    def _not_known(self, text: str, ids: list[int]) -> tuple[str, ...]:
        if UNK not in ids:
            return ()
        return unknown_in(text_given(self.src_tokenizer, text, ids[:-1]))

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Sources as the model reads them: tokens, features, `eos`."""
        plain, features = zip(*(_split(text) for text in texts), strict=True) if texts else ((), ())
        return encoded(self.src_tokenizer, plain, features)

    def begun(self, options: DecodingOptions, ids: Sequence[list[int]]) -> DecodingOptions:
        """The options for these sources. A language model must begin with what it was given.

        A prefix that stands alone is that of every source.
        """
        if self.config.reads_texts:
            return replace(options, prefix=[row[:-1] for row in ids])
        prefix = options.prefix or ()
        return replace(options, prefix=[*prefix] * len(ids)) if len(prefix) == 1 else options

    def _unknown(self, text: str) -> list[str]:
        """The words that a language model does not know of what it goes on with, to be kept."""
        if not self.config.reads_texts:
            return []
        ids, spans = self.src_tokenizer.encode(text), self.src_tokenizer.spans(text)
        return [text[slice(*span)] for i, span in zip(ids, spans, strict=True) if i == UNK]

    def on_device(self, ids: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Sources as one padded batch where the model is, and their lengths."""
        src, lengths = pad(ids)
        return src.to(self.device), lengths.to(self.device)

    def _chunk(self, texts: list[str], wish: Wish, batch: int) -> list[Output]:
        """Like lengths go together, so that little is padded; answers come in the order asked."""
        ids = self.source_ids(texts)
        order = sorted(range(len(texts)), key=lambda i: len(ids[i]))
        rows = [order[start : start + batch] for start in range(0, len(order), batch)]
        found = each(
            self.module,
            self.device,
            lambda batch: self._decoded([ids[i] for i in batch], wish.of(batch)),
            rows,
            in_order=bool(wish.options.num_samples),
        )
        answers = {
            i: self._output(texts[i], ids[i], hypotheses, wish)
            for batch_rows, answered in zip(rows, found, strict=True)
            for i, hypotheses in zip(batch_rows, answered, strict=True)
        }
        return [answers[i] for i in range(len(texts))]

    def _decoded(self, ids: list[list[int]], wish: Wish) -> list[list[Hypothesis]]:
        src, lengths = self.on_device(ids)
        return decode(
            self.module,
            src,
            lengths,
            self.begun(wish.options, ids),
            need_weights=bool(wish.needed),
            kinds=wish.needed,
        )

    def _output(
        self, text: str, ids: list[int], hypotheses: Sequence[Hypothesis], wish: Wish
    ) -> Output:
        outputs = [self._one(text, ids, h, rank, wish) for rank, h in enumerate(hypotheses)]
        return replace(outputs[0], alternatives=tuple(outputs[1:]))

    def _one(self, text: str, ids: list[int], found: Hypothesis, rank: int, wish: Wish) -> Output:
        src_tokens, tgt = self.src_tokenizer.tokens(ids), self.tgt_tokenizer
        unk = self._replaced(found, text, ids) if wish.replace_unk else self._unknown(text)
        traced = None
        if wish.attention:
            written = text_written(tgt, found.tokens, unk=unk, finished=found.finished)
            decoded = how_decoded(wish.options, found, rank)
            traced = self._traced(text, ids, written, found, decoded)
        return Output(
            text=tgt.decode(found.tokens, unk=unk),
            score=found.score,
            log_prob=found.log_prob,
            tokens=tgt.tokens(found.tokens),
            src_tokens=src_tokens,
            token_log_probs=list(found.token_log_probs),
            maps={kind: m for kind, m in found.attention.items() if kind in wish.shown},
            finished=found.finished,
            unknown=self._not_known(text, ids),
            traced=traced,
        )

    def _replaced(self, found: Hypothesis, text: str, ids: list[int]) -> list[str]:
        """What stands for each unknown word."""
        if UNK not in found.tokens:
            return []
        tokens = self.tgt_tokenizer.tokens(found.tokens)
        given = words_of(text_given(self.src_tokenizer, text, ids[:-1]))
        words = replace_unknown(tokens, found.attention, given)
        return [word for word, i in zip(words, found.tokens, strict=True) if i == UNK]


def _alone(target: str | None) -> list[str] | None:
    return None if target is None else [target]


def _split(text: str) -> tuple[str, tuple[str, ...]]:
    """A text and its features, which a tab separates."""
    plain, _, features = text.partition("\t")
    return plain, parse_features(features)
