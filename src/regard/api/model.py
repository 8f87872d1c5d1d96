"""A trained model that answers texts, or vectors."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, overload

import torch
from torch import Tensor

from regard.api.cpu_parallel import map_batches
from regard.api.ensemble_files import check_same_tokens, copy_run
from regard.api.faithfulness import checked
from regard.api.output import (
    EvaluationResult,
    Output,
    Traced,
    check_kinds,
    how_decoded,
    model_info,
    next_log_probs,
    with_alternatives,
    with_probs,
)
from regard.api.request import (
    PredictRequest,
    check_has_sources,
    check_reads_texts,
    decoding_options,
    in_chunks,
)
from regard.data import FrameScaler, Tokenizer, require_tokenizer
from regard.decoding import DecodingOptions, Ensemble, Hypothesis, decode, force_decode
from regard.decoding_options import check_least
from regard.errors import ArgumentError, DataError
from regard.evaluation import Perplexity, perplexity
from regard.kinds.text_source import Source, text_given, text_written
from regard.models import SequenceModel
from regard.seeing import DecodingInfo, ModelInfo, Text, Trace
from regard.seeing.alignment import Links
from regard.symbols import UNK
from regard.training import Saved

BATCH: Final = 32


class Model:
    """A trained model: call it with a text, or with many.

    Where sources are vectors, a text is a table (frames, features) in an array, a tensor or lists,
    or the name of a .npy file.
    """

    def __init__(
        self, runs: Sequence[Saved], paths: Sequence[str | Path], device: torch.device
    ) -> None:
        first = runs[0]
        check_same_tokens(runs, paths)
        self.path, self.device, self.config = Path(paths[0]), device, first.config
        self._paths = [Path(path) for path in paths]
        self._presets = [run.config.preset for run in runs]
        self.source, self.tgt_tokenizer = first.src_tokenizer, first.tgt_tokenizer
        self.kind = first.kind
        self._side = self.kind.sources
        models = [run.model for run in runs]
        self.module: SequenceModel = models[0] if len(models) == 1 else Ensemble(models)

    def __repr__(self) -> str:
        weights = sum(weight.numel() for weight in self.module.parameters())
        parts = {
            "preset": " + ".join(dict.fromkeys(self._presets)),
            "size": self.config.size,
            "weights": weights,
            "reads": self.source.summary,
            "writes": self.tgt_tokenizer.summary,
            "device": str(self.device),
        }
        shown = ", ".join(f"{name}={value!r}" for name, value in parts.items())
        return f"Model({' + '.join(map(str, self._paths))!r}, {shown})"

    @property
    def src_tokenizer(self) -> Tokenizer:
        """What cuts sources into tokens; raises where they are vectors."""
        return require_tokenizer(self.source, "what is asked for")

    @property
    def features(self) -> tuple[str, ...]:
        """The features that sources may have after a tab."""
        return () if isinstance(self.source, FrameScaler) else self.source.features

    @cached_property
    def info(self) -> ModelInfo:
        """Which model it is, as traces name it."""
        return model_info(self._paths, self._presets)

    @overload
    def __call__(self, text: str, **options: Any) -> Output: ...

    @overload
    def __call__(self, text: Iterable[str], **options: Any) -> list[Output]: ...

    @overload
    def __call__(self, text: Any, **options: Any) -> Any: ...

    def __call__(self, text: Any, **options: Any) -> Any:
        """Answers a text, or each of several; a language model goes on with it.

        Options are those of `DecodingOptions`: `beam=5`, `nbest=3`, `length_penalty=0.6`, ...; and
        `attention=False` to leave the maps out, which is faster.
        """
        if self._side.is_one(text):
            return next(self.predict([text], **options))
        return list(self.predict(text, **options))

    def predict(
        self,
        texts: Iterable[Any],
        *,
        attention: bool = True,
        kinds: Collection[str] | None = None,
        replace_unk: bool = False,
        batch: int = BATCH,
        **options: Any,
    ) -> Iterator[Output]:
        """Answers texts one after another, as many at a time as `batch` says.

        Args:
            texts: sources. Where a run has features, a string may end in a tab and some, as in
                `write<TAB>V;PST`; a `regard.api.Source` has them beside its text. Of a language
                model, how its answers begin.
            attention: whether answers carry where the model looked.
            kinds: which maps they carry then; all that the model has if None.
            replace_unk: whether unknown words become the source word most looked at.
            batch: sources at a time. More are read ahead, to answer like lengths together; with 1
                each is answered before the next is read.
            options: those of `DecodingOptions`.
        """
        self._side.check_several(texts)
        settings = decoding_options(self.config, options)
        wish = PredictRequest(settings, attention, check_kinds(kinds), replace_unk)
        wish.check(self.config)
        check_least(1, batch=batch)
        seeds = wish.seeds()
        for chunk, asked in in_chunks(texts, self.check_fit, batch, wish):
            yield from self._chunk(chunk, asked, batch, seeds)

    def check_source(self, text: Any) -> None:
        """Raises where a line of text, or a table of vectors, cannot be a source of this model.

        A line must have no tab but the one before its features.
        """
        self._side.check_line(text)
        self.check_fit(text)

    def check_target(self, target: str) -> None:
        """Raises where the model has too few positions to write a target."""
        self._target_ids(target)

    def check_fit(self, text: Any) -> None:
        """Raises for what is no source, and for one with more positions than the model has."""
        self._side.check(text)
        # a language model writes its source, `bos` in the place of `eos`
        reads_texts = self.config.reads_texts
        most = self.module.tgt_positions if reads_texts else self.module.src_positions
        if most is None:
            return
        (row,) = self._side.rows([text])
        count = len(self._side.labels(row))
        if count > most:
            raise _too_long("source", count, most)

    def trace(
        self,
        text: Any,
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
                `encoder-future`, `decoder-history`, `memory`; all that the model has if None.
            options: of decoding, as for a call; without effect if `target` is given.
        """
        ((_, found),) = self._traces([text], _alone(target), kinds, options)
        return found

    def traces(
        self,
        texts: Sequence[Any],
        targets: Sequence[str] | None = None,
        *,
        kinds: Collection[str] | None = None,
        **options: Any,
    ) -> list[Trace]:
        """What `trace` gives for each of several texts, worked out as one batch."""
        return [found for _, found in self._traces(texts, targets, kinds, options)]

    def check(self, text: Any, target: str | None = None, **options: Any) -> Trace:
        """The trace with what mattered beside what was looked at; see `seeing.checks.check`.

        Args:
            text: the source.
            target: what the model is made to write; its own answer if None.
            options: of decoding, as for a call; without effect if `target` is given.
        """
        check_has_sources(self.config)
        ((tgt, trace),) = self._traces([text], _alone(target), None, options)
        (row,) = self.source_ids([text])
        batch, unknown = self.on_device([row]), self._side.replacements(row)
        most = options.get("max_len")
        return checked(self.module, self.tgt_tokenizer, row, batch, tgt, trace, unknown, most)

    def perplexity(self, texts: str | Iterable[str]) -> Perplexity:
        """How well a language model foresees a text, or several, each by itself.

        A text may have many lines: each is then foreseen with those before it.
        """
        check_reads_texts(self.config)
        several = [texts] if isinstance(texts, str) else list(texts)
        for text in several:
            self.check_fit(text)
        return perplexity(self.module, self.tgt_tokenizer, several)

    def evaluate(
        self,
        pairs: str | Path | Iterable[Any],
        metric: str | Sequence[str] | None = None,
        *,
        beam: int | None = None,
        tgt_file: str | Path | None = None,
        columns: Sequence[int | str] | None = None,
        skip_bad: bool = False,
    ) -> EvaluationResult:
        """How good the answers to pairs are: what `regard evaluate` shows, in `rows`.

        Answers and targets are compared in the form of the target tokeniser, see
        `Tokenizer.normalize`; the signature of each row names it.

        Args:
            pairs: as for `fit`. What follows source and target is features if the run has some,
                else further accepted targets.
            metric: one, as "bleu", or several; those that suit the target if None.
            beam: width of the search; that of the run if None.
            tgt_file: the targets, if they are another file than the sources.
            columns: source, target and, if any, features: names, or numbers from 0.
            skip_bad: whether bad lines are left out; otherwise the first one raises.
        """
        from regard.api.evaluate_pairs import evaluate  # which knows what a model is

        how = {"tgt_file": tgt_file, "columns": columns, "skip_bad": skip_bad}
        return evaluate(self, pairs, metric, beam, **how)

    def align(
        self,
        pairs: str | Path | Iterable[Any],
        *,
        words: bool | None = None,
        tgt_file: str | Path | None = None,
        columns: Sequence[int | str] | None = None,
        skip_bad: bool = False,
    ) -> list[Links]:
        """Which source and target words belong together: what `regard align` writes without gold.

        For each pair, links of (source, target) counted from 0; none for a bad line left out.

        Args:
            pairs: as for `evaluate`, and so are all that are not named here.
            words: whether words are linked, or tokens; if None, words, but letters of a side that
                is read by letters.
            tgt_file: as there.
            columns: as there.
            skip_bad: as there.
        """
        from regard.api.word_alignment import align_by_mean  # which knows what a model is

        how = {"tgt_file": tgt_file, "columns": columns, "skip_bad": skip_bad}
        return align_by_mean(self, pairs, words, **how)

    def save(self, folder: str | Path) -> Path:
        """Copies the run to a folder, for `regard.load` and the command line; gives its path.

        A model that `fit` made without `output` lies in a temporary folder until then.

        Args:
            folder: a new one, or an empty one.
        """
        return copy_run(self._paths, folder)

    def _traces(
        self,
        texts: Sequence[Any],
        targets: Sequence[str] | None,
        kinds: Collection[str] | None,
        options: dict[str, Any],
    ) -> list[tuple[list[int], Trace]]:
        """For each text the ids of its target, and the trace."""
        self._side.check_several(texts)
        for text in texts:
            self.check_fit(text)
        settings, wanted = decoding_options(self.config, options), check_kinds(kinds)
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
            pairs = zip(map(Source, targets), forced, strict=True)
            written = [text_given(tgt, *pair) for pair in pairs]
            decoded = [DecodingInfo(log_prob=h.log_prob) for h in found]
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
        ids = self.tgt_tokenizer.encode(target)
        most = self.module.tgt_positions
        if most is not None and len(ids) >= most:
            raise _too_long("target", len(ids), most - 1)
        return ids

    def _traced(
        self, text: Any, ids: Any, written: Text, found: Hypothesis, decoded: DecodingInfo
    ) -> Traced:
        source = self._side.text(text, ids)
        target = with_probs(written, found.token_log_probs)
        notes = self._side.notes(source)
        return Traced(source, target, self.info, decoded, self.config.reads_texts, notes)

    def source_ids(self, texts: Sequence[Any]) -> list[Any]:
        """Sources as the model reads them: ids of tokens, features, `eos`; or a table of each."""
        return self._side.rows(texts)

    def source_labels(self, source: Any) -> list[str]:
        """Return a name for each position that the model reads of a source."""
        (row,) = self.source_ids([source])
        return self._side.text(source, row).labels

    def begun(self, options: DecodingOptions, ids: Sequence[Any]) -> DecodingOptions:
        """The options for these sources. A language model must begin with what it was given.

        A prefix that stands alone is that of every source.
        """
        if self.config.reads_texts:
            return replace(options, prefix=[row[:-1] for row in ids])
        prefix = options.prefix or ()
        return replace(options, prefix=[*prefix] * len(ids)) if len(prefix) == 1 else options

    def _unknown(self, text: Any) -> list[str]:
        """The words that a language model does not know of what it goes on with, to be kept."""
        if not self.config.reads_texts:
            return []
        text = Source.of(self.src_tokenizer, text).text
        ids, spans = self.src_tokenizer.encode(text), self.src_tokenizer.spans(text)
        return [text[slice(*span)] for i, span in zip(ids, spans, strict=True) if i == UNK]

    def on_device(self, ids: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Sources as one padded batch where the model is, and their lengths."""
        src, lengths = self._side.batch(ids)
        if src.is_floating_point():
            src = src.to(next(self.module.parameters()).dtype)
        return src.to(self.device), lengths.to(self.device)

    def _chunk(
        self, texts: list[Any], wish: PredictRequest, batch: int, seeds: Iterator[int | None]
    ) -> list[Output]:
        """Like lengths go together, so that little is padded; answers come in the order asked."""
        ids = self.source_ids(texts)
        order = sorted(range(len(texts)), key=lambda i: len(ids[i]))
        rows = [order[start : start + batch] for start in range(0, len(order), batch)]
        found = map_batches(
            self.module,
            self.device,
            lambda part: self._decoded([ids[i] for i in part[0]], wish.of(part[0]).seeded(part[1])),
            list(zip(rows, seeds, strict=False)),
            in_order=bool(wish.options.num_samples),
        )
        answers = {
            i: self._output(texts[i], ids[i], hypotheses, wish)
            for batch_rows, answered in zip(rows, found, strict=True)
            for i, hypotheses in zip(batch_rows, answered, strict=True)
        }
        return [answers[i] for i in range(len(texts))]

    def _decoded(self, ids: list[Any], wish: PredictRequest) -> list[list[Hypothesis]]:
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
        self, text: Any, ids: Any, hypotheses: Sequence[Hypothesis], wish: PredictRequest
    ) -> Output:
        outputs = [self._one(text, ids, h, rank, wish) for rank, h in enumerate(hypotheses)]
        return replace(outputs[0], alternatives=tuple(outputs[1:]))

    def _one(
        self, text: Any, ids: Any, found: Hypothesis, rank: int, wish: PredictRequest
    ) -> Output:
        src_tokens, tgt = self._side.labels(ids), self.tgt_tokenizer
        unk = (
            self._side.replaced(tgt, found, text, ids) if wish.replace_unk else self._unknown(text)
        )
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
            unknown=self._side.unknown(text, ids),
            traced=traced,
        )


def _too_long(name: str, count: int, most: int) -> DataError:
    return DataError(
        name,
        None,
        f"the {name} must have at most {most} tokens, for which the model has positions, but it "
        f"has {count}",
        "shorten it, or train with a larger max_len",
        kind="too long",
    )


def _alone(target: str | None) -> list[str] | None:
    return None if target is None else [target]
