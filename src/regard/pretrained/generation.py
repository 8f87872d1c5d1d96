"""`regard.generate`: the answer of a language model, and one trace of prompt and answer."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from regard import extras
from regard.errors import ArgumentError, DataError
from regard.models.protocol import inference
from regard.pretrained.output import (
    PretrainedOutput,
    Recording,
    named_trace,
    prompt_note,
    run_once,
    with_probs,
)
from regard.pretrained.token_texts import (
    TokenizedText,
    continuation,
    encode,
    encode_chat,
    labels,
    written,
)
from regard.seeing.capture.capture_result import MAX_WEIGHTS
from regard.seeing.trace import DecodingInfo, Trace

#: new tokens if neither the caller nor the generation config limits them
MAX_NEW_TOKENS: Final = 40
#: length of prompt and answer that transformers assumes if nobody sets one
LIBRARY_LENGTH: Final = 20
#: arguments of `generate()` that regard sets itself
OWN_OPTIONS: Final = (
    *("inputs", "input_ids", "attention_mask", "decoder_input_ids", "inputs_embeds", "streamer"),
    *("return_dict_in_generate", "output_logits", "output_attentions", "output_scores"),
)
#: what `generate()` is always asked to return
RETURNED: Final = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True}
#: names of tables of positions
POSITIONS: Final = re.compile(r"(^|\.)(wpe|embed_positions|position_embeddings)$")


def generate(
    model: Any,
    tokenizer: Any,
    text: str | Sequence[str],
    *,
    chat: bool = False,
    attention: bool = True,
    layers: Any = None,
    max_weights: int = MAX_WEIGHTS,
    **options: Any,
) -> Any:
    """Generate an answer with a model of transformers, and record one trace of prompt and answer.

        out = regard.generate(model, tokenizer, "The cat sat", max_new_tokens=20)
        print(out)
        out.trace.show()

    The weights are those of one forward pass over prompt and answer. Of a decoder-only model, rows
    and columns are the positions that it read: prompt and answer, but for the last token, which
    nothing has read. Of an encoder-decoder, a row is a token that it wrote.

    Args:
        model: with `generate()`, decoder-only or encoder-decoder.
        tokenizer: its tokenizer.
        text: a prompt, or several, which are padded to one batch: on the left for a decoder-only
            model, since its answer must follow the prompt.
        chat: whether a text is a message, to be put in the tokenizer's chat template.
        attention: whether to record attention; without, generation is faster.
        layers: numbers of layers to record, or modules, as in `regard.capture`.
        max_weights: number of weights that are kept; default as there.
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
    recording = Recording(layers, max_weights)
    steps = _Steps.run(model, tokenizer, encoded, options, recording if attention else None)
    outputs = steps.outputs()
    return outputs[0] if isinstance(text, str) else outputs


def check_ids(model: Any, encoded: Sequence[TokenizedText]) -> None:
    """Raise for an empty text, and for tokens or positions that the model has no row for."""
    rows = model.get_input_embeddings().weight.shape[0]
    most = _max_positions(model)
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


def _max_positions(model: Any) -> int | None:
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
    """A call of `generate()`: what it was given, and what it returned.

    Attributes:
        model: of transformers.
        tokenizer: its tokenizer.
        prompts: what it was given.
        options: of `generate()`.
        found: what it returned.
        recording: what is to be recorded; None for nothing.
    """

    model: Any
    tokenizer: Any
    prompts: Sequence[TokenizedText]
    options: dict[str, Any]
    found: Any
    recording: Recording | None

    @staticmethod
    def run(
        model: Any,
        tokenizer: Any,
        prompts: Sequence[TokenizedText],
        options: dict[str, Any],
        recording: Recording | None,
    ) -> "_Steps":
        """Call `generate()` on a padded batch of prompts."""
        pad = pad_id(model, tokenizer)
        rows, left = [one.ids for one in prompts], not model.config.is_encoder_decoder
        ids, mask = padded(rows, pad, model.device, left=left)
        given = {"pad_token_id": pad, **_limit(model, ids.shape[1], options), **options, **RETURNED}
        with inference(model):
            found = model.generate(input_ids=ids, attention_mask=mask, **given)
        return _Steps(model, tokenizer, prompts, options, found, recording)

    def outputs(self) -> list[PretrainedOutput]:
        """Return the output of each prompt, with its further sequences as alternatives."""
        none = [None] * len(self.new_ids)
        traces = none if self.recording is None else self._traces(self.recording)
        every = [self._output(i, trace) for i, trace in enumerate(traces)]
        each = len(every) // len(self.prompts)
        return [
            replace(every[i], alternatives=tuple(every[i + 1 : i + each]))
            for i in range(0, len(every), each)
        ]

    @property
    def is_decoder(self) -> bool:
        """True for a decoder-only model."""
        return not self.model.config.is_encoder_decoder

    def prompt_of(self, hypothesis: int) -> TokenizedText:
        """Return the prompt of a sequence."""
        return self.prompts[hypothesis * len(self.prompts) // len(self.found.sequences)]

    @cached_property
    def beams(self) -> list[list[int]] | None:
        """The row of the batch of each step of each sequence; None unless beams were searched."""
        found = getattr(self.found, "beam_indices", None)
        return None if found is None else found.tolist()

    @cached_property
    def ends(self) -> set[int]:
        """The ids that end an answer."""
        return _end_ids(self.model, self.tokenizer, self.options)

    @cached_property
    def start(self) -> int:
        """Number of tokens of a sequence that were not generated."""
        steps = len(self.found.logits) if self.beams is None else len(self.beams[0])
        return int(self.found.sequences.shape[1]) - steps

    @cached_property
    def new_ids(self) -> list[list[int]]:
        """The generated tokens of each sequence, an end-of-sequence token last if there is one."""
        rows = []
        for i, row in enumerate(self.found.sequences[:, self.start :].tolist()):
            if self.beams is not None:
                count = sum(place >= 0 for place in self.beams[i])
            else:
                count = next((j + 1 for j, one in enumerate(row) if one in self.ends), len(row))
            rows.append(row[:count])
        return rows

    @cached_property
    def rows(self) -> list[list[int]]:
        """The row of the batch that each sequence was in, at each of its steps."""
        if self.beams is None:
            return [[i] * len(ids) for i, ids in enumerate(self.new_ids)]
        return [[row for row in rows if row >= 0] for rows in self.beams]

    @cached_property
    def decoder_ids(self) -> list[list[int]]:
        """All tokens that each decoder was given or wrote, without padding."""
        if self.is_decoder:
            return [[*self.prompt_of(i).ids, *new] for i, new in enumerate(self.new_ids)]
        heads = self.found.sequences[:, : self.start].tolist()
        return [[*head, *new] for head, new in zip(heads, self.new_ids, strict=True)]

    def _output(self, i: int, trace: Trace | None) -> PretrainedOutput:
        prompt, new = self.prompt_of(i), self.new_ids[i]
        # of the logits: scores are changed by penalties and forbidden repeats
        steps = zip(self.found.logits, self.rows[i], strict=False)
        log_probs = (logits[row].float().log_softmax(-1) for logits, row in steps)
        ranked = getattr(self.found, "sequences_scores", None)
        if trace is None:
            scores = [float(row[one]) for row, one in zip(log_probs, new, strict=True)]
        else:
            if self.is_decoder:
                whole = written(self.tokenizer, new, after=prompt)
            else:
                whole = written(self.tokenizer, self.decoder_ids[i][1:])
            target, scores = with_probs(self.tokenizer, whole, new, log_probs)
            info = self._decoding_info(i, sum(scores))
            if self.is_decoder:
                trace = replace(trace, notes=(prompt_note(len(prompt.ids)), *trace.notes))
            trace = named_trace(self.model, trace, prompt.text, target, info)
        return PretrainedOutput(
            text=continuation(self.tokenizer, prompt.ids if self.is_decoder else [], new),
            prompt=prompt.text.text,
            continues=self.is_decoder,
            tokens=tuple(labels(self.tokenizer, new)),
            token_log_probs=tuple(scores),
            score=sum(scores) if ranked is None else float(ranked[i]),
            finished=bool(new) and new[-1] in self.ends,
            unknown=prompt.unknown(self.tokenizer.unk_token_id),
            recorded=trace,
        )

    def _traces(self, recording: Recording) -> list[Trace]:
        """Return the trace of each sequence by one forward pass over all, before it has names."""
        read = [ids[:-1] for ids in self.decoder_ids]
        pad, device = pad_id(self.model, self.tokenizer), self.model.device
        # on the right, where no position depends on the padding
        ids, mask = padded(read, pad, device, left=False)
        given = {"input_ids": ids, "attention_mask": mask}
        if not self.is_decoder:
            sources = [self.prompt_of(i).ids for i in range(len(read))]
            given = {"decoder_input_ids": ids, "decoder_attention_mask": mask}
            given["input_ids"], given["attention_mask"] = padded(sources, pad, device, left=False)
        _, seen = run_once(self.model, recording, **given)
        names = [[str(one) for one in ids] for ids in read]  # by which padding is cut off
        if self.is_decoder:
            seen.label(names)
        else:
            seen.label([self.prompt_of(i).text.labels for i in range(len(read))], names)
        return [recording.numbered(trace) for trace in seen.traces[: len(read)]]

    def _decoding_info(self, i: int, log_prob: float) -> DecodingInfo:
        config = self.options.get("generation_config", self.model.generation_config)
        each = len(self.found.sequences) // len(self.prompts)
        return DecodingInfo(*search_mode(self.options, config), i % each, log_prob)


def search_mode(options: dict[str, Any], config: Any) -> tuple[str, int | None]:
    """Return how `generate()` searches, and the number of its beams."""
    beams = int(options.get("num_beams") or getattr(config, "num_beams", None) or 1)
    if options.get("do_sample", getattr(config, "do_sample", False)):
        return "sample", None
    return ("beam" if beams > 1 else "greedy"), beams


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


def _room(model: Any, width: int) -> int | None:
    """Return the tokens that a model has positions to write; None if they are unlimited."""
    most = _max_positions(model)
    if most is None or model.config.is_encoder_decoder:
        return most
    return most + 1 - width
