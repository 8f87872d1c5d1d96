"""`PretrainedModel`: a model of transformers, opened by its folder, to predict and to trace."""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch import Tensor

from regard import safe_read
from regard.data.media_files import reject_media
from regard.decoding_options import DEFAULT, DecodingOptions, check_least
from regard.errors import ArgumentError, DataError, RegardError
from regard.models.protocol import inference
from regard.pretrained.folder import LoadedParts, load_parts, quiet_transformers
from regard.pretrained.generation import (
    AnyTrace,
    PretrainedOutput,
    Recording,
    check_ids,
    classes_note,
    classified,
    generate,
    generate_after,
    likeliest,
    named_trace,
    pad_id,
    padded,
    prompt_note,
    token_log_prob,
)
from regard.pretrained.token_texts import (
    TokenizedText,
    encode,
    encode_chat,
    labels,
    with_prob,
    written,
    written_plainly,
)
from regard.seeing.attribution.interventions import AttentionCell, module_switches
from regard.seeing.attribution.transformers_check import decoder_start, head_scale
from regard.seeing.attribution.what_if import (
    Intervention,
    WhatIf,
    attention_modules,
    check_seeded,
    intervened,
)
from regard.seeing.capture.capture_result import CapturedModule
from regard.seeing.trace import DecodingInfo, ModelInfo, Text, Trace

if TYPE_CHECKING:
    from regard.seeing.capture.query_recorder import QueryRecorder

BATCH: Final = 8
#: names of decoding options in transformers
NAMES: Final = {
    "max_len": "max_new_tokens",
    "min_len": "min_new_tokens",
    "no_repeat_ngram": "no_repeat_ngram_size",
}
#: options of regard's own search, which transformers does not have or defines otherwise
FOREIGN: Final = ("length_penalty", "forbid_unknown", "prefix")
#: weights files that are hashed; larger ones would take longer to read than the model to answer
MAX_HASHED: Final = 1 << 28


class TransformersModel:
    """Common parts of models of transformers, whatever they read.

    Attributes:
        path: its folder.
        module: the model itself.
        tokenizer: of the texts that it reads or writes; None if there are none.
        task: as transformers names it.
        device: where it is.
        trace: returns the trace of a source, and of a target that it is made to write.
    """

    # defined by each model
    trace: ClassVar[Callable[..., Any]]

    def __init__(self, parts: LoadedParts, path: str | Path, device: torch.device) -> None:
        self.module, self.tokenizer, self.task = parts[:3]
        self.path, self.device = Path(path), device

    def __repr__(self) -> str:
        parts = {
            "type": self.module.config.model_type,
            "task": self.task,
            "weights": sum(weight.numel() for weight in self.module.parameters()),
            "device": str(self.device),
        }
        shown = ", ".join(f"{name}={value!r}" for name, value in parts.items())
        return f"{type(self).__name__}({str(self.path)!r}, {shown})"

    @cached_property
    def info(self) -> ModelInfo:
        """Name, type and checkpoint, as traces hold them; no checkpoint of very large weights."""
        files = sorted(self.path.glob("*.safetensors"))
        checkpoint = ""
        if files and sum(file.stat().st_size for file in files) <= MAX_HASHED:
            digest = hashlib.blake2b(digest_size=6)
            for file in files:
                digest.update(safe_read.read_bytes(file, MAX_HASHED))
            checkpoint = digest.hexdigest()
        return ModelInfo(self.path.resolve().name, self.module.config.model_type, checkpoint)

    def traces(
        self, sources: Sequence[Any], targets: Sequence[str] | None = None, **options: Any
    ) -> list[Trace]:
        """Return the trace of each of several sources; see `trace`."""
        wanted = [None] * len(sources) if targets is None else targets
        return [self.trace(one, tgt, **options) for one, tgt in zip(sources, wanted, strict=True)]

    def _named(self, output: PretrainedOutput) -> PretrainedOutput:
        """Return an output whose traces name this model."""
        trace = None if output.recorded is None else replace(output.recorded, model=self.info)
        return replace(
            output, recorded=trace, alternatives=tuple(map(self._named, output.alternatives))
        )


class PretrainedModel(TransformersModel):
    """A model of transformers with its tokenizer: call it with a text, or with many.

    Attributes:
        path: its folder.
        module: the model itself.
        tokenizer: its tokenizer.
        task: as transformers names it: `text-generation`, `text2text-generation`, `fill-mask`,
            `text-classification`, `token-classification` or `feature-extraction`.
        device: where it is.

    Examples:
        >>> model = regard.load("tiny-llama")  # a folder that `save_pretrained` wrote
        >>> model
        PretrainedModel('tiny-llama', type='llama', task='text-generation', weights=5104, ...)
        >>> out = model("the cat sat", max_len=3)
        >>> out.trace.kinds
        ['decoder-self']
    """

    @staticmethod
    def load(
        folder: str | Path,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        allow_pickle: bool = False,
    ) -> "PretrainedModel":
        """Load a folder that `save_pretrained` wrote; see `pretrained.folder`."""
        parts = load_parts(folder, device, dtype, allow_pickle=allow_pickle)
        return PretrainedModel(parts, folder, device)

    @property
    def generates(self) -> bool:
        """True if the model writes text."""
        return self.task in ("text-generation", "text2text-generation")

    def __call__(self, text: Any, **options: Any) -> Any:
        """Return the output of a text, or of each of several; see `predict`."""
        reject_media(text)  # here alone: a server must not tell a text from the name of a file
        if isinstance(text, str):
            return next(self.predict([text], **options))
        return list(self.predict(text, **options))

    def predict(
        self,
        texts: Iterable[str],
        *,
        attention: bool = True,
        chat: bool = False,
        batch: int = BATCH,
        layers: Any = None,
        max_weights: int | None = None,
        top_k_weights: int | None = None,
        heads: Sequence[int] | None = None,
        **options: Any,
    ) -> Iterator[PretrainedOutput]:
        """Yield an output for each text, in order.

        A language model continues the text, an encoder-decoder translates or answers it, a model
        with masks fills them, and a classifier names its class, or that of each word.

        Args:
            texts: to answer.
            attention: whether outputs carry traces; faster without.
            chat: whether a text is a message, to be put in the tokenizer's chat template.
            batch: texts at a time.
            layers: numbers of layers to record, or modules, as in `regard.capture`.
            max_weights: number of weights that are kept; default as there.
            top_k_weights: number of weights of each row that are kept, for long texts, as there.
            heads: numbers of the heads to keep with `top_k_weights`.
            options: those of `DecodingOptions` that transformers has: `beam`, `nbest`, `max_len`,
                `min_len`, `no_repeat_ngram`, `num_samples`, `temperature`, `top_k`, `top_p` and
                `seed`.
        """
        check_least(1, batch=batch)
        recording = Recording(layers, max_weights, top_k_weights, heads)
        self._check_heads(heads)
        if not self.generates:
            self._check_no_options(chat, options)
            for text in texts:
                yield self._classify(text, recording if attention else None)
            return
        settings, seed = self.generate_options(options)
        draws = random.Random(seed)
        for some in _in_batches(texts, batch):
            own = None if seed is None else draws.getrandbits(63)
            with seeded(own, self.device), quiet_transformers():
                found = generate(
                    self.module,
                    self.tokenizer,
                    some,
                    chat=chat,
                    attention=attention,
                    **vars(recording),
                    **settings,
                )
            yield from map(self._named, found)

    def trace(
        self,
        text: str,
        target: str | None = None,
        *,
        chat: bool = False,
        queries: bool = False,
        **options: Any,
    ) -> Any:
        """Return the attention of each position while the model reads and writes.

        Args:
            text: the source or the prompt.
            target: what the model is made to write; its own output if None.
            chat: whether the text is a message, to be put in the tokenizer's chat template.
            queries: whether to keep queries and keys, which explain each weight; of an answer that
                is not decoded greedily, there are none.
            options: of `predict`; with `top_k_weights`, the trace is a `LongTrace`.
        """
        if queries:
            if options.get("top_k_weights") is not None:
                rule = "be left out where only the strongest weights are kept"
                raise ArgumentError("queries", rule, "given", "leave out one of the two")
            with recorded_queries(self.module) as seen:
                trace = self.trace(text, target, chat=chat, **options)
            return seen.added_to(trace)
        recording: dict[str, Any] = {
            name: options.pop(name) for name in vars(Recording()) if name in options
        }
        self._check_heads(recording.get("heads"))
        if not self.generates:
            self._check_no_options(chat, options, target)
            return self._classify(text, Recording(**recording), predicts=False).trace
        if target is not None or options.get("max_len") == 0:
            forced = self._forced(text, target or "", chat, Recording(**recording))
            return replace(forced, model=self.info)
        (found,) = self.predict([text], chat=chat, **recording, **options)
        return found.trace

    def stream(self, text: str, on_token: Callable[[str, float], None], **options: Any) -> Trace:
        """Generate greedily, pass on each token as it is written, and return the trace.

        Args:
            text: the source or the prompt.
            on_token: called with the label and the log-probability of each token.
            options: of `predict`, but for those of several answers.
        """
        from transformers import StoppingCriteriaList

        logits: Tensor

        def keep(module: Any, given: Any, output: Any) -> None:
            nonlocal logits
            logits = output.logits[0, -1]

        def pass_on(ids: Tensor, scores: Any, **_: Any) -> Tensor:
            own = int(ids[0, -1])
            # of the logits: `scores` are changed by penalties and forbidden repeats
            on_token(labels(self.tokenizer, [own])[0], token_log_prob(logits, own))
            return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

        settings, _ = self.generate_options({"beam": 1, **options})
        self._encoded(text)
        hook = self.module.register_forward_hook(keep)
        try:
            with quiet_transformers():
                found: PretrainedOutput = generate(
                    self.module,
                    self.tokenizer,
                    text,
                    **settings,
                    stopping_criteria=StoppingCriteriaList([pass_on]),
                )
        finally:
            hook.remove()
        trace: Trace = self._named(found).trace
        return trace

    def check(
        self,
        text: str,
        target: str | None = None,
        *,
        methods: str = "all",
        versus: str | None = None,
        max_len: int | None = None,
    ) -> Trace:
        """Return a trace with what mattered to each output, by several attribution methods.

        Args:
            text: the source or the prompt, or the text to classify or with masks to fill.
            target: what the model is made to write; its own greedy output if None.
            methods: names separated by commas, or `all`; see `seeing.attribution.methods`.
            versus: a token or class that each output is compared with.
            max_len: most tokens that the model writes by itself; 20 if None.
        """
        self._check_answers(self._encoded(text))
        number = self.task == "text-classification" and head_scale(self.module.config) == "none"
        if number or self.task == "token-classification":
            raise RegardError(
                f"a model must write, fill masks or choose a class to be checked, but "
                f"{self.path} is a {type(self.module).__name__}: see where it looks with "
                f"`regard show` or .trace."
            )
        # loads the compiler of torch
        from regard.seeing.attribution.transformers_check import MAX_NEW_TOKENS, check_text

        found = check_text(
            self.module,
            self.tokenizer,
            text,
            target,
            methods=methods,
            versus=versus,
            text_of=partial(written_plainly, self.tokenizer),
            max_new_tokens=MAX_NEW_TOKENS if max_len is None else max_len,
        )
        return replace(found, model=self.info)

    def what_if(
        self,
        text: str,
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
            text: the source or the prompt.
            replace: text by the number of the source token that it replaces, counted from 0; the
                whole text is then tokenised anew.
            prefix: text that the output begins with; of a decoder-only model, after the prompt.
            heads_off: kind, layer and head of each head that is switched off.
            cells: of attention maps: kind, layer, head (None for all), row, column and weight; the
                other cells of the row share the rest in proportion.
            options: of decoding, as for a call; the same for both.
        """
        return self.intervene(text, Intervention.of(replace, prefix, heads_off, cells), options)

    def changed_source(self, text: str, change: Intervention) -> str:
        """Return a text with its tokens replaced."""
        return change.replaced(self._encoded(text).text)

    def intervene(self, text: str, change: Intervention, options: dict[str, Any]) -> WhatIf:
        """Decode a text as it is and with changes; see `what_if`."""
        check_seeded(options)
        read, changed = self._encoded(text).text, self.changed_source(text, change)
        before = self._answered(text, None, options)
        names = self._attention_names(text, before[0]) if change.heads_off or change.cells else {}
        encoder = [self.module.get_encoder()] if self.module.config.is_encoder_decoder else []
        with intervened(
            change,
            attention_modules(self.module, names),
            lambda: module_switches(self.module, names),
            encoder,
        ) as notes:
            after = self._answered(changed, change.prefix, options)
        traces, answers = (before[0], after[0]), (before[1], after[1])
        return WhatIf.of(change, traces, answers, notes, read)

    def _answered(
        self, text: str, prefix: str | None, options: dict[str, Any]
    ) -> tuple[Trace, str]:
        """Return the trace of an answer that begins with a prefix, and the answer as a text."""
        if not self.generates:
            self._check_no_options(False, options, prefix)
            if not self.answers(text):
                return self.trace(text), ""
            (output,) = self.predict([text])
            return output.trace, output.text
        if prefix is None:
            found = self.trace(text, **options)
        else:
            settings, seed = self.generate_options(options)
            prompt = self._encoded(text)
            begin = encode(
                self.tokenizer, prefix, special=False, target=self.module.config.is_encoder_decoder
            )
            with seeded(seed, self.device), quiet_transformers():
                output = generate_after(self.module, self.tokenizer, prompt, begin, settings)
            found = self._named(output).trace
        return found, found.target.text

    def _attention_names(self, text: str, found: Trace) -> dict[tuple[str, int], CapturedModule]:
        """Return name and heads of each attention module, found by one pass over what was read."""
        whole = found.target.text if self.task == "text-generation" else text
        with inference(self.module), Recording().of(self.module) as seen:
            self.module(**self.forward_inputs(whole, found.target.text))
        return seen.modules()

    @staticmethod
    def generate_options(options: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        """Return options of `generate()` and the random seed, from those of regard."""
        for name in options:
            if name not in DecodingOptions.__dataclass_fields__:
                known = ", ".join(
                    n for n in DecodingOptions.__dataclass_fields__ if n not in FOREIGN
                )
                raise ArgumentError("option", f"be one of {known}", repr(name), "check its name")
        given = DecodingOptions(**{"beam": max(1, options.get("nbest") or 1), **options})
        for name in FOREIGN:
            if getattr(given, name) != getattr(DEFAULT, name):
                raise ArgumentError(
                    name,
                    "be left out for a model of transformers",
                    getattr(given, name),
                    "call regard.generate with the options of transformers",
                )
        if given.max_len == 0:
            fix = "see what it does with a text alone by `regard show` or .trace"
            raise ArgumentError("max_len", "be at least 1 for an answer", 0, fix)
        found: dict[str, Any] = {NAMES[name]: options[name] for name in NAMES if options.get(name)}
        if given.num_samples:
            found |= {"do_sample": True, "num_return_sequences": given.num_samples, "num_beams": 1}
            found |= {"temperature": given.temperature, "top_k": given.top_k, "top_p": given.top_p}
        else:
            found["do_sample"] = False
            if "beam" in options or given.nbest > 1:
                found |= {"num_beams": given.beam, "num_return_sequences": given.nbest}
        return found, given.seed

    def _check_no_options(
        self, chat: bool, options: dict[str, Any], target: str | None = None
    ) -> None:
        """Raise for options of decoding, which a model that writes nothing cannot follow."""
        given = non_default_options(options)
        given += ["chat"] * chat + ["target"] * (target is not None)
        if given:
            raise ArgumentError(
                given[0],
                f"be left out for a model that writes no text ({type(self.module).__name__})",
                "given",
                "leave it out",
            )

    def check_source(self, text: Any) -> None:
        """Raise DataError for an empty text, and for one with more tokens than positions."""
        self._encoded(text)

    def check_target(self, text: str, target: str) -> None:
        """Raise if the model has too few positions to write a target after a text."""
        prompt, decoder = self._encoded(text), not self.module.config.is_encoder_decoder
        answer = encode(self.tokenizer, target, special=not decoder, target=not decoder)
        if decoder:
            ids = [*prompt.ids, *answer.ids]
            answer = TokenizedText(ids, written(self.tokenizer, answer.ids, after=prompt))
        check_ids(self.module, [answer])

    def target_length(self, target: str) -> int:
        """Return the tokens of a target, special ones not counted."""
        return len(encode(self.tokenizer, target, special=False).ids)

    def source_labels(self, text: str) -> list[str]:
        """Return the labels of the tokens that the model reads of a text."""
        return self._encoded(text).text.labels

    def answers(self, text: str) -> bool:
        """Return whether the model predicts something for a text: without a mask, BERT does not."""
        try:
            self._check_answers(self._encoded(text))
        except RegardError:
            return False
        return True

    def forward_inputs(self, text: str, target: str | None = None) -> dict[str, Tensor]:
        """Return the arguments of one forward pass, with the labels of an encoder-decoder."""
        encoded = self._encoded(text)
        ids, mask = padded(
            [encoded.ids], pad_id(self.module, self.tokenizer), self.device, left=False
        )
        found = {"input_ids": ids, "attention_mask": mask}
        if self.module.config.is_encoder_decoder:
            wanted = encode(self.tokenizer, target or "", target=True)
            check_ids(self.module, [wanted])
            found["labels"] = torch.tensor([wanted.ids], device=self.device)
        return found

    def _encoded(self, text: Any, chat: bool = False) -> TokenizedText:
        if not isinstance(text, str):
            reject_media(text)
            raise ArgumentError("text", "be a string", repr(text), "pass a text")
        found = encode_chat(self.tokenizer, text) if chat else encode(self.tokenizer, text)
        check_ids(self.module, [found])
        return found

    def _forced(self, text: str, target: str, chat: bool, recording: Recording) -> AnyTrace:
        """Return the trace of one forward pass in which the model is made to write a target."""
        prompt = self._encoded(text, chat)
        decoder = not self.module.config.is_encoder_decoder
        answer = encode(self.tokenizer, target, special=not decoder, target=not decoder)
        if decoder:
            whole = TokenizedText(
                [*prompt.ids, *answer.ids], written(self.tokenizer, answer.ids, after=prompt)
            )
            check_ids(self.module, [whole])
            ids = torch.tensor([whole.ids], device=self.device)
            given, text_written, source = {"input_ids": ids}, whole.text, whole.text
        else:
            check_ids(self.module, [answer])
            wanted = torch.tensor([answer.ids], device=self.device)
            given = {
                "input_ids": torch.tensor([prompt.ids], device=self.device),
                "decoder_input_ids": self._shifted(wanted),
            }
            text_written, source = answer.text, prompt.text
        with inference(self.module), recording.of(self.module) as seen:
            logits = self.module(**given).logits[0].float()
        trace = recording.numbered(seen.traces[0])
        if decoder:  # the token after each position; before the first there is nothing
            logits = logits[len(prompt.ids) - 1 : -1]
        target_text, log_prob = self._with_probs(text_written, answer.ids, logits)
        info = DecodingInfo(log_prob=log_prob)
        if decoder and answer.ids:
            trace = replace(trace, notes=(prompt_note(len(prompt.ids)), *trace.notes))
        return named_trace(self.module, trace, source, target_text, info)

    def _check_heads(self, heads: Sequence[int] | None) -> None:
        """Raise for the number of a head that no layer can have."""
        most = getattr(self.module.config, "num_attention_heads", None)
        if heads and isinstance(most, int) and max(heads) >= most:
            rule = f"be numbers from 0 to {most - 1}, the heads of a layer"
            raise ArgumentError("heads", rule, max(heads), "choose others")

    def _shifted(self, ids: Tensor) -> Tensor:
        """Return targets as a decoder reads them: its start token first, without the last."""
        shift = getattr(self.module, "prepare_decoder_input_ids_from_labels", None)
        if shift is not None:
            return shift(labels=ids)  # type: ignore[no-any-return]
        first = torch.full_like(ids[:, :1], decoder_start(self.module))
        return torch.cat([first, ids[:, :-1]], dim=1)

    def _with_probs(
        self, text: Text, ids: Sequence[int], logits: Tensor
    ) -> tuple[Text, float | None]:
        """Return a text with the probabilities of its last tokens, and their log-probability."""
        if not ids:
            return text, None
        tokens, log_probs = list(text.tokens), logits.log_softmax(-1)
        total = 0.0
        for step, own in enumerate(ids):
            place = len(tokens) - len(ids) + step
            total += float(log_probs[step, own])
            probs = log_probs[step].exp()
            others = likeliest(self.tokenizer, probs, own)
            tokens[place] = with_prob(tokens[place], float(probs[own]), others)
        return replace(text, tokens=tuple(tokens)), total

    def _classify(
        self, text: str, recording: Recording | None, *, predicts: bool = True
    ) -> PretrainedOutput:
        """Return the answer of a model that reads a text in one pass, and its self-attention."""
        encoded = self._encoded(text)
        if predicts:
            self._check_answers(encoded)
        ids, mask = padded(
            [encoded.ids], pad_id(self.module, self.tokenizer), self.device, left=False
        )
        trace: AnyTrace | None = None
        if recording is None:
            with inference(self.module):
                answer = self.module(input_ids=ids, attention_mask=mask)
        else:
            with inference(self.module), recording.of(self.module) as seen:
                answer = self.module(input_ids=ids, attention_mask=mask)
            found = recording.numbered(seen.traces[0])
            trace = named_trace(self.module, found, encoded.text, encoded.text, None)
            trace = replace(trace, model=self.info)
        logits = getattr(answer, "logits", None)
        if not predicts or logits is None:
            return PretrainedOutput("", text, False, (), (), 0.0, recorded=trace)
        return self._answer(encoded, logits[0].float(), trace)

    def _check_answers(self, encoded: TokenizedText) -> None:
        if self.task == "feature-extraction":
            raise RegardError(
                f"a model must have an output layer to predict, but {self.path} is a "
                f"{type(self.module).__name__}: see where it looks with `regard show` or .trace."
            )
        mask = self.tokenizer.mask_token_id
        if self.task == "fill-mask" and mask not in encoded.ids:
            raise ArgumentError(
                "text",
                f"have a {self.tokenizer.mask_token} for the model to fill",
                repr(encoded.text.text),
                "put one in, or see where the model looks with `regard show`",
            )

    def _answer(
        self, encoded: TokenizedText, logits: Tensor, trace: AnyTrace | None
    ) -> PretrainedOutput:
        names = self.module.config.id2label
        if self.task == "text-classification":
            found = classified(self.module.config, logits)
            if trace is not None:
                trace = replace(trace, notes=(classes_note(found), *trace.notes))
            return replace(found, prompt=encoded.text.text, recorded=trace)
        best = logits.log_softmax(-1).max(dim=-1)
        if self.task == "token-classification":
            real = [i for i, token in enumerate(encoded.text.tokens) if not token.special]
            tokens = [names[int(best.indices[i])] for i in real]
            scores = [float(best.values[i]) for i in real]
            text = " ".join(tokens)
        else:
            mask = self.tokenizer.mask_token_id
            places = [i for i, one in enumerate(encoded.ids) if one == mask]
            chosen = [int(best.indices[i]) for i in places]
            filled = dict(zip(places, chosen, strict=True))
            tokens, scores = labels(self.tokenizer, chosen), [float(best.values[i]) for i in places]
            ids = [filled.get(i, one) for i, one in enumerate(encoded.ids)]
            text = str(self.tokenizer.decode(ids, skip_special_tokens=True))
        return PretrainedOutput(
            text,
            encoded.text.text,
            False,
            tuple(tokens),
            tuple(scores),
            sum(scores),
            recorded=trace,
        )


def non_default_options(options: dict[str, Any]) -> list[str]:
    """Return the names of options of decoding that differ from their defaults."""
    defaults = {**vars(DEFAULT), "beam": None}
    return [name for name, value in options.items() if value != defaults.get(name)]


def recorded_queries(module: Any) -> "AbstractContextManager[QueryRecorder]":
    """Return a block of `seeing.capture.query_recorder.record_queries`."""
    # loads torch's functions, which commands that only draw do without
    from regard.seeing.capture.query_recorder import record_queries

    return record_queries(module)


def _in_batches(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield lists of texts; the error of an unusable one is raised after all before it."""
    rest, some = iter(texts), list[str]()
    try:
        for text in rest:
            some.append(text)
            if len(some) == size:
                yield some
                some = []
    except DataError:
        if some:
            yield some
        raise
    if some:
        yield some


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed the random numbers inside the block, and go on as before it afterwards."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
