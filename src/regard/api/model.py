"""A trained model: predict, trace, evaluate, align, save."""

import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from regard import device as devices
from regard import safe_read
from regard.api.evaluate_pairs import (
    EvaluationResult,
    check_pairs,
    known_pairs,
    metric_names,
    read_for,
    score_predictions,
)
from regard.api.predictor import (
    Predictor,
    PredictRequest,
    check_kinds,
    decoding_options,
    refuse_for_numbers,
    run_what_if,
)
from regard.api.tables import (
    answer_row,
    column_values,
    pair_with,
    read_labels,
    table_like,
    table_sources,
)
from regard.api.word_alignment import align_best
from regard.atomic_files import atomic_folder
from regard.data import Pair, Tokenizer, require_tokenizer
from regard.decoding import Ensemble
from regard.decoding_options import check_least
from regard.errors import ArgumentError, RegardError
from regard.evaluation import Perplexity, perplexity
from regard.messages import use_language
from regard.models import TEXT_PRESETS, SequenceModel
from regard.models.protocol import require_sequence_model
from regard.seeing import ModelInfo, Trace
from regard.seeing.attribution.interventions import (
    AttentionCell,
    Intervention,
    WhatIf,
    check_seeded,
)
from regard.seeing.attribution.methods import method_names
from regard.seeing.trace.output import Output
from regard.seeing.trace.view import Links
from regard.tasks import ScoreTable
from regard.tasks.inputs.base import is_table
from regard.tasks.outputs.number import NumberPrediction
from regard.training import RunError, RunFolder, Saved


class Model:
    """A trained model, or an ensemble: call it with a text, or with many.

    Where sources are vectors, a text is a table (frames, features) in an array, a tensor or lists,
    or the name of a .npy file.

    Examples:
        >>> model = regard.load("g2p")
        >>> out = model("attention")
        >>> out
        Output('AH T EH N SH AH N', score=-0.5..., maps=['cross'])
        >>> model(["one", "two"], beam=4)[1].text
        'T UW'
        >>> model.evaluate([("one", "W AH N"), ("two", "T UW")], "per")
        EvaluationResult(pairs=2, per=0)
    """

    def __init__(
        self, runs: Sequence[Saved], paths: Sequence[str | Path], device: torch.device
    ) -> None:
        first = runs[0]
        _check_ensemble(runs, paths)
        self.path, self.device, self.config = Path(paths[0]), device, first.config
        self.task = first.task
        self.source = first.src_tokenizer
        alone = len(runs) == 1
        self.trained = first.model if alone else Ensemble([run.sequence_model for run in runs])
        presets = [run.config.preset for run in runs]
        self.predictor = Predictor(self.trained, self.task, device, list(map(Path, paths)), presets)
        #: labels that are no texts, by their text, and the type of their column, by library
        self.label_values, self.label_types = read_labels(self.path), dict[str, Any]()

    def __repr__(self) -> str:
        with use_language("en"):
            reads, writes = self.source.summary, self.task.encoders.target.summary
        parts = {
            "preset": " + ".join(dict.fromkeys(self.predictor.presets)),
            "size": self.config.size,
            "weights": sum(weight.numel() for weight in self.trained.parameters()),
            "reads": reads,
            "writes": writes,
            "device": str(self.device),
        }
        shown = ", ".join(f"{name}={value!r}" for name, value in parts.items())
        return f"Model({' + '.join(map(str, self.predictor.paths))!r}, {shown})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the files of the run but its data and checkpoints: a pickled model has them."""
        kept = [p for p in self._only_run().iterdir() if p.suffix in (".json", ".safetensors")]
        files = {path.name: safe_read.read_bytes(path, None, inside=self.path) for path in kept}
        return {"files": files, "types": self.label_types, "device": self.device.type}

    def __setstate__(self, state: dict[str, Any]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="regard-"))
        for name, content in state["files"].items():
            (folder / name).write_bytes(content)
        device = devices.pick("cpu" if state["device"] == "cpu" else "auto")
        self.__init__([RunFolder(folder).load(device)], [folder], device)  # type: ignore[misc]
        self.label_types = state["types"]

    @property
    def module(self) -> SequenceModel:
        """The model, or an `Ensemble`; raises RegardError if it predicts numbers."""
        return require_sequence_model(self.trained, "what is asked for")

    @property
    def tgt_tokenizer(self) -> Tokenizer:
        """The tokeniser of targets; raises RegardError if these are numbers."""
        return self.task.target

    @property
    def src_tokenizer(self) -> Tokenizer:
        """The tokeniser of sources; raises if these are vectors."""
        return require_tokenizer(self.source, "what is asked for")

    @property
    def features(self) -> tuple[str, ...]:
        """The features that sources may have after a tab."""
        return self.task.input.feature_names

    @property
    def classes_(self) -> np.ndarray:
        """The labels, sorted, of the type that they had in training; only of a run of labels."""
        if not self.task.labels:
            raise AttributeError(f"classes_ are of a model of labels, and {self.path} is of others")
        return np.unique([self.label_values.get(text, text) for text in self.task.labels])

    @property
    def info(self) -> ModelInfo:
        """Name, preset and checkpoint, as traces hold them."""
        return self.predictor.info

    @overload
    def __call__(self, text: str, **options: Any) -> Output: ...

    @overload
    def __call__(self, text: Iterable[str], **options: Any) -> list[Output]: ...

    @overload
    def __call__(self, text: Any, **options: Any) -> Any: ...

    def __call__(self, text: Any, **options: Any) -> Any:
        """Return the output of a text, or of each of several; a language model continues it.

        Options are those of `DecodingOptions`: `beam=5`, `nbest=3`, `length_penalty=0.6`, ...; and
        `attention=False` to leave the maps out, which is faster.
        """
        if self.task.input.is_one(text):
            return next(self.predict([text], **options))
        found = self.predict(text, **options)
        return list(found) if isinstance(found, Iterator) else found

    def predict(
        self,
        texts: Any,
        *,
        attention: bool = True,
        kinds: Collection[str] | None = None,
        batch: int | None = None,
        **options: Any,
    ) -> Any:
        """Return an iterator over an output for each text, in order; of a table, a table.

        A table of answers is of the same library, with the same index, and has the columns
        `answer`, `confidence` (the probability of a label, or of all tokens of a text; numbers have
        none) and, with `nbest=3`, `alternatives`. Labels are of the type that they had in training.

        Args:
            texts: sources, or a table of pandas, polars, pyarrow or datasets that has them in the
                column of training. Where a run has features, a string may end in a tab and some,
                as in `write<TAB>V;PST`; a `regard.api.Source` has them beside its text. Of a
                language model, the beginnings of its outputs.
            attention: whether outputs carry attention maps; those of a table have none.
            kinds: the maps that they carry then; all that the model has if None.
            batch: sources at a time; None is 32 on a CPU, or 64 if each core has so many then, and
                on a GPU as many tokens as suit its memory. More are read ahead, to batch like
                lengths together; with 1 each is answered before the next is read.
            options: those of `DecodingOptions`.
        """
        table = is_table(texts) and not self.task.input.is_one(texts)
        sources = table_sources(self.task, texts) if table else column_values(texts)
        how = {"attention": attention and not table, "kinds": kinds}
        found = self._outputs(sources, batch, how, options)
        if not table:
            return found
        others = int(options.get("nbest", 1)) - 1
        rows = [answer_row(output, self.label_values, others) for output in found]
        return table_like(texts, rows, self.label_types)

    def _outputs(
        self, texts: Iterable[Any], batch: int | None, how: dict[str, Any], options: dict[str, Any]
    ) -> Iterator[Output]:
        self.task.input.check_several(texts)
        settings = decoding_options(self.task, self.config.beam, options)
        request = PredictRequest(settings, **{**how, "kinds": check_kinds(how["kinds"])})
        if batch is not None:
            check_least(1, batch=batch)
        if self.task.numbers is not None:
            found = self.task.numbers.predictions(self.trained, texts, self.device)
            yield from map(self._named, found)
        else:
            yield from self.predictor.predict(texts, request, batch)

    def _named(self, found: Any) -> Any:
        """Return a prediction of numbers whose trace names the model; a forecast has none."""
        if isinstance(found, NumberPrediction):
            return replaced(found, trace=self._named(found.trace))
        return replaced(found, model=self.info) if isinstance(found, Trace) else found

    def check_source(self, text: Any, *, line: bool = True) -> None:
        """Raises if a line of text, or a table of vectors, cannot be a source of this model.

        A line must have no tab but the one before its features; the cell of a table may have some.
        """
        self.task.input.parse(text, line=line)
        self.predictor.check_source(text)

    def check_target(self, target: str) -> None:
        """Raises if the model has too few positions to write a target."""
        self.predictor.target_ids(target)

    def source_ids(self, texts: Sequence[Any]) -> list[Any]:
        """Encode sources: ids of tokens, features and `eos`; or a table of each."""
        return self.task.input.rows(texts)

    def source_labels(self, source: Any) -> list[str]:
        """Return a label for each position that the model reads of a source."""
        (row,) = self.source_ids([source])
        return self.task.input.text(source, row).labels

    def trace(
        self,
        text: Any,
        target: str | None = None,
        *,
        kinds: Collection[str] | None = None,
        **options: Any,
    ) -> Trace:
        """Return the attention of each position while the model writes.

        Args:
            text: the source; of a language model, the beginning of its output.
            target: what the model is made to write; its own output if None.
            kinds: which maps to keep: `cross`, `encoder-self`, `decoder-self`, `encoder-history`,
                `decoder-history`, `memory`; all that the model has if None.
            options: of decoding, as for a call; without effect if `target` is given.
        """
        (found,) = self.traces([text], None if target is None else [target], kinds=kinds, **options)
        return found

    def traces(
        self,
        texts: Sequence[Any],
        targets: Sequence[str] | None = None,
        *,
        kinds: Collection[str] | None = None,
        **options: Any,
    ) -> list[Trace]:
        """Return the trace of each of several texts, computed as one batch; see `trace`."""
        if self.task.numbers is not None:
            refuse_for_numbers(self.task, target=targets, kinds=kinds, **options)
            found = self.task.numbers.traces(self.trained, texts, self.device)
            return list(map(self._named, found))
        return [trace for _, trace in self._traces(texts, targets, kinds, options)]

    def check(
        self,
        text: Any,
        target: str | None = None,
        *,
        methods: str | None = None,
        versus: str | None = None,
        **options: Any,
    ) -> Any:
        """Return the trace with the inputs that mattered, see `seeing.attribution.faithfulness`.

        Of a language model, the trace has what was written after the prompt as its target, and all
        that was read as its source.

        Args:
            text: the source; of a language model, the beginning of its output.
            target: what the model is made to write; its own output if None.
            methods: attribution methods to compare, separated by commas, each with its
                faithfulness: `all`, or names of `seeing.attribution.methods.METHODS`. None for
                attention, ablation, gradient and rollout without it; for a language model, or with
                `versus`, None is `all`.
            versus: token that each output is compared with: why this one, and not that one?
            options: of decoding, as for a call; without effect if `target` is given.
        """
        if self.task.numbers is not None:
            asked = {"target": target, "methods": methods, "versus": versus, **options}
            refuse_for_numbers(self.task, **asked)
            return self._named(self.task.numbers.checked(self.trained, text, self.device))
        if methods is None and (versus is not None or not self.task.has_sources):
            methods = "all"
        if methods is not None:
            method_names(methods)  # raises before the work
        targets = None if target is None else [target]
        ((tgt, trace),) = self._traces([text], targets, None, options)
        if not self.task.has_sources:
            assert methods is not None
            return self.predictor.check_prefix(text, tgt, trace, methods, versus)
        limit = options.get("max_len")
        return self.predictor.check_faithfulness(text, tgt, trace, limit, methods, versus)

    def what_if(
        self,
        text: Any,
        *,
        replace: Mapping[int, str] | None = None,
        prefix: str | None = None,
        heads_off: Sequence[Sequence[Any]] = (),
        cells: Sequence[AttentionCell | Sequence[Any]] = (),
        **options: Any,
    ) -> WhatIf:
        """Change what the model reads, writes or attends to, decode again, and compare.

            found = model.what_if(text, replace={1: "dog"}, heads_off=[("cross", 0, 1)])
            found.answers, found.traces, found.difference("cross", 0, 1)
            found.save("what-if.html")

        Args:
            text: the source; of a language model, the beginning of its output.
            replace: text by the number of the source token that it replaces, counted from 0; the
                whole text is then tokenised anew.
            prefix: text that the output begins with; of a language model, after the text.
            heads_off: kind, layer and head of each head that is switched off.
            cells: of attention maps: kind, layer, head (None for all), row, column and weight; the
                other cells of the row share the rest in proportion.
            options: of decoding, as for a call; the same for both.
        """
        change = Intervention.of(replace, prefix, heads_off, cells)
        check_seeded(options)
        return run_what_if(self.predictor, self.trace, text, change, options)

    def _traces(
        self,
        texts: Sequence[Any],
        targets: Sequence[str] | None,
        kinds: Collection[str] | None,
        options: dict[str, Any],
    ) -> list[tuple[list[int], Trace]]:
        settings = decoding_options(self.task, self.config.beam, options)
        return self.predictor.traces(texts, targets, settings, check_kinds(kinds))

    def perplexity(self, texts: str | Iterable[str]) -> Perplexity:
        """Return the perplexity of a language model on a text, or on several, each by itself.

        A model of running text reads each with those before it.
        """
        if self.task.has_sources:
            raise RegardError(
                f"perplexity must be asked of a language model, but the preset of this run is "
                f"{self.config.preset}: train one of {', '.join(TEXT_PRESETS)}."
            )
        several = [texts] if isinstance(texts, str) else list(texts)
        for text in several:
            self.predictor.check_source(text)
        context = self.task.input.context
        return perplexity(self.module, self.tgt_tokenizer, several, context)

    def evaluate(
        self,
        pairs: str | Path | Iterable[Any],
        metric: str | Sequence[str] | None = None,
        *,
        beam: int | None = None,
        tgt_file: str | Path | None = None,
        columns: Sequence[int | str] | None = None,
        skip_bad: bool = False,
    ) -> EvaluationResult | ScoreTable:
        """Return metrics of the outputs for pairs: what `regard evaluate` shows, in `rows`.

        Of a file of series, the scores of its forecasts beside those of baselines.

        Outputs and targets are compared in the form of the target tokeniser, see
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
        if self.task.numbers is not None:
            table = is_table(pairs) and not self.task.input.is_one(pairs)
            rows = check_pairs(pairs) if table else pairs
            return self.task.numbers.scores(self.trained, rows, self.device)
        self.check_reads_pairs()
        names = metric_names(self.task.tokens.metrics(), metric)
        reader = read_for(self.predictor, pairs, tgt_file, columns=columns, skip_bad=skip_bad)
        read = known_pairs(self.task, reader)
        texts = [output.text for output in self.predict_pairs(read, beam=beam)]
        return score_predictions(self.task, names, texts, read)

    def score(self, data: Any, y: Any = None) -> float:
        """Return the share of right labels; of numbers, R²; else the first metric of `evaluate`.

        That is the one that suits the target, such as BLEU, of 0 to 100, or the error rate of
        phonemes; of a series, the mean squared error of its forecasts.

        Args:
            data: as for `evaluate`: a table, a file or pairs; with `y`, sources alone.
            y: their targets.
        """
        data = data if y is None else pair_with(self.config.columns, data, y)
        found = self.evaluate(data)
        if not isinstance(found, ScoreTable):
            return found.rows[0].value
        name = "r2" if "r2" in found.columns else found.columns[0]
        return found.rows[0][1][found.columns.index(name)]

    def predict_pairs(self, pairs: Sequence[Pair], *, beam: int | None = None) -> Iterator[Output]:
        """Yield an output, without maps, for the source of each pair."""
        options: dict[str, Any] = {} if beam is None else {"beam": beam}
        sources = [self.task.input.of_pair(pair) for pair in pairs]
        found: Iterator[Output] = self.predict(sources, attention=False, **options)
        return found

    def check_reads_pairs(self) -> None:
        """Raises for a language model, which has no targets to compare its outputs with."""
        if not self.task.has_sources:
            raise RegardError(
                f"a model must have learned from pairs to be judged by some, but {self.path} is of "
                f"preset {self.config.preset}: ask for Model.perplexity."
            )

    def align(
        self,
        pairs: str | Path | Iterable[Any],
        *,
        words: bool | None = None,
        tgt_file: str | Path | None = None,
        columns: Sequence[int | str] | None = None,
        skip_bad: bool = False,
    ) -> list[Links]:
        """Return word alignments of pairs: what `regard align` writes without gold.

        For each pair, links of (source, target) counted from 0; none for a bad line left out.

        Args:
            pairs: as for `evaluate`, and so are all that are not named here.
            words: whether words are linked, or tokens; if None, words, but letters of a side that
                is read by letters.
            tgt_file: as there.
            columns: as there.
            skip_bad: as there.
        """
        how = {"tgt_file": tgt_file, "columns": columns, "skip_bad": skip_bad}
        return align_best(self.predictor, pairs, words, **how)

    def save(self, folder: str | Path) -> Path:
        """Copy the run to a folder, for `regard.load` and the command line; returns its path.

        A model that `fit` made without `output` lies in a temporary folder until then.

        Args:
            folder: a new one, or an empty one.
        """
        run = self._only_run()
        path = _check_new_folder(folder, run)
        try:
            with atomic_folder(path) as place:
                shutil.copytree(run, place, dirs_exist_ok=True, symlinks=True)
        except OSError as error:
            # several files that could not be copied come as a list
            reason = error.strerror or str(error)[:200]
            raise RunError(
                f"the run must be copied whole, but from {run} to {path} it could not be "
                f"({reason}): check that both can be read and written, and that there is room."
            ) from None
        return path

    def _only_run(self) -> Path:
        runs = self.predictor.paths
        if len(runs) > 1:
            raise RunError(
                f"one run can be saved, but this model has {len(runs)}: load and save each of them "
                f"alone."
            )
        return runs[0]


def _check_new_folder(folder: Any, run: Path) -> Path:
    """Return the path of a folder that is new or empty, and outside of the run."""
    if not isinstance(folder, str | Path):
        raise ArgumentError("folder", "be a name", repr(folder), 'as in save("runs/x")')
    path = Path(folder)
    if path.is_dir() and any(path.iterdir()):
        raise ArgumentError("folder", "be new or empty", f"{path}, with files", "choose another")
    if path.exists() and not path.is_dir():
        raise ArgumentError("folder", "be new or empty", f"{path}, a file", "choose another")
    if path.resolve().is_relative_to(run.resolve()):
        raise ArgumentError("folder", f"lie outside of the run, {run}", path, "choose another")
    return path


def _check_ensemble(runs: Sequence[Saved], paths: Sequence[str | Path]) -> None:
    """Raises unless several runs write tokens, or one label, with the same tokenisers."""
    task = runs[0].task
    if len(runs) > 1 and (task.numbers is not None or not task.tokens.exclusive):
        rule = "be one where targets are numbers or name several labels"
        raise ArgumentError("runs", rule, "an ensemble", "predict with each of them")
    for other, path in zip(runs[1:], paths[1:], strict=True):
        for side in ("src_tokenizer", "tgt_tokenizer"):
            if getattr(other, side).fingerprint != getattr(runs[0], side).fingerprint:
                raise RunError(
                    f"runs must have the same tokens to answer together, but {path} has another "
                    f"{side} than {paths[0]}: train them on the same data with the same tokenisers."
                )
