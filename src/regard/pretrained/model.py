"""`PretrainedModel`: a model of transformers, opened by its folder, to predict and to trace."""

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import torch

from regard import safe_read
from regard.data.batches import chunks_of
from regard.data.media_files import reject_media
from regard.decoding_options import DEFAULT, DecodingOptions, check_least
from regard.errors import ArgumentError, RegardError
from regard.pretrained.folder import LoadedParts, load_parts, quiet_transformers
from regard.pretrained.generation import WrittenAnswer, check_ids, generate, read_again
from regard.pretrained.output import Recording, named_trace, run_once
from regard.pretrained.token_texts import TokenizedText, encode, encode_chat, joined
from regard.seeing.capture.capture_result import MAX_WEIGHTS
from regard.seeing.trace.output import Output
from regard.seeing.trace.trace import ModelInfo, Trace

BATCH: Final = 8
#: names of decoding options in transformers
NAMES: Final = {
    "max_len": "max_new_tokens",
    "min_len": "min_new_tokens",
    "no_repeat_ngram": "no_repeat_ngram_size",
}
#: kinds of maps that the JSON of a prediction holds, of models that write
WRITTEN_MAPS: Final = {"text2text-generation": ("cross",), "text-generation": ("decoder-self",)}
#: options of regard's own search, which transformers does not have or defines otherwise
FOREIGN: Final = ("length_penalty", "forbid_unknown", "prefix")
#: weights files that are hashed; larger ones would take longer to read than the model to answer
MAX_HASHED: Final = 1 << 28


class PretrainedModel:
    """A model of transformers: call it with a text, or with many.

    Attributes:
        path: its folder.
        module: the model itself.
        tokenizer: of the texts that it reads or writes.
        task: as transformers names it: `text-generation`, `text2text-generation`, `fill-mask`,
            `text-classification`, `token-classification` or `feature-extraction`.
        device: where it is.
        generates: whether it writes text step by step; others are seen, and predict nothing.
        shown_maps: kinds of maps that the JSON of a prediction holds.

    Examples:
        >>> model = regard.load("tiny-llama")  # a folder that `save_pretrained` wrote
        >>> model
        PretrainedModel('tiny-llama', type='llama', task='text-generation', weights=5104, ...)
        >>> out = model("the cat sat", max_len=3)
        >>> out.trace.kinds
        ['decoder-self']
    """

    def __init__(self, parts: LoadedParts, path: str | Path, device: torch.device) -> None:
        self.module, self.tokenizer, self.task = parts
        self.path, self.device = Path(path), device
        self.shown_maps = WRITTEN_MAPS.get(self.task, ())
        self.generates = self.task in WRITTEN_MAPS
        self._translates = bool(self.module.config.is_encoder_decoder)

    def __repr__(self) -> str:
        parts = {
            "type": self.module.config.model_type,
            "task": self.task,
            "weights": sum(weight.numel() for weight in self.module.parameters()),
            "device": str(self.device),
        }
        shown = ", ".join(f"{name}={value!r}" for name, value in parts.items())
        return f"PretrainedModel({str(self.path)!r}, {shown})"

    @staticmethod
    def load(
        folder: str | Path, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> "PretrainedModel":
        """Load a folder that `save_pretrained` wrote; see `pretrained.folder`."""
        return PretrainedModel(load_parts(folder, device, dtype), folder, device)

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

    def __call__(self, source: Any, **options: Any) -> Any:
        """Return the output of a source, or of each of several; see `predict`."""
        reject_media(source)  # here alone: a server must not tell a text from a file's name
        if not isinstance(source, str):
            return list(self.predict(source, **options))
        return next(self.predict([source], **options))

    def predict(
        self,
        sources: Iterable[Any],
        *,
        attention: bool = True,
        chat: bool = False,
        batch: int = BATCH,
        layers: Any = None,
        max_weights: int = MAX_WEIGHTS,
        **options: Any,
    ) -> Iterator[Output]:
        """Yield an output for each source, in order.

        A language model continues a text, and an encoder-decoder translates or answers it.

        Args:
            sources: texts.
            attention: whether outputs carry traces; faster without.
            chat: whether a text is a message, to be put in the tokenizer's chat template.
            batch: texts at a time.
            layers: numbers of layers to record, or modules, as in `regard.capture`.
            max_weights: number of weights that are kept; default as there.
            options: those of `DecodingOptions` that transformers has: `beam`, `nbest`, `max_len`,
                `min_len`, `no_repeat_ngram`, `num_samples`, `temperature`, `top_k`, `top_p` and
                `seed`.
        """
        check_least(1, batch=batch)
        if not self.generates:
            raise RegardError(
                f"a model must write text to predict, but {self.path} is a "
                f"{type(self.module).__name__}: see where it looks with `regard show` or .trace."
            )
        settings, seed = self._settings(chat, None, options)
        draws = random.Random(seed)
        told = {"chat": chat, "attention": attention, "layers": layers, "max_weights": max_weights}
        for some in chunks_of(sources, batch):
            own = None if seed is None else draws.getrandbits(63)
            with seeded(own, self.device), quiet_transformers():
                found = generate(self.module, self.tokenizer, some, **told, **settings)
            yield from map(self._with_info, found)

    def _with_info(self, output: Output) -> Output:
        """Return an output whose traces name this model."""
        others = tuple(map(self._with_info, output.alternatives))
        if output.trace_maker is None:
            return replace(output, alternatives=others)
        maker = partial(replace, output.trace, model=self.info)
        return replace(output, trace_maker=maker, alternatives=others)

    def trace(
        self,
        source: Any,
        target: str | None = None,
        *,
        chat: bool = False,
        **options: Any,
    ) -> Any:
        """Return the attention of each position while the model reads and writes.

        Args:
            source: a text.
            target: what the model is made to write; its own output if None.
            chat: whether the text is a message, to be put in the tokenizer's chat template.
            options: of `predict`.
        """
        if options.get("max_len") == 0 and self.generates:
            target = target or ""
            del options["max_len"]
        if self.generates and target is None:
            (found,) = self.predict([source], chat=chat, **options)
            return found.trace
        fields = Recording.__dataclass_fields__
        recording = Recording(**{name: options.pop(name) for name in fields if name in options})
        self._settings(chat, target, options)
        with quiet_transformers():
            trace = self._trace(self._read(source, chat), target or "", recording)
        return replace(trace, model=self.info)

    def _trace(self, read: TokenizedText, target: str, recording: Recording) -> Any:
        """Return the trace of one pass, in which a model that writes is made to write a target."""
        if not self.generates:
            ids = torch.tensor([read.ids], device=self.module.device)
            mask = torch.ones_like(ids)
            _, seen = run_once(self.module, recording, input_ids=ids, attention_mask=mask)
            found = recording.numbered(seen.traces[0])
            return named_trace(self.module, found, read.text, read.text)
        both = self._translates
        answer = encode(self.tokenizer, target, special=both, target=both)
        whole = answer if both else joined(self.tokenizer, read, answer.ids)
        check_ids(self.module, [whole])
        reads = _shifted(self.module, answer.ids) if both else whole.ids
        forced = WrittenAnswer(read, answer.ids, reads, whole.text)
        ((trace, _),) = read_again(self.module, self.tokenizer, [forced], recording)
        return trace

    def _read(self, source: Any, chat: bool = False) -> TokenizedText:
        """Return a text as tokens; raises for none, and for more than the model has positions."""
        if not isinstance(source, str):
            reject_media(source)
            raise ArgumentError("text", "be a string", repr(source), "pass a text")
        found = encode_chat(self.tokenizer, source) if chat else encode(self.tokenizer, source)
        check_ids(self.module, [found])
        return found

    def traces(
        self, sources: Sequence[Any], targets: Sequence[str] | None = None, **options: Any
    ) -> list[Trace]:
        """Return the trace of each of several sources; see `trace`."""
        wanted = [None] * len(sources) if targets is None else targets
        return [self.trace(one, tgt, **options) for one, tgt in zip(sources, wanted, strict=True)]

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

    def _settings(
        self, chat: bool, target: str | None, options: dict[str, Any]
    ) -> tuple[dict[str, Any], int | None]:
        """Return options of `generate()` and the seed; raises for what the model cannot follow."""
        given = []
        if not self.generates:
            defaults = {**vars(DEFAULT), "beam": None}
            given = [name for name, value in options.items() if value != defaults.get(name)]
            given += ["target"] * (target is not None)
        given += ["chat"] * (chat and not self.generates)
        if given:
            kind = type(self.module).__name__
            rule = f"be left out for a {kind}, which cannot use it"
            raise ArgumentError(given[0], rule, "given", "leave it out")
        return self.generate_options(options) if self.generates else ({}, None)

    def check_source(self, source: Any, *, line: bool = True) -> None:
        """Raise DataError for what the model cannot read, as an empty or too long text."""
        self._read(source)


def _shifted(model: Any, ids: Sequence[int]) -> list[int]:
    """Return a target as a decoder reads it: its start token first, without the last."""
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None:
        found: list[int] = shift(labels=torch.tensor([ids]))[0].tolist()
        return found
    configs = (getattr(model, "generation_config", None), model.config)
    starts = (getattr(config, "decoder_start_token_id", None) for config in configs)
    return [next((one for one in starts if isinstance(one, int)), 0), *ids[:-1]]


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed the random numbers inside the block, and go on as before it afterwards."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
