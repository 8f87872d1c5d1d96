"""`regard.generate`: the answer of a language model, and one trace of prompt and answer."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from regard import extras
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.models.protocol import inference
from regard.pretrained.output import (
    Recording,
    named_trace,
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
from regard.seeing.trace.output import Output
from regard.seeing.trace.trace import DecodingInfo, Text, Trace

#: new tokens if neither the caller nor the generation config limits them
MAX_NEW_TOKENS: Final = 40
#: length of prompt and answer that transformers assumes if nobody sets one
LIBRARY_LENGTH: Final = 20
#: arguments of `generate()` that regard sets itself
OWN_OPTIONS: Final = (
    *("inputs", "input_ids", "attention_mask", "decoder_input_ids", "inputs_embeds", "streamer"),
    *("return_dict_in_generate", "output_logits", "output_attentions", "output_scores"),
)
#: those by which tokens that were read are less likely, those of the padding among them
PENALTIES: Final = ("repetition_penalty", "encoder_repetition_penalty")
#: what `generate()` is always asked to return
RETURNED: Final = {"return_dict_in_generate": True, "output_scores": True}
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

    Weights and probabilities are those of one forward pass over prompt and answer, which equal
    those of the steps that wrote it. Of a decoder-only model, rows and columns are the positions
    that it read: prompt and answer, but for the last token, which nothing has read. Of an
    encoder-decoder, a row is a token that it wrote.

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
        An `Output`, or a list of them for several texts. Further sequences, as of
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
    recording = Recording(layers, max_weights) if attention else None
    answers, ranked = _call(model, tokenizer, encoded, options)
    ends, decoder = _end_ids(model, tokenizer, options), not model.config.is_encoder_decoder
    found = []
    again = read_again(model, tokenizer, answers, recording)
    for i, (one, (trace, scores)) in enumerate(zip(answers, again, strict=True)):
        maps = {} if trace is None else {kind: trace.of_kind(kind) for kind in trace.kinds}
        output = Output(
            text=continuation(tokenizer, one.prompt.ids if decoder else [], one.ids),
            score=sum(scores) if ranked is None else ranked[i],
            log_prob=math.fsum(scores),
            tokens=labels(tokenizer, one.ids),
            src_tokens=[] if trace is None else trace.source.labels,
            token_log_probs=scores,
            maps={kind: tuple(own.weights for own in every) for kind, every in maps.items()},
            finished=bool(one.ids) and one.ids[-1] in ends,
            unknown=one.prompt.unknown(tokenizer.unk_token_id),
            trace_maker=None if trace is None else partial(replace, trace),
            prompt=one.prompt.text.text,
            continues=decoder,
        )
        found.append(output)
    each = len(found) // len(texts)
    outputs = [
        replace(found[i], alternatives=tuple(found[i + 1 : i + each]))
        for i in range(0, len(found), each)
    ]
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


class WrittenAnswer(NamedTuple):
    """An answer that was written, or that is to be forced.

    Attributes:
        prompt: what it answers.
        ids: its tokens.
        read: what the decoder has read in the end: of a decoder-only model, the prompt first.
        text: the answer; of a decoder-only model, after the prompt.
        decoded: how it was found.
    """

    prompt: TokenizedText
    ids: Sequence[int]
    read: Sequence[int]
    text: Text
    decoded: DecodingInfo = DecodingInfo()


def read_again(
    model: Any, tokenizer: Any, answers: Sequence[WrittenAnswer], recording: Recording | None
) -> Iterator[tuple[Trace | None, list[float]]]:
    """Yield the trace and the log-probabilities of each answer, by one forward pass over all.

    There are no traces if nothing is to be recorded.
    """
    pad, decoder = pad_id(model, tokenizer), not model.config.is_encoder_decoder
    # on the right, where no position depends on the padding
    ids, mask = padded([one.read for one in answers], pad, model.device, left=False)
    given = {"input_ids": ids, "attention_mask": mask}
    if not decoder:
        sources = padded([one.prompt.ids for one in answers], pad, model.device, left=False)
        given = dict(zip(given, sources, strict=True))
        given |= {"decoder_input_ids": ids, "decoder_attention_mask": mask}
    output, seen = run_once(model, recording, **given)
    traces: Sequence[Trace | None] = [None] * len(answers)
    if seen is not None:
        # names of the positions, by which padding is found and cut off
        names = [[str(token) for token in one.read] for one in answers]
        seen.label(*([names] if decoder else [[one.prompt.text.labels for one in answers], names]))
        traces = seen.traces[: len(answers)]
    for one, trace, logits in zip(answers, traces, output.logits, strict=True):
        # those that choose the first token, and its successors
        first = len(one.prompt.ids) - 1 if decoder else 0
        log_probs = logits[first : first + len(one.ids)].float().log_softmax(-1)
        text, scores = with_probs(tokenizer, one.text, one.ids, log_probs)
        if trace is not None and recording is not None:
            if decoder and one.ids:
                said = message("show.prompt", count=len(one.prompt.ids))
                trace = replace(trace, notes=(said, *trace.notes))
            info = replace(one.decoded, log_prob=sum(scores) if one.ids else None)
            trace = named_trace(model, recording.numbered(trace), one.prompt.text, text, info)
        yield trace, scores


def _call(
    model: Any, tokenizer: Any, prompts: Sequence[TokenizedText], options: dict[str, Any]
) -> tuple[list[WrittenAnswer], list[float] | None]:
    """Call `generate()` on padded batches of prompts; returns answers, and their scores if any.

    Prompts of a batch may have equally many new tokens, and are not padded if padding is penalised
    as a repeated token, so that no answer depends on the others.
    """
    config = options.get("generation_config", model.generation_config)
    penalties = (options.get(name, getattr(config, name, None)) for name in PENALTIES)
    penalised = any(one not in (None, 1.0) for one in penalties)
    limits = [(_limits(model, n, options), n * penalised) for n in (len(p.ids) for p in prompts)]
    found: list[tuple[list[WrittenAnswer], list[float] | None]] = [([], None)] * len(prompts)
    for limit in [one for i, one in enumerate(limits) if one not in limits[:i]]:
        places = [i for i, one in enumerate(limits) if one == limit]
        some = _call_batch(model, tokenizer, [prompts[i] for i in places], options | limit[0])
        for i, one in zip(places, some, strict=True):
            found[i] = one
    answers = [one for several, _ in found for one in several]
    scores = [score for _, several in found for score in several or ()]
    return answers, scores or None


def _call_batch(
    model: Any, tokenizer: Any, prompts: Sequence[TokenizedText], options: dict[str, Any]
) -> Iterator[tuple[list[WrittenAnswer], list[float] | None]]:
    """Yield the answers to each prompt of a padded batch, and their scores if any."""
    pad, decoder = pad_id(model, tokenizer), not model.config.is_encoder_decoder
    ids, mask = padded([one.ids for one in prompts], pad, model.device, left=decoder)
    given = {"pad_token_id": pad, **options, **RETURNED}
    with inference(model):
        found = model.generate(input_ids=ids, attention_mask=mask, **given)
    ends, start = _end_ids(model, tokenizer, options), ids.shape[1] if decoder else 1
    config = options.get("generation_config", model.generation_config)
    each = len(found.sequences) // len(prompts)
    answers = []
    for i, row in enumerate(found.sequences.tolist()):
        prompt, head, new = prompts[i // each], row[:start], row[start:]
        new = new[: next((j + 1 for j, token in enumerate(new) if token in ends), len(new))]
        read = [*(prompt.ids if decoder else head), *new[:-1]]
        text = written(tokenizer, new, after=prompt if decoder else None)
        info = DecodingInfo(*search_mode(options, config), i % each)
        answers.append(WrittenAnswer(prompt, new, read, text, info))
    scores = getattr(found, "sequences_scores", None)
    for i in range(0, len(answers), each):
        yield answers[i : i + each], None if scores is None else scores[i : i + each].tolist()


def search_mode(options: dict[str, Any], config: Any) -> tuple[str, int | None]:
    """Return how `generate()` searches, and the number of its beams."""
    beams = int(options.get("num_beams") or getattr(config, "num_beams", None) or 1)
    if options.get("do_sample", getattr(config, "do_sample", False)):
        return "sample", None
    return ("beam" if beams > 1 else "greedy"), beams


def _limits(model: Any, length: int, options: dict[str, Any]) -> dict[str, int]:
    """Return limits of new tokens after a prompt of this length.

    They are those that are given, which may count a decoder-only model's prompt, or else as many as
    there are positions. Raises ArgumentError for more than that, and for a prompt that has none.
    """
    config = options.get("generation_config", model.generation_config)
    room = _room(model, length)
    asked = options.get("max_new_tokens")
    if room is not None and asked is not None and asked > room:
        rule = f"be at most {room}, for which the model has positions"
        raise ArgumentError("max_new_tokens", rule, asked, "lower it, or shorten the text")
    told = {name: options.get(name, getattr(config, name)) for name in ("max_length", "min_length")}
    most, least = told.values()
    whole = most not in (None, LIBRARY_LENGTH) or "max_length" in options
    found = {}
    if asked is None and config.max_new_tokens is None:
        if not whole:
            found["max_new_tokens"] = MAX_NEW_TOKENS if room is None else min(MAX_NEW_TOKENS, room)
        elif not model.config.is_encoder_decoder:
            found["max_new_tokens"] = most - length
            if most <= length:
                rule = f"be above {length}, the tokens of the text"
                raise ArgumentError("max_length", rule, most, "give max_new_tokens (--max-len)")
    if least and not model.config.is_encoder_decoder:
        fewest = options.get("min_new_tokens", config.min_new_tokens)
        found["min_new_tokens"] = max(least - length, 0) if fewest is None else fewest
    return found


def _room(model: Any, width: int) -> int | None:
    """Return the tokens that a model has positions to write; None if they are unlimited."""
    most = _max_positions(model)
    if most is None or model.config.is_encoder_decoder:
        return most
    return most + 1 - width
