"""Prediction: from requests and sources to outputs and traces, with one model or an ensemble."""

import difflib
import itertools
import random
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, TypeVar, final

import numpy as np
import torch
from torch import Tensor, nn

from regard.api.output import (
    ALTERNATIVES_ASKED,
    decoding_info,
    model_info,
    trimmed_maps,
    with_alternatives,
    with_probs,
)
from regard.data.batches import chunks_of
from regard.decoding import (
    DecodingGraphs,
    DecodingOptions,
    Hypothesis,
    decode,
    force_decode,
    stream,
)
from regard.decoding.search_steps import Streamed, padded_length
from regard.decoding_options import given_options
from regard.errors import ArgumentError, DataError, RegardError
from regard.messages import message
from regard.models import AnyModel, SequenceModel
from regard.models.cpu import CpuModel, refuse_cpu_model
from regard.models.encoders import Encoder
from regard.models.int8 import is_int8
from regard.models.protocol import evaluating, inference, require_sequence_model
from regard.ops.backend import HAS_NUMBA
from regard.preemption import has_hooks, is_preemptible, preemptible, submodules
from regard.pretrained import PromptModel
from regard.seeing import DecodingInfo, Map, ModelInfo, Text, Trace
from regard.seeing.attribution.faithfulness import add_methods, add_scores
from regard.seeing.attribution.input_scorer import PrefixScorer, SourceScorer, token_replacements
from regard.seeing.attribution.interventions import (
    Intervention,
    WhatIf,
    intervened,
    shuffled_attention,
    transformer_switches,
)
from regard.seeing.capture.capture_result import CapturedModule
from regard.seeing.trace.output import LabelProbabilities, Output
from regard.seeing.trace.trace import KINDS
from regard.seeing.trace.view import with_segmented_words
from regard.symbols import BOS, EOS, SYMBOLS, UNK
from regard.tasks import Source, Task
from regard.tasks.inputs.text import text_given, text_written

#: beams of all sources of a request, or weights of a model, for which compiled kernels are worth
#: the time to load them
MANY_BEAMS: Final = 400
MANY_WEIGHTS: Final = 50_000_000

#: sources of a batch on a CPU, or twice as many, and batches that are read before the first is
#: answered
BATCH: Final = 32
READ_AHEAD: Final = 16

#: sources that are read before the first batch runs on a GPU; the tokens of a batch for each GiB of
#: its memory, and the most sources
READ_AHEAD_ON_GPU: Final = 4096
TOKENS_PER_GIB: Final = 192
MOST_ROWS: Final = 1024


BatchT = TypeVar("BatchT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class PredictRequest:
    """Options for the sources of one call.

    Attributes:
        options: of decoding.
        attention: whether outputs carry maps.
        kinds: which maps.
    """

    options: DecodingOptions
    attention: bool
    kinds: Collection[str]

    def seeded(self, seed: int | None) -> "PredictRequest":
        """Return the request with another random seed."""
        if seed == self.options.seed:
            return self
        return replace(self, options=replace(self.options, seed=seed))

    def seeds(self) -> Iterator[int | None]:
        """Yield a seed for each batch: batches with the same one would draw the same samples."""
        seed = self.options.seed
        draw = random.Random(seed)
        yield seed
        while True:
            yield None if seed is None else draw.getrandbits(63)

    @property
    def shown_kinds(self) -> Collection[str]:
        """The maps that outputs carry."""
        return self.kinds if self.attention else ()


@final
class Predictor:
    """Runs a trained model that writes tokens."""

    def __init__(
        self,
        module: AnyModel,
        task: Task,
        device: torch.device,
        paths: Sequence[Path],
        presets: Sequence[str],
    ) -> None:
        self.trained, self.task, self.device = module, task, device
        self.paths, self.presets = paths, presets
        #: whether all searches on a CPU run by compiled kernels, which take a second to load
        self.compiled = False
        self._cpu_model: CpuModel | None = None

    def compile(self) -> None:
        """Load compiled kernels now, and run all searches on a CPU by them, as a server does."""
        self.compiled = True
        if isinstance(self.trained, SequenceModel):
            self._searched(DecodingOptions(), 0, needs_maps=False)

    @property
    def module(self) -> SequenceModel:
        """The model; raises RegardError if it predicts numbers, or has nothing to write."""
        module = require_sequence_model(self.trained, "what is asked for")
        if self.task.tokens.size == len(SYMBOLS):
            (name, *_) = map(str, self.paths)
            raise RegardError(
                f"the model must have labels to answer with, but {name} is an encoder that was "
                f"imported: train one that starts from it, by `regard train DATA --from {name}`."
            )
        return module

    @cached_property
    def info(self) -> ModelInfo:
        """Name, preset and checkpoint, as traces hold them; the checkpoint is read for its hash."""
        return model_info(self.paths, self.presets)

    @cached_property
    def _is_int8(self) -> bool:
        return is_int8(self.module)

    @cached_property
    def _weights(self) -> int:
        return sum(weight.numel() for weight in self.module.parameters())

    @cached_property
    def _plain(self) -> SequenceModel:
        """The model for searches by compiled kernels that take its own steps."""
        wide = any(p.dtype == torch.float64 for p in self.module.parameters())
        return self.module if wide else CpuModel(self.module, own_steps=True)

    @cached_property
    def graphs(self) -> DecodingGraphs | None:
        """CUDA graphs of the model's searches; None without a GPU, or in layers of transformers."""
        replays = self.device.type == "cuda" and not isinstance(self.module, PromptModel)
        return DecodingGraphs(self.module) if replays else None

    def check_source(self, source: Any) -> None:
        """Raises for what is no source, and for one with more positions than the model has."""
        self.task.input.parse(source)
        if self._most_positions is not None:
            (row,) = self.task.input.rows([source])
            count = len(self.task.input.labels(row))
            if count > self._most_positions:
                raise _too_long("source", count, self._most_positions)

    @cached_property
    def _most_positions(self) -> int | None:
        return self.task.max_positions(self.trained)

    def target_ids(self, target: str) -> list[int]:
        """Encode a target; raises if the model has too few positions to write it."""
        if not isinstance(target, str):
            raise ArgumentError("target", "be a string", repr(target), "convert it to one")
        ids = self.task.target.encode(target)
        if len(ids) < self.task.tokens.decoding().get("min_len", 0):
            rule = f"be one of {', '.join(self.task.labels[:8])}"
            raise ArgumentError("target", rule, repr(target), "choose one")
        most = self.module.tgt_positions
        if most is not None and len(ids) >= most:
            raise _too_long("target", len(ids), most - 1)
        return ids

    def batch(self, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Pad encoded sources to a batch on the device; returns it and the lengths."""
        src, lengths = self.task.input.batch(rows)
        if src.is_floating_point():
            src = src.to(next(self.module.parameters()).dtype)
        return src.to(self.device), lengths.to(self.device)

    def predict(
        self, sources: Iterable[Any], request: PredictRequest, batch: int | None
    ) -> Iterator[Output]:
        """Yield an output for each source, in order; see `Model.predict`."""

        def checked() -> Iterator[Any]:
            for source in sources:
                self.check_source(source)
                yield source

        seeds, most = request.seeds(), 0
        for chunk in chunks_of(checked(), self.window(batch)):
            most = max(most, len(chunk))  # the last chunk runs as those before it
            yield from self._predict_chunk(chunk, request, batch, seeds, most)

    def window(self, batch: int | None) -> int:
        """Return how many sources are sorted together, to cut them into batches."""
        if batch is None and self.device.type == "cuda":
            return READ_AHEAD_ON_GPU
        batch = batch or BATCH
        return READ_AHEAD * batch if batch > 1 else 1

    def _cuts(self, lengths: Sequence[int], batch: int | None) -> list[int]:
        """Return where sources, shortest first, are cut into batches."""
        if batch is None and self.device.type == "cuda":
            memory = torch.cuda.get_device_properties(self.device).total_memory >> 30
            return token_cuts(lengths, max(1, memory) * TOKENS_PER_GIB)
        size = batch or BATCH
        if batch is None and len(lengths) >= 2 * BATCH * torch.get_num_threads():
            size = 2 * BATCH  # where each thread still has a batch
        return [*range(0, len(lengths), size), len(lengths)]

    def _predict_chunk(
        self,
        sources: list[Any],
        request: PredictRequest,
        batch: int | None,
        seeds: Iterator[int | None],
        most: int,
    ) -> list[Output]:
        """Sort by length, so that little is padded; outputs are in the order of the sources."""
        encoded = self.task.input.rows(sources)
        order = sorted(range(len(sources)), key=lambda i: len(encoded[i]))
        cuts = self._cuts([len(encoded[i]) for i in order], batch)
        batches = [order[start:end] for start, end in itertools.pairwise(cuts)]
        needs_maps = bool(request.shown_kinds)
        module = self._searched(request.options, most, needs_maps=needs_maps)

        with ThreadPoolExecutor(1) as pool:

            def run(part: tuple[list[int], int | None]) -> Callable[[], list[Output]]:
                indices, seed = part
                rows = [encoded[i] for i in indices]
                found = self._decode(module, rows, request.seeded(seed))
                given, shares = [sources[i] for i in indices], self._probabilities(module, rows)
                make = partial(self._outputs, given, rows, found, shares, request)
                # objects are made while the next batch runs, if there is one
                return pool.submit(make).result if len(batches) > 1 else make

            work, draws = list(zip(batches, seeds, strict=False)), bool(request.options.num_samples)
            found = map_batches(self.module, self.device, run, work, in_order=draws)
            made = (output for make in found for output in make())
            outputs = dict(zip(itertools.chain.from_iterable(batches), made, strict=True))
        return [outputs[i] for i in range(len(sources))]

    def _searched(
        self, options: DecodingOptions, sources: int, *, needs_maps: bool
    ) -> SequenceModel:
        """Return the model to search with: a `CpuModel` where it pays and equals the model.

        The choice follows from the request and from `compiled`, not from earlier requests.
        """
        pays = self.compiled or self._is_int8 or sources * options.beam >= MANY_BEAMS
        pays = pays or self._weights >= MANY_WEIGHTS
        if self.device.type != "cpu" or not pays or not HAS_NUMBA:
            return self.module
        prepared = self._cpu_model
        if prepared is not None and prepared.is_current():
            return prepared if prepared.can_run(need_weights=needs_maps) else self._plain
        if refuse_cpu_model(self.module, need_weights=needs_maps) is not None:
            return self._plain
        self._cpu_model = CpuModel(self.module)
        return self._cpu_model

    def _decode(
        self, module: SequenceModel, rows: list[Any], request: PredictRequest
    ) -> list[list[Hypothesis]]:
        src, lengths = self.batch(rows)
        options, kinds = self.task.prefixed(request.options, rows), request.shown_kinds
        return decode(
            module,
            src,
            lengths,
            options,
            need_weights=bool(kinds),
            kinds=kinds,
            graphs=self.graphs,
        )

    def _probabilities(self, module: SequenceModel, rows: list[Any]) -> list[LabelProbabilities]:
        """Return the probability of each label; none if targets are no labels."""
        output, labels = self.task.tokens, self.task.labels
        if not labels:
            return [LabelProbabilities()] * len(rows)
        with inference(module):
            found = output.probabilities(module, *self.batch(rows))
        assert found is not None
        values = found.cpu().numpy()
        return [LabelProbabilities(labels, row, exclusive=output.exclusive) for row in values]

    def _outputs(
        self,
        sources: Sequence[Any],
        rows: Sequence[Any],
        found: Sequence[Sequence[Hypothesis]],
        probabilities: Sequence[LabelProbabilities],
        request: PredictRequest,
    ) -> list[Output]:
        task, tgt, options, outputs = self.task, self.task.target, request.options, []
        parts = zip(sources, rows, found, probabilities, strict=True)
        for source, row, hypotheses, of_labels in parts:
            src_tokens, unknown = task.input.labels(row), task.input.unknown(source, row)
            unk = task.unknown_words(source)
            ranked = []
            for rank, one in enumerate(hypotheses):
                maker = partial(self.trace_of, source, row, one, options, rank, unk)
                ranked.append(
                    Output(
                        text=tgt.decode(one.tokens, unk=unk),
                        score=one.score,
                        log_prob=one.log_prob,
                        tokens=tgt.tokens(one.tokens),
                        src_tokens=src_tokens,
                        token_log_probs=one.token_log_probs,
                        maps=one.attention,
                        finished=one.finished,
                        unknown=unknown,
                        trace_maker=maker if request.attention else None,
                        probabilities=of_labels,
                    )
                )
            best, *others = ranked
            outputs.append(replace(best, alternatives=tuple(others)) if others else best)
        return outputs

    def _written(self, found: Hypothesis, unk: Sequence[str]) -> Text:
        """Return an output as traces hold it."""
        tgt = self.task.target
        text = text_written(tgt, found.tokens, unk=unk, finished=found.finished)
        return self._without_certain_end(text) if found.finished else text

    def _without_certain_end(self, text: Text) -> Text:
        """Return a text without `</s>`, if the model looks at nothing to write that."""
        return replace(text, tokens=text.tokens[:-1]) if self.task.tokens.end_is_certain else text

    def _trace(
        self, source: Any, row: Any, target: Text, found: Hypothesis, info: DecodingInfo
    ) -> Trace:
        text, sides = self.task.input.text(source, row), self.task.has_sources
        sizes = len(text.tokens), len(target.tokens)
        maps = trimmed_maps(found.attention, *sizes, rows_are_inputs=not sides)
        notes, output = self.task.trace_notes(text, target), self.task.tokens
        if not output.end_is_certain and not any(t.special for t in target.tokens[-1:]):
            notes = (*notes, message("show.cut-off"))
        target = with_probs(target, found.token_log_probs)
        if found.alternatives and output.exclusive:  # the labels of a set do not compete
            target = with_alternatives(
                target, found, self.task.target, is_label=output.end_is_certain
            )
        return with_segmented_words(Trace(text, target, maps, self.info, info, notes=notes))

    def traces(
        self,
        sources: Sequence[Any],
        targets: Sequence[str] | None,
        options: DecodingOptions,
        kinds: Collection[str],
    ) -> list[tuple[list[int], Trace]]:
        """Return the target ids and the trace of each source, all in one batch."""
        rows, tgt = self._rows(sources), self.task.target
        src, lengths = self.batch(rows)
        if targets is None:
            found = self._best(src, lengths, self.task.prefixed(options, rows), kinds)
            read = zip(sources, rows, found, strict=True)
            return [(h.tokens, self.trace_of(source, row, h, options)) for source, row, h in read]
        forced = [self.target_ids(target) for target in targets]
        found = force_decode(
            self.module, src, lengths, forced, options, kinds=kinds, alternatives=ALTERNATIVES_ASKED
        )
        traces = []
        for i, (h, target, ids) in enumerate(zip(found, targets, forced, strict=True)):
            text = self._without_certain_end(text_given(tgt, Source(target), ids))
            info = DecodingInfo(log_prob=h.log_prob)
            traces.append((h.tokens, self._trace(sources[i], rows[i], text, h, info)))
        return traces

    def trace_of(
        self,
        source: Any,
        row: Any,
        found: Hypothesis,
        options: DecodingOptions,
        rank: int = 0,
        unk: Sequence[str] | None = None,
    ) -> Trace:
        """Return the trace of an output, with its alternatives if it carries some.

        Args:
            source: what was read.
            row: its encoded form.
            found: the output.
            options: of decoding.
            rank: of the output.
            unk: text for its unknown tokens; words of the source, if None, where these are known.
        """
        text = self._written(found, self.task.unknown_words(source) if unk is None else unk)
        return self._trace(source, row, text, found, decoding_info(options, found, rank))

    def stream(
        self, sources: Sequence[Any], options: DecodingOptions, kinds: Collection[str]
    ) -> Generator[Streamed, None, list[Trace]]:
        """Decode sources greedily, yield each token at once, and return the traces at the end."""
        rows = self._rows(sources)
        found = yield from stream(
            self._searched(options, len(rows), needs_maps=True),
            *self.batch(rows),
            self.task.prefixed(options, rows),
            kinds=kinds,
            graphs=self.graphs,
            alternatives=ALTERNATIVES_ASKED,
        )
        read = zip(sources, rows, found, strict=True)
        return [self.trace_of(source, row, best[0], options) for source, row, best in read]

    def _rows(self, sources: Sequence[Any]) -> list[Any]:
        """Check sources of one batch and encode them."""
        self.task.input.check_several(sources)
        for source in sources:
            self.check_source(source)
        return list(self.task.input.rows(sources))

    def _best(
        self, src: Tensor, lengths: Tensor, options: DecodingOptions, kinds: Collection[str]
    ) -> list[Hypothesis]:
        """Return the best hypothesis of each source, with maps."""
        best = decode(
            self._searched(options, len(src), needs_maps=True),
            src,
            lengths,
            options,
            need_weights=True,
            kinds=kinds,
            graphs=self.graphs,
            alternatives=ALTERNATIVES_ASKED,
        )
        return [hypotheses[0] for hypotheses in best]

    def check_faithfulness(
        self,
        source: Any,
        tgt: list[int],
        trace: Trace,
        max_len: int | None,
        methods: str | None = None,
        versus: str | None = None,
    ) -> Trace:
        """Add to a trace which inputs mattered beside where the model looked.

        Then what becomes of the output if attention is shuffled.
        """
        contrast = None if versus is None else self._token(versus)
        (row,) = self.task.input.rows([source])
        unknown = self.task.input.replacements(row)
        scorer = SourceScorer(self.module, row, tgt, unknown)
        trace = replace(trace, notes=(*trace.notes, *unknown.notes))
        found = self._check_shuffled(row, add_scores(trace, scorer), max_len)
        return found if methods is None else add_methods(found, scorer, methods, contrast)

    def check_prefix(
        self, source: Any, tgt: list[int], trace: Trace, methods: str, versus: str | None = None
    ) -> Trace:
        """Return a trace of what a language model wrote after its prompt, with what mattered to it.

        Its source is all that the model has read, `<s>` first, and its target what it wrote. All
        of a text is taken as written that does not begin with the prompt.
        """
        contrast = None if versus is None else self._token(versus)
        (row,) = self.task.input.rows([source])
        prompt = row[:-1]
        first = len(prompt) if tgt[: len(prompt)] == prompt else 0
        whole, outputs = trace.target, trace.target.tokens[first:]
        if not outputs:
            raise ArgumentError(
                "max_len", "leave room for a token after the prompt", len(tgt), "raise it"
            )
        # a text that was cut off ends without `</s>`, and its last token was not read
        read = [BOS, *tgt][: len(whole.tokens)]
        others = [[BOS], *self.task.input.replacements(read[1:]).others]
        scorer = PrefixScorer(
            self.module, read, [*tgt, EOS][first : len(read)], token_replacements(read, others)
        )
        seen = replace(
            trace,
            source=Text(whole.text, trace.tokens("read")),
            target=Text(whole.text, outputs),
            maps=tuple(_rows_from(found, first) for found in trace.maps if found.causal),
        )
        return add_methods(seen, scorer, methods, contrast)

    def _token(self, text: str) -> tuple[int, str]:
        """Return the id and the label of an output token, given as its label or as a text."""
        target = self.task.target
        labels = target.tokens(range(target.vocab_size))
        if text in labels:
            return labels.index(text), text
        ids = target.encode(text)
        if len(ids) != 1 or ids[0] == UNK:
            pieces = " ".join(target.tokens(ids)) or "nothing"
            raise ArgumentError(
                "versus",
                "be one token that the model can write",
                f"{text!r} ({pieces})",
                "see the alternatives of each output in the trace",
            )
        return ids[0], labels[ids[0]]

    def _check_shuffled(self, row: Any, found: Trace, max_len: int | None) -> Trace:
        """Add to the checks what the model writes with its attention shuffled."""
        if not any(found.of_kind("cross")):
            return found
        plain = self._greedy_text(row, max_len)
        with shuffled_attention(self.module):
            shuffled = self._greedy_text(row, max_len)
        change = message("check.the-same") if shuffled == plain else repr(shuffled)
        sentence = message("check.left-to-itself", plain=repr(plain), shuffled=change)
        more = {"greedy_text": plain, "shuffled_text": shuffled}
        sentences = [*found.checks["sentences"], sentence]
        return replace(found, checks={**found.checks, **more, "sentences": sentences})

    def _greedy_text(self, row: Any, max_len: int | None) -> str:
        options = decoding_options(self.task, 1, given_options(beam=1, max_len=max_len))
        best = decode(self.module, *self.batch([row]), self.task.prefixed(options, [row]))
        return self.task.target.decode(best[0][0].tokens)


def _rows_from(found: Map, first: int) -> Map:
    """Return a map of what a language model has read with its rows from `first` on as outputs."""
    missing = None if found.missing is None else found.missing[:, first:]
    weights = np.ascontiguousarray(found.weights[:, first:])
    return replace(found, weights=weights, missing=missing, rows="target", columns="source")


def _too_long(name: str, count: int, most: int) -> DataError:
    return DataError(
        name,
        None,
        f"the {name} must have at most {most} tokens, for which the model has positions, but it "
        f"has {count}",
        "shorten it, or train with a larger max_len",
        kind="too long",
    )


def token_cuts(lengths: Sequence[int], tokens: int) -> list[int]:
    """Return where sources of ascending lengths are cut, at most so many tokens with padding apart.

    Numbers of rows are powers of two, so that shapes recur, but for the first batch.
    """
    cuts = [len(lengths)]
    while cuts[-1]:
        room = max(1, tokens // padded_length(lengths[cuts[-1] - 1]))
        rows = min(MOST_ROWS, 1 << room.bit_length() - 1)
        cuts.append(max(0, cuts[-1] - rows))
    return cuts[::-1]


def map_batches(
    model: nn.Module,
    device: torch.device,
    work: Callable[[BatchT], ResultT],
    batches: Sequence[BatchT],
    *,
    in_order: bool = False,
) -> list[ResultT]:
    """Return `work(batch)` of each batch, in order; on a CPU, in parallel, one thread each.

    A step of a small model is many short operations. Two threads that share each of them wait for
    each other most of the time; two threads with a batch each do not.

    Args:
        model: which `work` runs; it must not change meanwhile.
        device: where it runs. A GPU gets one batch after another, and so does a model with hooks,
            which may rely on the thread that has set them.
        work: processes one batch.
        batches: to process.
        in_order: never in parallel, as batches that draw from one random generator need.
    """
    threads = min(torch.get_num_threads(), len(batches))
    # settings of this thread that others would not have
    own = torch.is_autocast_enabled("cpu") or has_hooks(submodules(model))
    if in_order or device.type != "cpu" or threads < 2 or own:
        return [work(batch) for batch in batches]
    before = torch.get_num_threads()
    own_threads = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        # once for all batches, of which some end while others still run
        with evaluating(model), own_threads as pool:
            return list(pool.map(work, batches))
    finally:
        torch.set_num_threads(before)


def check_kinds(kinds: Collection[str] | None) -> Collection[str]:
    """Return the kinds of maps; all if None. Raises for a kind that does not exist."""
    if kinds is None:
        return KINDS
    wrong = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind not in KINDS]
    if wrong:
        raise ArgumentError(
            "kinds", f"be a list of some of {', '.join(KINDS)}", repr(wrong[0]), "choose among them"
        )
    return kinds


def refuse_for_numbers(task: Task, **given: Any) -> None:
    """Raise ArgumentError for an option of a search if the model predicts numbers."""
    for name, value in given.items():
        if task.numbers is not None and value is not None:
            rule = "be left out for a model that predicts numbers"
            raise ArgumentError(name, rule, value, "ask for a prediction or a check without it")


def decoding_options(task: Task, beam: int, options: dict[str, Any]) -> DecodingOptions:
    """Return decoding options by name; the beam width of the run is the default.

    Those of the output come first: a label is one token.
    """
    if options.get("prefix") is not None and not task.has_sources:
        raise ArgumentError(
            "prefix", "be left out for a language model", "given", "it goes on with each text"
        )
    if len(options.get("prefix") or ()) > 1:
        rule = "be one list of tokens, with which all targets begin"
        raise ArgumentError("prefix", rule, f"{len(options['prefix'])} lists", "call for each")
    one, usual = {}, {}
    if task.numbers is None:
        one, usual = task.tokens.decoding(), task.target.decoding
    try:
        return DecodingOptions(**{"beam": beam, **usual, **options, **one})
    except TypeError as error:
        known = list(DecodingOptions.__dataclass_fields__)
        wrong = [name for name in options if name not in known]
        if not wrong:
            raise ArgumentError("options", "be numbers", f"{options} ({error})", "check") from None
        close = difflib.get_close_matches(wrong[0], known, n=1, cutoff=0.0)[0]
        raise ArgumentError(
            "option", f"be one of {', '.join(known)}", repr(wrong[0]), f"perhaps {close!r} is meant"
        ) from None


def run_what_if(
    predictor: Predictor,
    trace: Callable[..., Trace],
    text: Any,
    change: Intervention,
    options: dict[str, Any],
) -> WhatIf:
    """Decode a source as it is and with changes, and compare the two."""
    read, changed = changed_source(predictor, text, change)
    more = dict(options)
    if change.prefix is not None and predictor.task.has_sources:
        more["prefix"] = [_prefix_ids(predictor, change.prefix)]
    before = trace(text, **options)
    modules = _modules(predictor, trace, text, before) if change.heads_off or change.cells else {}
    encoders = [part for part in predictor.module.modules() if isinstance(part, Encoder)]
    switches = partial(transformer_switches, predictor.module)
    with intervened(change, predictor.module, modules, switches, encoders) as notes:
        after = trace(changed, **more)
    return WhatIf.of(change, (before, after), notes=notes, read=read)


def changed_source(predictor: Predictor, source: Any, change: Intervention) -> tuple[Text, Any]:
    """Return a source as it is read, and with its tokens replaced; features after its text stay.

    A model that continues texts reads the prefix of its output, too.
    """
    (row,) = predictor.task.input.rows([source])
    read, changed = predictor.task.input.text(source, row), source
    if change.replace:
        text = change.replaced(read)
        if isinstance(source, Source):
            changed = source._replace(text=text)
        else:
            rest = source[len(read.text) :] if str(source).startswith(read.text) else ""
            changed = f"{text}{rest}"
    if change.prefix is not None and not predictor.task.has_sources:
        changed = f"{changed}{change.prefix}"
    return read, changed


def _prefix_ids(predictor: Predictor, prefix: str) -> list[int]:
    ids = predictor.target_ids(prefix)
    if not ids or UNK in ids:
        value = f"{prefix!r} ({' '.join(predictor.task.target.tokens(ids)) or 'nothing'})"
        rule = "have a token or more, and only such as the model can write"
        raise ArgumentError("prefix", rule, value, "choose another beginning")
    return ids


def _modules(
    predictor: Predictor, trace: Callable[..., Trace], text: Any, before: Trace
) -> dict[tuple[str, int], CapturedModule]:
    """Return the attention modules of a model, found by running it once on what it wrote."""
    from regard.seeing.capture.recorder import capture  # loads torch's compiler

    steps = nullcontext() if is_preemptible() else preemptible(lambda: None)
    with steps, capture(predictor.module) as seen:  # recurrent decoders attend step by step
        trace(text, before.target.text)
    names = seen.modules()
    if not predictor.task.has_sources:  # capture cannot tell a decoder's past from an encoder's
        names = {
            (kind.replace("encoder-history", "decoder-history"), layer): found
            for (kind, layer), found in names.items()
        }
    return names
