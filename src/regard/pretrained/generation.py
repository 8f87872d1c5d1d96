"""`regard.generate`: the answer of a language model, and one trace of prompt and answer."""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import extras
from regard.errors import ArgumentError, DataError
from regard.models.protocol import inference
from regard.pretrained.token_texts import (
    TokenizedText,
    continuation,
    encode,
    encode_chat,
    labels,
    with_prob,
    written,
)
from regard.seeing.attribution.transformers_check import decoder_start, head_scale
from regard.seeing.capture.capture_result import CaptureResult
from regard.seeing.trace import DecodingInfo, ModelInfo, Text, Trace, brief
from regard.seeing.trace.long_trace import LongTrace
from regard.seeing.trace.words import with_segmented_words

AnyTrace = Trace | LongTrace

#: candidates that are named beside each token
ALTERNATIVES: Final = 3
#: new tokens if neither the caller nor the generation config limits them
MAX_NEW_TOKENS: Final = 40
#: length of prompt and answer that transformers assumes if nobody sets one
LIBRARY_LENGTH: Final = 20
#: arguments of `generate()` that regard sets itself
OWN_OPTIONS: Final = (
    *("inputs", "input_ids", "attention_mask", "decoder_input_ids", "inputs_embeds", "streamer"),
    *("return_dict_in_generate", "output_logits", "output_attentions", "output_scores"),
)
#: names of tables of positions
POSITIONS: Final = re.compile(r"(^|\.)(wpe|embed_positions|position_embeddings)$")
NOT_JOINED: Final = (
    "the steps of generate() cannot be joined, as where it drafts tokens or has no cache: the "
    "weights are those of one forward pass over prompt and answer"
)


@dataclass(frozen=True)
class PretrainedOutput:
    """The answer of a model of transformers, and the attention of each of its tokens.

    Attributes:
        text: the answer, without the prompt.
        prompt: what the model has read; the rendered template of a chat.
        continues: whether the answer continues the prompt, as that of a decoder-only model.
        tokens: of the answer, special ones among them.
        token_log_probs: of these tokens.
        score: what the answer was ranked by.
        finished: False if the length limit cut the answer off.
        alternatives: further answers, best first.
        unknown: parts of the prompt that the tokenizer has no token for.
        recorded: the trace; None if attention was not asked for.
        notes: changes that were made to the input, as sentences for its user.
        probabilities: of all classes, likeliest first; none if the model has no classes.
    """

    text: str
    prompt: str
    continues: bool
    tokens: tuple[str, ...]
    token_log_probs: tuple[float, ...]
    score: float
    finished: bool = True
    alternatives: tuple["PretrainedOutput", ...] = ()
    unknown: tuple[str, ...] = ()
    recorded: AnyTrace | None = None
    notes: tuple[str, ...] = ()
    probabilities: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        parts = [brief(self.text), f"prompt={brief(self.prompt)}", f"score={self.score:.4g}"]
        parts += [] if self.recorded is None else [f"maps={self.recorded.kinds}"]
        parts += [f"alternatives={len(self.alternatives)}"] * bool(self.alternatives)
        parts += ["finished=False"] * (not self.finished)
        return f"PretrainedOutput({', '.join(parts)})"

    @property
    def log_prob(self) -> float | None:
        """The log-probability of the answer; None for the number of a regression."""
        if self.probabilities:
            return self.score
        return math.fsum(self.token_log_probs) if self.tokens else None

    @property
    def src_tokens(self) -> list[str]:
        """The tokens of the source of the trace; none if there is no trace."""
        return [] if self.recorded is None else self.recorded.source.labels

    @property
    def maps(self) -> dict[str, tuple[Any, ...]]:
        """Weights by kind, (heads, rows, columns) per layer; none if there is no trace.

        Of a `LongTrace`, its maps.
        """
        if self.recorded is None:
            return {}
        trace = self.recorded
        if isinstance(trace, LongTrace):
            return {kind: tuple(trace.of_kind(kind)) for kind in trace.kinds}
        return {kind: tuple(one.weights for one in trace.of_kind(kind)) for kind in trace.kinds}

    @property
    def whole_text(self) -> str:
        """The prompt and the answer where the answer continues it; else the answer."""
        return self.prompt + self.text if self.continues else self.text

    @cached_property
    def trace(self) -> Any:
        """Tokens, probabilities and maps of prompt and answer, to draw and to save."""
        if self.recorded is None:
            raise ArgumentError("attention", "be True for a trace", False, "leave it out")
        return self.recorded

    def save(self, path: str | Path, **options: Any) -> None:
        """Write html, svg, png, pdf, csv or json, by the ending; see `regard.seeing.save`."""
        self.trace.save(path, **options)

    def _repr_html_(self) -> str | None:
        """Return the figure for a notebook; None, which shows the text, if there is no trace."""
        html = getattr(self.recorded, "_repr_html_", None)
        return None if html is None else html()


def generate(
    model: Any,
    tokenizer: Any,
    text: str | Sequence[str],
    *,
    chat: bool = False,
    attention: bool = True,
    layers: Any = None,
    max_weights: int | None = None,
    top_k_weights: int | None = None,
    heads: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """Generate an answer with a model of transformers, and record one trace of prompt and answer.

        out = regard.generate(model, tokenizer, "The cat sat", max_new_tokens=20)
        print(out)
        out.trace.show()

    The weights are those of the steps that wrote the answer: greedy, sampled, or of the winning
    hypothesis of a beam search. Of a decoder-only model, rows and columns are the positions that it
    read: prompt and answer, but for the last token, which nothing has read. Of an encoder-decoder,
    a row is a token that it wrote.

    Args:
        model: with `generate()`, decoder-only or encoder-decoder.
        tokenizer: its tokenizer.
        text: a prompt, or several, which are padded to one batch: on the left for a decoder-only
            model, since its answer must follow the prompt.
        chat: whether a text is a message, to be put in the tokenizer's chat template.
        attention: whether to record attention; without, generation is faster.
        layers: numbers of layers to record, or modules, as in `regard.capture`.
        max_weights: number of weights that are kept; default as there.
        top_k_weights: number of weights of each row that are kept, for long texts, as there; the
            trace is a `LongTrace`.
        heads: numbers of the heads to keep with `top_k_weights`.
        options: of `model.generate`: `max_new_tokens`, `num_beams`, `do_sample`, ...

    Returns:
        A `PretrainedOutput`, or a list of them for several texts. Further sequences, as of
        `num_return_sequences`, are its `alternatives`.

    Examples:
        >>> from transformers import AutoModelForCausalLM, AutoTokenizer
        >>> model = AutoModelForCausalLM.from_pretrained("tiny-llama")
        >>> tokenizer = AutoTokenizer.from_pretrained("tiny-llama")
        >>> out = regard.generate(model, tokenizer, "the cat sat", max_new_tokens=3)
        >>> out.trace.kinds
        ['decoder-self']
    """
    extras.require("transformers", extra="hf", for_="regard.generate")
    texts = list(text) if isinstance(text, Sequence) and not isinstance(text, str) else [text]
    _check_arguments(model, texts, options)
    encoded = [encode_chat(tokenizer, one) if chat else encode(tokenizer, one) for one in texts]
    check_ids(model, encoded)
    recording = Recording(layers, max_weights, top_k_weights, heads)
    steps = _Steps.run(model, tokenizer, encoded, options, recording if attention else None)
    outputs = list(steps.outputs())
    return outputs[0] if isinstance(text, str) else outputs


def generate_after(
    model: Any,
    tokenizer: Any,
    prompt: TokenizedText,
    prefix: TokenizedText,
    options: dict[str, Any],
) -> PretrainedOutput:
    """Generate an answer that begins with a prefix, and record its trace.

    Args:
        model: with `generate()`, decoder-only or encoder-decoder.
        tokenizer: its tokenizer.
        prompt: what the model reads.
        prefix: what its answer begins with, without special tokens.
        options: of `model.generate`.
    """
    extras.require("transformers", extra="hf", for_="regard.generate")
    if not prefix.ids:
        raise ArgumentError(
            "prefix", "have a token or more", repr(prefix.text.text), "leave it out"
        )
    if model.config.is_encoder_decoder:
        check_ids(model, [prompt, prefix])
        # the language of mBART and NLLB, or the <s> of BART, which generate() forces first
        forced = options.get("forced_bos_token_id", model.generation_config.forced_bos_token_id)
        first = [decoder_start(model), *([] if forced is None else [forced])]
        begin = torch.tensor([[*first, *prefix.ids]], device=model.device)
        options = {**options, "decoder_input_ids": begin}
        whole = prompt
    else:
        ids = [*prompt.ids, *prefix.ids]
        whole = TokenizedText(ids, written(tokenizer, prefix.ids, after=prompt))
        check_ids(model, [whole])
    steps = _Steps.run(model, tokenizer, [whole], options, Recording())
    (output,) = steps.outputs()
    return output


@dataclass(frozen=True)
class Recording:
    """Choice of the weights of a model of transformers that are recorded.

    Attributes:
        layers: numbers of layers, as in the names of their modules; or modules, as in
            `regard.capture`; None for all.
        max_weights, top_k_weights, heads: of `regard.capture`.
    """

    layers: Any = None
    max_weights: int | None = None
    top_k_weights: int | None = None
    heads: Sequence[int] | None = None

    @property
    def numbers(self) -> list[int] | None:
        """The numbers of the layers, if they are chosen by numbers."""
        given = self.layers
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            return None
        whole = all(isinstance(one, int) and not isinstance(one, bool) for one in given)
        return sorted(set(given)) if whole else None

    def of(self, model: Any) -> AbstractContextManager[CaptureResult]:
        """Return a block of `regard.capture`."""
        # loads torch's compiler, which commands that only draw do without
        from regard.seeing.capture.recorder import capture

        layers, numbers = self.layers, self.numbers
        if numbers is not None:
            known = {layer_number(name) for name, _ in model.named_modules()} - {None}
            wrong = [one for one in numbers if one not in known]
            if wrong:
                most = max((one for one in known if one is not None), default=0)
                rule = f"be numbers from 0 to {most}, the layers of the model"
                raise ArgumentError("layers", rule, wrong[0], "choose others")
            layers = lambda name: layer_number(name) in numbers  # noqa: E731
        return capture(
            model,
            layers,
            max_weights=self.max_weights,
            top_k_weights=self.top_k_weights,
            heads=self.heads,
        )

    def numbered(self, trace: AnyTrace) -> AnyTrace:
        """Return a trace whose layers have the numbers that they have in the model."""
        numbers = self.numbers
        if numbers is None:
            return trace
        count = {found.kind: 1 + found.layer for found in trace.maps}
        maps: Any = tuple(
            replace(found, layer=numbers[found.layer])
            if count[found.kind] == len(numbers)
            else found
            for found in trace.maps
        )
        return replace(trace, maps=maps)


def layer_number(name: str) -> int | None:
    """Return the number of the layer that a module belongs to, from its name; None if it has none.

    It is the first number of the name, as in `model.layers.3.self_attn`.
    """
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def check_ids(model: Any, encoded: Sequence[TokenizedText]) -> None:
    """Raise for an empty text, and for tokens or positions that the model has no row for."""
    rows = model.get_input_embeddings().weight.shape[0]
    most = max_positions(model)
    for one in encoded:
        if not one.ids:
            raise DataError("text", None, "it must have a token", "write something", kind="empty")
        if max(one.ids) >= rows:
            raise ArgumentError(
                "tokenizer",
                f"have ids below {rows}, the rows of the model's embedding",
                f"one with {max(one.ids)}",
                "take the tokenizer that the model was trained with",
            )
        if most is not None and len(one.ids) > most:
            raise DataError(
                "text",
                None,
                f"the text must have at most {most} tokens, for which the model has positions, but "
                f"it has {len(one.ids)}",
                "shorten it",
                kind="too long",
            )


def max_positions(model: Any) -> int | None:
    """Return the length of a model's table of positions; None if it has none."""
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    tables = [part for name, part in model.named_modules() if POSITIONS.search(name)]
    found = [part for part in tables if isinstance(part, torch.nn.Embedding)]
    if not found or not isinstance(most, int):
        return None
    padding = found[0].padding_idx  # after which RoBERTa begins to count
    return most if padding is None else found[0].num_embeddings - padding - 1


def padded(
    rows: Sequence[Sequence[int]], pad: int, device: torch.device, *, left: bool
) -> tuple[Tensor, Tensor]:
    """Return ids (rows, longest) and their attention mask, padded on the left or on the right."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        real = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, real] = torch.tensor(row, dtype=torch.long)
        mask[i, real] = 1
    return ids.to(device), mask.to(device)


def pad_id(model: Any, tokenizer: Any) -> int:
    """Return the id to pad with; what it is does not matter, since it is masked."""
    found = tokenizer.pad_token_id
    ends = _end_ids(model, tokenizer, {})
    return int(found) if found is not None else min(ends, default=0)


def _end_ids(model: Any, tokenizer: Any, options: dict[str, Any]) -> set[int]:
    """Return the ids that end an answer, by the options, the model or the tokenizer."""
    config = options.get("generation_config") or getattr(model, "generation_config", None)
    found = options.get("eos_token_id", getattr(config, "eos_token_id", None))
    found = tokenizer.eos_token_id if found is None else found
    return set() if found is None else {found} if isinstance(found, int) else set(found)


def _check_arguments(model: Any, texts: Sequence[Any], options: dict[str, Any]) -> None:
    if not (hasattr(model, "can_generate") and model.can_generate()):
        raise ArgumentError(
            "model",
            "have generate(), as a language model of transformers",
            type(model).__name__,
            "look at one forward pass with regard.capture",
        )
    wrong = [repr(one) for one in texts if not isinstance(one, str)]
    if wrong or not texts:
        value = wrong[0] if wrong else "an empty list"
        raise ArgumentError("text", "be a string, or a list of strings", value, "pass a prompt")
    given = next((name for name in OWN_OPTIONS if name in options), None)
    if given is not None:
        raise ArgumentError(
            given,
            "be left out, since regard.generate sets it",
            "given",
            "leave it out, or call model.generate inside a block of regard.capture",
        )


@dataclass(frozen=True)
class _Steps:
    """A call of `generate()`: what it was given, what it returned, and what was recorded.

    Attributes:
        model: of transformers.
        tokenizer: its tokenizer.
        prompts: what it was given.
        options: of `generate()`.
        found: what it returned.
        seen: what was recorded; None if nothing was to be.
        recording: what was to be recorded.
    """

    model: Any
    tokenizer: Any
    prompts: Sequence[TokenizedText]
    options: dict[str, Any]
    found: Any
    seen: CaptureResult | None
    recording: Recording

    @staticmethod
    def run(
        model: Any,
        tokenizer: Any,
        prompts: Sequence[TokenizedText],
        options: dict[str, Any],
        recording: Recording | None,
    ) -> "_Steps":
        """Call `generate()` on a padded batch of prompts; nothing is recorded if None."""
        pad = pad_id(model, tokenizer)
        ids, mask = padded(
            [one.ids for one in prompts],
            pad,
            model.device,
            left=not model.config.is_encoder_decoder,
        )
        limits = {"pad_token_id": pad, **_limit(model, ids.shape[1], options)}
        told = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
        block = nullcontext() if recording is None else recording.of(model)
        with inference(model), block as seen:
            found = model.generate(
                input_ids=ids, attention_mask=mask, **{**limits, **options, **told}
            )
        return _Steps(model, tokenizer, prompts, options, found, seen, recording or Recording())

    def outputs(self) -> Iterator[PretrainedOutput]:
        """Yield the output of each prompt, with its further sequences as alternatives."""
        traces = self._traces()
        each = len(self.rows) // len(self.prompts)
        for i in range(len(self.prompts)):
            first, *more = [
                self._output(hypothesis, None if traces is None else traces[hypothesis])
                for hypothesis in range(i * each, (i + 1) * each)
            ]
            yield replace(first, alternatives=tuple(more))

    @property
    def is_decoder(self) -> bool:
        """True for a decoder-only model."""
        return not self.model.config.is_encoder_decoder

    def prompt_of(self, hypothesis: int) -> TokenizedText:
        """Return the prompt of a sequence."""
        return self.prompts[hypothesis * len(self.prompts) // len(self.found.sequences)]

    @cached_property
    def total(self) -> int:
        """Number of tokens that were generated in the longest sequence."""
        beams = getattr(self.found, "beam_indices", None)
        return int(len(self.found.logits) if beams is None else beams.shape[1])

    @cached_property
    def ends(self) -> set[int]:
        """The ids that end an answer."""
        return _end_ids(self.model, self.tokenizer, self.options)

    @cached_property
    def new_ids(self) -> list[list[int]]:
        """The generated tokens of each sequence, an end-of-sequence token last if there is one."""
        start = self.found.sequences.shape[1] - self.total
        beams = getattr(self.found, "beam_indices", None)
        rows = []
        for i, row in enumerate(self.found.sequences[:, start:].tolist()):
            if beams is not None:
                count = int((beams[i] >= 0).sum())
            else:
                count = next((j + 1 for j, one in enumerate(row) if one in self.ends), len(row))
            rows.append(row[:count])
        return rows

    @cached_property
    def rows(self) -> list[list[int]]:
        """The row of the batch that each sequence was in, at each of its steps."""
        beams = getattr(self.found, "beam_indices", None)
        if beams is None:
            return [[i] * len(ids) for i, ids in enumerate(self.new_ids)]
        return [[row for row in rows if row >= 0] for rows in beams.tolist()]

    @cached_property
    def decoder_ids(self) -> list[list[int]]:
        """All tokens that each decoder was given or wrote, without padding."""
        start = self.found.sequences.shape[1] - self.total
        if self.is_decoder:
            return [[*self.prompt_of(i).ids, *new] for i, new in enumerate(self.new_ids)]
        heads = self.found.sequences[:, :start].tolist()
        return [[*head, *new] for head, new in zip(heads, self.new_ids, strict=True)]

    def _output(self, i: int, trace: AnyTrace | None) -> PretrainedOutput:
        prompt, new = self.prompt_of(i), self.new_ids[i]
        log_probs = self._log_probs(i)
        ranked = getattr(self.found, "sequences_scores", None)
        score = sum(log_probs) if ranked is None else float(ranked[i])
        before = prompt.ids if self.is_decoder else []
        ended = bool(new) and new[-1] in self.ends
        if trace is not None:
            trace = self._named(i, trace, log_probs)
        return PretrainedOutput(
            text=continuation(self.tokenizer, before, new),
            prompt=prompt.text.text,
            continues=self.is_decoder,
            tokens=tuple(labels(self.tokenizer, new)),
            token_log_probs=tuple(log_probs),
            score=score,
            finished=ended,
            unknown=prompt.unknown(self.tokenizer.unk_token_id),
            recorded=trace,
        )

    def _log_probs(self, i: int) -> list[float]:
        """Return the log-probability of each generated token of a sequence."""
        steps = zip(self.new_ids[i], self.rows[i], self.found.logits, strict=False)
        return [token_log_prob(logits[row], token) for token, row, logits in steps]

    def _traces(self) -> list[AnyTrace] | None:
        """Return the trace of each sequence, before it has names; None if nothing was recorded."""
        if self.seen is None:
            return None
        read = [ids[:-1] for ids in self.decoder_ids]
        try:
            self.seen.follow(self.rows)
            _label(self, self.seen, read)
            traces = self.seen.traces
        except ArgumentError:
            if not self.seen.maps:
                raise
            traces = []
        if len(traces) == len(read) and all(map(_fits, traces, read)):
            return traces
        return [replace(one, notes=(NOT_JOINED, *one.notes)) for one in self._forced(read)]

    def _forced(self, read: Sequence[Sequence[int]]) -> list[AnyTrace]:
        """Return traces of one forward pass over all sequences."""
        pad, device = pad_id(self.model, self.tokenizer), self.model.device
        # on the right, where no position depends on the padding
        ids, mask = padded(read, pad, device, left=False)
        given = {"input_ids": ids, "attention_mask": mask}
        if not self.is_decoder:
            sources = [self.prompt_of(i).ids for i in range(len(read))]
            src, src_mask = padded(sources, pad, device, left=False)
            given = {
                "input_ids": src,
                "attention_mask": src_mask,
                "decoder_input_ids": ids,
                "decoder_attention_mask": mask,
            }
        with inference(self.model), self.recording.of(self.model) as seen:
            self.model(**given)
        _label(self, seen, read)
        return seen.traces

    def _named(self, i: int, trace: AnyTrace, log_probs: Sequence[float]) -> AnyTrace:
        """Return a trace with the texts of prompt and answer, their probabilities and its name."""
        prompt, new = self.prompt_of(i), self.new_ids[i]
        info = self._decoding_info(i, sum(log_probs))
        if self.is_decoder:
            whole = written(self.tokenizer, new, after=prompt)
            trace = replace(trace, notes=(prompt_note(len(prompt.ids)), *trace.notes))
        else:
            whole = written(self.tokenizer, self.decoder_ids[i][1:])
        target = self._with_probs(i, whole, log_probs)
        trace = self.recording.numbered(trace)
        return named_trace(self.model, trace, prompt.text, target, info)

    def _with_probs(self, i: int, text: Text, log_probs: Sequence[float]) -> Text:
        """Return a text with the probabilities of its last tokens, and the likeliest others."""
        new, tokens = self.new_ids[i], list(text.tokens)
        first = len(tokens) - len(new)
        for step, (own, row) in enumerate(zip(new, self.rows[i], strict=True)):
            probs = self.found.logits[step][row].float().softmax(-1)
            tokens[first + step] = with_prob(
                tokens[first + step],
                math.exp(min(log_probs[step], 0.0)),
                likeliest(self.tokenizer, probs, own),
            )
        return replace(text, tokens=tuple(tokens))

    def _decoding_info(self, i: int, log_prob: float) -> DecodingInfo:
        config = self.options.get("generation_config", self.model.generation_config)
        beams = int(self.options.get("num_beams") or getattr(config, "num_beams", None) or 1)
        sampled = self.options.get("do_sample", getattr(config, "do_sample", False))
        mode = "sample" if sampled else "beam" if beams > 1 else "greedy"
        each = len(self.found.sequences) // len(self.prompts)
        return DecodingInfo(mode, None if sampled else beams, i % each, log_prob)


def classified(config: Any, logits: Tensor) -> PretrainedOutput:
    """Return the answer of a classifier, given its logits (classes,).

    A head of classes answers the likeliest, a head of independent labels the probability of each,
    and a regression its numbers, which have no probability.
    """
    names = [str(config.id2label.get(i, i)) for i in range(len(logits))]
    scale = head_scale(config)
    if scale == "none":
        named = zip(names, logits.tolist(), strict=True)
        text = ", ".join(f"{name} {x:.6g}" if len(names) > 1 else f"{x:.6g}" for name, x in named)
        return PretrainedOutput(text, "", False, (), (), float(logits[0]))
    log_probs = logits.log_softmax(-1) if scale == "softmax" else F.logsigmoid(logits)
    order = log_probs.argsort(descending=True, stable=True).tolist()
    chosen = order[:1] if scale == "softmax" else [i for i in order if float(logits[i]) > 0]
    tokens, scores = (tuple(one[i] for i in chosen) for one in (names, log_probs.tolist()))
    probabilities = {names[i]: float(log_probs[i].exp()) for i in order}
    score, shown = sum(scores), tokens
    if scale == "sigmoid":  # labels that are left out count, too
        score += sum(float(F.logsigmoid(-logits[i])) for i in order if i not in chosen)
        shown = tuple(f"{name} {prob:.2f}" for name, prob in probabilities.items())
    return PretrainedOutput(
        ", ".join(shown), "", False, tokens, scores, score, probabilities=probabilities
    )


def classes_note(found: PretrainedOutput) -> str:
    """Return the note of a trace on the likeliest classes, or on the number of a regression."""
    if not found.probabilities:
        return f"the number that it predicts: {found.text}"
    likeliest = list(found.probabilities.items())[:ALTERNATIVES]
    return f"class and probability: {', '.join(f'{name} {p:.2f}' for name, p in likeliest)}"


def token_log_prob(logits: Tensor, token: int) -> float:
    """Return the log-probability of a token under the model, before `generate()` edits scores."""
    return float(logits.float().log_softmax(-1)[token])


def prompt_note(count: int) -> str:
    """Return the note of a trace on where the prompt of a decoder-only model ends."""
    return (
        "the first token is the prompt"
        if count == 1
        else f"the first {count} tokens are the prompt"
    )


def likeliest(tokenizer: Any, probs: Tensor, own: int) -> list[tuple[str, float]]:
    """Return the likeliest tokens but one, with their probabilities."""
    best = probs.topk(min(ALTERNATIVES + 1, len(probs)))
    found = zip(
        labels(tokenizer, best.indices.tolist()),
        best.values.tolist(),
        best.indices.tolist(),
        strict=True,
    )
    return [(label, prob) for label, prob, one in found if one != own][:ALTERNATIVES]


def named_trace(
    model: Any, trace: AnyTrace, source: Text, target: Text, info: DecodingInfo | None
) -> AnyTrace:
    """Return a recorded trace with its texts.

    Of a decoder-only model, and of an encoder, the positions are those of the target as far as it
    was read. The rows of an encoder-decoder are the tokens that it wrote, and the columns of its
    self-attention are those that it read.

    Args:
        model: of transformers.
        trace: of its capture.
        source: what it was given.
        target: what it read and wrote.
        info: how the target was decoded.
    """
    maps: Any = trace.maps
    if model.config.is_encoder_decoder:
        maps = tuple(map(_own_sides, maps))
    else:
        read = len(trace.source.tokens)
        source = _first(target, read)
    named = replace(
        trace,
        source=source,
        target=target,
        maps=maps,
        model=ModelInfo(_name_of(model), model.config.model_type),
        decoded=info or DecodingInfo(),
    )
    return with_segmented_words(named) if isinstance(named, Trace) else named


def _own_sides(found: Any) -> Any:
    """Return a map of a decoder with the sides that its kind has in regard."""
    own = found.kind == "decoder-self"
    return replace(found, columns="read") if own else found


def _first(text: Text, count: int) -> Text:
    """Return the first tokens of a text, and the part of it that they are."""
    if count >= len(text.tokens):
        return text
    kept = text.tokens[:count]
    end = max((token.span[1] for token in kept if token.span is not None), default=0)
    return Text(text.text[:end], kept)


def _label(steps: _Steps, seen: CaptureResult, read: Sequence[Sequence[int]]) -> None:
    """Name the positions that were read, by which padding is found and cut off."""
    names = [[str(one) for one in ids] for ids in read]
    if steps.is_decoder:
        seen.label(names)
    else:
        prompts = [steps.prompt_of(i).text.labels for i in range(len(read))]
        seen.label(prompts, names)


def _fits(trace: AnyTrace, read: Sequence[int]) -> bool:
    """Return whether a trace has as many target positions as were read."""
    return len(trace.target.tokens) == len(read)


def _name_of(model: Any) -> str:
    name = getattr(model.config, "name_or_path", "") or ""
    return Path(name).name or type(model).__name__


def _limit(model: Any, width: int, options: dict[str, Any]) -> dict[str, int]:
    """Return the number of new tokens if nobody has set one, as far as there are positions.

    Raises ArgumentError if more are asked for than the model has positions.
    """
    config = options.get("generation_config", model.generation_config)
    room = _room(model, width)
    asked = options.get("max_new_tokens")
    if room is not None and asked is not None and asked > room:
        rule = f"be at most {room}, for which the model has positions"
        raise ArgumentError("max_new_tokens", rule, asked, "lower it, or shorten the text")
    limits = (options.get("max_length"), asked, config.max_new_tokens)
    if any(one is not None for one in limits) or config.max_length not in (None, LIBRARY_LENGTH):
        return {}
    return {"max_new_tokens": MAX_NEW_TOKENS if room is None else min(MAX_NEW_TOKENS, room)}


def default_new_tokens(model: Any, width: int) -> int:
    """Return the most tokens that a model writes after a source of `width` tokens by itself."""
    config, room = model.generation_config, _room(model, width)
    most = config.max_new_tokens
    if most is None and config.max_length not in (None, LIBRARY_LENGTH):
        most = config.max_length - (0 if model.config.is_encoder_decoder else width)
    most = MAX_NEW_TOKENS if most is None else most
    return max(1, most if room is None else min(most, room))


def _room(model: Any, width: int) -> int | None:
    """Return the tokens that a model has positions to write; None if they are unlimited."""
    most = max_positions(model)
    if most is None or model.config.is_encoder_decoder:
        return most
    return most + 1 - width
