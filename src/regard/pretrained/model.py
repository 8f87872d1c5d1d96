"""`PretrainedModel`: a model of transformers, opened by its folder, to predict and to trace."""

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch

from regard import safe_read
from regard.data.batches import chunks_of
from regard.data.media_files import reject_media
from regard.decoding_options import DEFAULT, DecodingOptions, check_least
from regard.errors import ArgumentError
from regard.pretrained.folder import LoadedParts, load_parts, quiet_transformers
from regard.pretrained.generation import generate
from regard.pretrained.output import PretrainedOutput, Recording
from regard.pretrained.text_reader import TextReader
from regard.seeing.capture.capture_result import MAX_WEIGHTS
from regard.seeing.trace import ModelInfo, Trace

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


class PretrainedModel:
    """A model of transformers: call it with a text, or with many.

    Attributes:
        path: its folder.
        module: the model itself.
        tokenizer: of the texts that it reads or writes.
        task: as transformers names it: `text-generation`, `text2text-generation`, `fill-mask`,
            `text-classification`, `token-classification` or `feature-extraction`.
        device: where it is.
        reader: of its sources.

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
        self.reader = TextReader(parts, self.path)

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

    @property
    def generates(self) -> bool:
        """True if the model writes text step by step."""
        return self.reader.generates

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
    ) -> Iterator[PretrainedOutput]:
        """Yield an output for each source, in order.

        A language model continues a text, an encoder-decoder translates or answers it, a model
        with masks fills them, and a classifier names the class of a text or of each word.

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
        self.reader.check_predicts()
        recording = Recording(layers, max_weights)
        settings, seed = self._settings(chat, None, options)
        draws = random.Random(seed)
        together = self.generates
        for some in chunks_of(sources, batch if together else 1):
            own = None if seed is None else draws.getrandbits(63)
            with seeded(own, self.device), quiet_transformers():
                if together:
                    told = {"chat": chat, "attention": attention, **vars(recording), **settings}
                    found = generate(self.module, self.tokenizer, some, **told)
                else:
                    asked = recording if attention else None
                    found = [self.reader.answer(some[0], asked)]
            yield from map(self._with_info, found)

    def _with_info(self, output: PretrainedOutput) -> PretrainedOutput:
        """Return an output whose traces name this model."""
        trace = None if output.recorded is None else replace(output.recorded, model=self.info)
        others = tuple(map(self._with_info, output.alternatives))
        return replace(output, recorded=trace, alternatives=others)

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
            trace = self.reader.trace(source, target, recording, chat=chat)
        return replace(trace, model=self.info)

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

    def check_source(self, source: Any) -> None:
        """Raise DataError for what the model cannot read, as an empty or too long text."""
        self.reader.check(source)


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed the random numbers inside the block, and go on as before it afterwards."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
