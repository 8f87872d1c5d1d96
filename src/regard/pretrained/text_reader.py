"""Texts that a model of transformers reads: to answer in one pass, or to write."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor

from regard.data.media_files import reject_media
from regard.errors import ArgumentError, RegardError
from regard.pretrained.folder import LoadedParts
from regard.pretrained.generation import WrittenAnswer, check_ids, read_again
from regard.pretrained.output import (
    PretrainedOutput,
    Recording,
    classes_note,
    classified,
    named_trace,
    run_once,
)
from regard.pretrained.token_texts import (
    TokenizedText,
    encode,
    encode_chat,
    joined,
    labels,
)

#: kinds of maps that the JSON of a prediction holds, of models that write
WRITTEN_MAPS: Final = {"text2text-generation": ("cross",), "text-generation": ("decoder-self",)}


@final
class TextReader:
    """Texts, and the answers of a model to them in one pass.

    Attributes:
        generates: whether the model writes text step by step.
        shown_maps: kinds of maps that the JSON of a prediction holds.
    """

    def __init__(self, parts: LoadedParts, path: Path) -> None:
        self.module, self.tokenizer, self.task = parts
        self.path = path
        self.generates = self.task in WRITTEN_MAPS
        self.shown_maps = WRITTEN_MAPS.get(self.task, ("encoder-self",))
        #: True for an encoder-decoder; other models continue what they read, or write nothing
        self.translates = bool(self.module.config.is_encoder_decoder)

    def check_predicts(self) -> None:
        """Raise RegardError for a model without an output layer."""
        if self.task.endswith("feature-extraction"):
            raise RegardError(
                f"a model must have an output layer to predict, but {self.path} is a "
                f"{type(self.module).__name__}: see where it looks with `regard show` or .trace."
            )

    def check(self, source: Any, chat: bool = False) -> TokenizedText:
        """Return a text as tokens; raises for none, and for more than the model has positions."""
        if not isinstance(source, str):
            reject_media(source)
            raise ArgumentError("text", "be a string", repr(source), "pass a text")
        found = encode_chat(self.tokenizer, source) if chat else encode(self.tokenizer, source)
        check_ids(self.module, [found])
        return found

    def check_answers(self, read: TokenizedText) -> None:
        """Raise for a text that the model predicts nothing for: without a mask, BERT does not."""
        self.check_predicts()
        if self.task == "fill-mask" and self.tokenizer.mask_token_id not in read.ids:
            raise ArgumentError(
                "text",
                f"have a {self.tokenizer.mask_token} for the model to fill",
                repr(read.text.text),
                "put one in, or see where the model looks with `regard show`",
            )

    def written(self, prompt: TokenizedText, target: str) -> tuple[list[int], TokenizedText]:
        """Return the ids of a target, and all that is written: of a decoder the prompt, too.

        Raises if the model has too few positions.
        """
        answer = encode(self.tokenizer, target, special=self.translates, target=self.translates)
        whole = answer if self.translates else joined(self.tokenizer, prompt, answer.ids)
        check_ids(self.module, [whole])
        return answer.ids, whole

    def inputs(self, read: TokenizedText) -> dict[str, Tensor]:
        """Return the arguments of one pass."""
        ids = torch.tensor([read.ids], device=self.module.device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def answer(self, source: Any, recording: Recording | None) -> PretrainedOutput:
        """Return the answer of a model that reads a text in one pass, and its self-attention."""
        read = self.check(source)
        self.check_answers(read)
        output, seen = run_once(self.module, recording, **self.inputs(read))
        found = replace(self._named(read, output.logits[0].float()), prompt=read.text.text)
        if recording is None:
            return found
        trace = named_trace(self.module, recording.first_trace(seen), read.text, read.text)
        if self.task == "text-classification":
            trace = replace(trace, notes=(classes_note(found), *trace.notes))
        return replace(found, recorded=trace)

    def _named(self, read: TokenizedText, logits: Tensor) -> PretrainedOutput:
        """Return the class, the class of each token, or the text with its masks filled."""
        if self.task == "text-classification":
            return classified(self.module.config, logits)
        best = logits.log_softmax(-1).max(dim=-1)
        if self.task == "token-classification":
            places = [i for i, token in enumerate(read.text.tokens) if not token.special]
            tokens = [self.module.config.id2label[int(best.indices[i])] for i in places]
            text = " ".join(tokens)
        else:
            places = [i for i, one in enumerate(read.ids) if one == self.tokenizer.mask_token_id]
            ids = list(read.ids)
            for i in places:
                ids[i] = int(best.indices[i])
            tokens = labels(self.tokenizer, [ids[i] for i in places])
            text = str(self.tokenizer.decode(ids, skip_special_tokens=True))
        scores = tuple(float(best.values[i]) for i in places)
        return PretrainedOutput(text, "", False, tuple(tokens), scores, sum(scores))

    def trace(
        self, source: Any, target: str | None, recording: Recording, *, chat: bool = False
    ) -> Any:
        """Return the trace of one pass, in which a model that writes is made to write a target."""
        read = self.check(source, chat)
        if not self.generates:
            _, seen = run_once(self.module, recording, **self.inputs(read))
            return named_trace(self.module, recording.first_trace(seen), read.text, read.text)
        ids, whole = self.written(read, target or "")
        reads = self._shifted(ids) if self.translates else whole.ids
        forced = WrittenAnswer(read, ids, reads, whole.text)
        ((trace, _),) = read_again(self.module, self.tokenizer, [forced], recording)
        return trace

    def _shifted(self, ids: Sequence[int]) -> list[int]:
        """Return a target as a decoder reads it: its start token first, without the last."""
        shift = getattr(self.module, "prepare_decoder_input_ids_from_labels", None)
        if shift is not None:
            found: list[int] = shift(labels=torch.tensor([ids]))[0].tolist()
            return found
        return [decoder_start(self.module), *ids[:-1]]


def decoder_start(model: Any) -> int:
    """Return the token that the decoder of an encoder-decoder begins with."""
    configs = (getattr(model, "generation_config", None), model.config)
    found = (getattr(config, "decoder_start_token_id", None) for config in configs)
    return next((one for one in found if isinstance(one, int)), 0)
