"""`MediaModel`: a model of transformers that reads pictures or sound, to predict and to trace."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.media_files import Sound, read_picture, read_sound
from regard.errors import ArgumentError, DataError, RegardError
from regard.models.protocol import inference
from regard.pretrained.folder import LoadedParts, quiet_transformers
from regard.pretrained.folder_checks import PretrainedError
from regard.pretrained.generation import (
    LIBRARY_LENGTH,
    PretrainedOutput,
    Recording,
    classes_note,
    classified,
    likeliest,
    named_trace,
)
from regard.pretrained.model import (
    PretrainedModel,
    TransformersModel,
    non_default_options,
    recorded_queries,
    seeded,
)
from regard.pretrained.token_texts import continuation, encode, labels, with_prob, written
from regard.seeing.attribution.transformers_check import decoder_start, head_scale
from regard.seeing.capture.capture_result import CaptureResult
from regard.seeing.trace import DecodingInfo, Map, Text, Token, Trace, missing_mass
from regard.seeing.trace import backdrop as backdrops
from regard.seeing.trace.backdrop import PICTURE_SIDE, Backdrop

if TYPE_CHECKING:
    from regard.seeing.attribution.transformers_check import CheckedSource

#: names of the first positions of a picture; DeiT has both
SPECIAL: Final = ("[CLS]", "[DIST]")
#: positions that are no patches, at most
MAX_SPECIAL: Final = 16
#: how an output is computed that is not decoded step by step
ONE_PASS: Final = DecodingInfo("one pass")
#: seconds that a model takes if its feature extractor has no limit of its own
MAX_SECONDS: Final = 30.0
#: weights of an encoder's self-attention beyond which only the decoder is recorded
MAX_ENCODER_WEIGHTS: Final = 10_000_000
#: new tokens if neither the caller nor the generation config limits them
MAX_NEW_TOKENS: Final = 200
#: positions of a decoder that start, language, task and timestamps may take
START_TOKENS: Final = 4
#: window and step of the spectrogram that is drawn, in seconds, and its bands
WINDOW, STEP, BANDS = 0.025, 0.01, 64
#: level that stands for silence, in powers of ten
SILENCE: Final = 1e-10


class _Answer(NamedTuple):
    """Ids of an answer, with the tokens that its decoder starts from.

    Attributes:
        ids: all tokens of the decoder.
        written: number of them, at the end, that the model wrote.
        score: what it was ranked by; None for its log-probability.
        info: how it was decoded.
        ended: whether it ends with an end-of-sequence token.
    """

    ids: list[int]
    written: int
    score: float | None
    info: DecodingInfo
    ended: bool = True


@runtime_checkable
class MediaReader(Protocol):
    """The part of a model that depends on what it reads: pictures, or sound."""

    #: kinds of maps that the JSON of a prediction holds
    shown_maps: tuple[str, ...]
    #: whether it writes text, so that options of decoding make sense
    generates: bool

    def check(self, source: Any) -> None:
        """Raise DataError if this cannot be read."""
        ...

    def answer(
        self, source: Any, options: dict[str, Any], *, attention: bool, **recording: Any
    ) -> PretrainedOutput:
        """Return the answer to one source."""
        ...

    def forced(self, source: Any, target: str, **recording: Any) -> Trace:
        """Return the trace of one pass in which the model is made to write a target."""
        ...

    def checked(self, source: Any, target: str | None, max_len: int | None) -> "CheckedSource":
        """Return a source in parts, with the model's answer or a given one, to be checked."""
        ...


class MediaModel(TransformersModel):
    """A model of transformers that reads pictures or sound: call it with a file, or with many.

    A picture is the path of a file or an image of Pillow; a recording is the path of a file, or
    samples with their rate, as in `(samples, 16000)`.

    Attributes:
        path: its folder.
        module: the model itself.
        processor: what prepares its inputs.
        tokenizer: of what it writes; None if it writes no text.
        task: as transformers names it: `image-classification`, `image-feature-extraction` or
            `automatic-speech-recognition`.
        device: where it is.

    Examples:
        >>> model = regard.load("tiny-vit")  # a folder that `save_pretrained` wrote
        >>> model
        MediaModel('tiny-vit', type='vit', task='image-classification', weights=4361, ...)
        >>> model("picture.png").trace.kinds
        ['encoder-self']
    """

    def __init__(self, parts: LoadedParts, path: str | Path, device: torch.device) -> None:
        super().__init__(parts, path, device)
        self.processor = parts.processor
        self._reader: MediaReader
        if self.task.startswith("image-"):
            self._reader = _PictureReader(parts, self.path)
        else:
            self._reader = _SoundReader(parts, self.path)

    @property
    def generates(self) -> bool:
        """True if the model writes text step by step."""
        return self._reader.generates

    @property
    def shown_maps(self) -> tuple[str, ...]:
        """Kinds of maps that the JSON of a prediction holds."""
        return self._reader.shown_maps

    def __call__(self, source: Any, **options: Any) -> Any:
        """Return the output of a source, or of each of a list; see `predict`."""
        several = isinstance(source, list) and not _is_recording(source)
        if several:
            return list(self.predict(source, **options))
        return next(self.predict([source], **options))

    def predict(
        self,
        sources: Iterable[Any],
        *,
        attention: bool = True,
        chat: bool = False,
        batch: int | None = None,
        layers: Any = None,
        max_weights: int | None = None,
        **options: Any,
    ) -> Iterator[PretrainedOutput]:
        """Yield an output for each picture or recording, in order.

        A classifier names the class of a picture, and a speech model writes what is said.

        Args:
            sources: paths, images, or samples with their rate.
            attention: whether outputs carry traces; faster without.
            chat: must be False.
            batch: has no effect: sources are read one at a time.
            layers: modules to record, as in `regard.capture`.
            max_weights: number of weights that are kept; default as there.
            options: of a speech model, as in `PretrainedModel.predict`.
        """
        if self.task == "image-feature-extraction":
            raise RegardError(
                f"a model must have an output layer to predict, but {self.path} is a "
                f"{type(self.module).__name__}: see where it looks with `regard show` or .trace."
            )
        settings, seed = self._settings(chat, None, options)
        recording = {"layers": layers, "max_weights": max_weights}
        for source in sources:
            with seeded(seed, self.device), quiet_transformers():
                found = self._reader.answer(source, settings, attention=attention, **recording)
            yield self._named(found)

    def trace(
        self,
        source: Any,
        target: str | None = None,
        *,
        chat: bool = False,
        queries: bool = False,
        **options: Any,
    ) -> Trace:
        """Return the attention of each position while the model reads and writes.

        Args:
            source: a picture or a recording.
            target: what a speech model is made to write; its own answer if None.
            chat: must be False.
            queries: whether to keep queries and keys, which explain each weight.
            options: of `predict`.
        """
        if queries:
            with recorded_queries(self.module) as seen:
                trace = self.trace(source, target, chat=chat, **options)
            return seen.added_to(trace)
        recording: dict[str, Any] = {
            name: options.pop(name, None) for name in ("layers", "max_weights")
        }
        settings, seed = self._settings(chat, target, options)
        with seeded(seed, self.device), quiet_transformers():
            if target is not None:
                trace = self._reader.forced(source, target, **recording)
            else:
                trace = self._reader.answer(source, settings, attention=True, **recording).trace
        return replace(trace, model=self.info)

    def check(
        self,
        source: Any,
        target: str | None = None,
        *,
        methods: str = "all",
        versus: str | None = None,
        max_len: int | None = None,
    ) -> Trace:
        """Return a trace with what mattered to each output, by several attribution methods.

        Its source is in parts, cells of a picture or slices of a recording.

        Args:
            source: a picture or a recording.
            target: a class of the model, or what it is made to write; its own output if None.
            methods: names separated by commas, or `all`; see `seeing.attribution.methods`.
            versus: a class or token that each output is compared with.
            max_len: most tokens that the model writes by itself; 20 if None.
        """
        # loads the compiler of torch
        from regard.seeing.attribution.transformers_check import check_source

        with quiet_transformers():
            given = self._reader.checked(source, target, max_len)
            return replace(check_source(given, methods, versus), model=self.info)

    def check_source(self, source: Any) -> None:
        """Raise DataError for what is no picture or recording that the model can read."""
        self._reader.check(source)

    def _settings(
        self, chat: bool, target: str | None, options: dict[str, Any]
    ) -> tuple[dict[str, Any], int | None]:
        """Return options of `generate()` and the random seed, from those of regard."""
        given = ["chat"] * chat
        if not self.generates:
            given += non_default_options(options)
            given += ["target"] * (target is not None)
        if given:
            kind = type(self.module).__name__
            raise ArgumentError(
                given[0], f"be left out for a {kind}, which cannot use it", "given", "leave it out"
            )
        return PretrainedModel.generate_options(options) if self.generates else ({}, None)


class _PictureReader:
    """Pictures that a transformer of patches reads in one pass."""

    shown_maps: tuple[str, ...] = ("encoder-self",)
    generates = False

    def __init__(self, parts: LoadedParts, path: Path) -> None:
        self.module, self.processor, self.path = parts.module, parts.processor, path
        self.classifies = parts.task == "image-classification"

    def check(self, source: Any) -> None:
        """Raise DataError unless it is a picture."""
        read_picture(source)

    def forced(self, source: Any, target: str, **recording: Any) -> Trace:
        """Raise RegardError: a picture has no target."""
        raise RegardError(f"a {type(self.module).__name__} writes no target: leave it out.")

    def answer(
        self, source: Any, options: dict[str, Any], *, attention: bool, **recording: Any
    ) -> PretrainedOutput:
        """Return the class of a picture; nothing if the model has no classes."""
        name, image = read_picture(source)
        pixels = self.processor(image, return_tensors="pt")["pixel_values"]
        given = pixels.to(self.module.device, self.module.dtype)
        recorder = Recording(**recording).of(self.module) if attention else nullcontext()
        with inference(self.module), recorder as seen:
            try:
                logits = getattr(self.module(pixel_values=given), "logits", None)
            except ValueError as error:
                raise PretrainedError(
                    f"the image processor in {self.path} must make pictures that its model takes, "
                    f"but it makes {tuple(pixels.shape[-2:])} ({str(error).splitlines()[0]:.120}): "
                    f"save the one that the model was trained with."
                ) from None
        found = PretrainedOutput("", name, False, (), (), 0.0)
        if self.classifies and logits is not None:
            found = replace(classified(self.module.config, logits[0].float()), prompt=name)
        trace = None if seen is None else self._trace(found, seen, pixels[0])
        return replace(found, recorded=trace)

    def checked(self, source: Any, target: str | None, max_len: int | None) -> "CheckedSource":
        """Return a picture in cells, with its class or a given one."""
        from regard.pretrained.media_check import PictureCells, picture_scorer
        from regard.seeing.attribution.transformers_check import CheckedSource, OutputNames

        if not self.classifies or head_scale(self.module.config) == "none":
            raise RegardError(
                f"a model of pictures must have classes to be checked, but {self.path} is a "
                f"{type(self.module).__name__}: see where it looks with `regard show` or .trace."
            )
        if max_len is not None:
            raise ArgumentError("max_len", "be left out for pictures", max_len, "leave it out")
        names = OutputNames(self.module, None, "class")
        found = self.answer(source, {}, attention=True)
        assert isinstance(found.trace, Trace)
        drawn = found.trace.source.backdrop
        assert drawn is not None
        label = names.find("target", next(iter(found.probabilities)) if target is None else target)
        pixels = self.processor(read_picture(source).image, return_tensors="pt")["pixel_values"][0]
        given = pixels.to(self.module.device, self.module.dtype)
        cells = PictureCells.of(given, drawn.grid, drawn.first)
        seen = self._seen_picture(cells.pad(pixels))
        backdrop = Backdrop.of("picture", seen, grid=cells.grid, first=cells.fixed)
        unit = "patch" if cells.across == 1 else "cell"
        tokens = tuple(_patch_tokens(cells.grid, cells.fixed, unit))
        return CheckedSource(
            picture_scorer(self.module, given, cells, label),
            Text(found.trace.source.text, tokens, backdrop),
            Text.of([names.label(label)]),
            names,
            "class",
            forced=target is not None,
        )

    def _trace(self, found: PretrainedOutput, seen: CaptureResult, pixels: Tensor) -> Trace:
        recorded = seen.traces[0]
        grid = self._grid(pixels)
        first = len(recorded.source.tokens) - grid[0] * grid[1]
        if not 0 <= first <= MAX_SPECIAL or recorded.kinds != ["encoder-self"]:
            raise PretrainedError(
                f"a model of pictures must attend over all of its patches, {grid[0]} x {grid[1]} "
                f"here, but {self.path} is a {type(self.module).__name__}, whose first attention "
                f"has {len(recorded.source.tokens)} positions: look at it with regard.capture."
            )
        backdrop = Backdrop.of("picture", self._seen_picture(pixels), grid=grid, first=first)
        text = Text(Path(found.prompt).name, tuple(_patch_tokens(grid, first)), backdrop)
        notes = list(recorded.notes)
        notes.insert(0, "patches are named by row and column, counted from 1 at the top left")
        if self.classifies:
            notes.insert(0, classes_note(found))
        return Trace(text, text, recorded.maps, decoded=ONE_PASS, notes=tuple(notes))

    def _grid(self, pixels: Tensor) -> tuple[int, int]:
        size = getattr(self.module.config, "patch_size", None)
        if size is None:
            raise PretrainedError(
                f"a model of pictures must read patches, but {self.path} is a "
                f"{type(self.module).__name__}, which has no patch_size: look at it with "
                f"regard.capture."
            )
        down, across = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        return pixels.shape[-2] // down, pixels.shape[-1] // across

    def _seen_picture(self, pixels: Tensor) -> Any:
        """Return what the model was given as bytes: cropped and resized, but not normalised."""
        found = pixels.float()
        mean, std = (getattr(self.processor, name, None) for name in ("image_mean", "image_std"))
        if getattr(self.processor, "do_normalize", True) and mean is not None and std is not None:
            found = found * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
        if not getattr(self.processor, "do_rescale", True):
            found = found / 255
        scale = PICTURE_SIDE / max(found.shape[-2:])
        if scale < 1:
            size = [max(1, round(side * scale)) for side in found.shape[-2:]]
            found = F.interpolate(found[None], size=size, mode="area")[0]
        return (found.clamp(0, 1) * 255).round().permute(1, 2, 0).byte().numpy()


def _patch_tokens(grid: tuple[int, int], first: int, unit: str = "patch") -> Iterator[Token]:
    for i in range(first):
        yield Token(SPECIAL[i] if i < len(SPECIAL) else f"[REG {i}]", special=True)
    for row in range(grid[0]):
        yield from (Token(f"{unit} {row + 1},{column + 1}") for column in range(grid[1]))


class _SoundReader:
    """Recordings that an encoder-decoder writes down, or an encoder of characters (CTC).

    The answer of an encoder-decoder is generated first, by the model's own `generate()`; its
    weights are those of one pass over it, which are the weights of the steps.
    """

    def __init__(self, parts: LoadedParts, path: Path) -> None:
        self.module, self.tokenizer, self.path = parts.module, parts.tokenizer, path
        self.extractor = parts.processor
        self.rate = int(getattr(self.extractor, "sampling_rate", 16000))
        self.generates = bool(self.module.config.is_encoder_decoder)
        self.shown_maps: tuple[str, ...] = ("cross",) if self.generates else ("encoder-self",)
        if not self.generates and not type(self.module).__name__.endswith("ForCTC"):
            raise PretrainedError(
                f"a speech model must be an encoder-decoder or an encoder with CTC, but {path} is "
                f"a {type(self.module).__name__}: look at it with regard.capture."
            )

    @property
    def padded_samples(self) -> int | None:
        """Number of samples that each recording is padded to; None if to none."""
        return getattr(self.extractor, "n_samples", None)

    def check(self, source: Any) -> None:
        """Raise DataError unless it is a recording of a length that the model reads."""
        self._read(source)

    def _read(self, source: Any) -> Sound:
        padded = self.padded_samples
        return read_sound(
            source, self.rate, most=MAX_SECONDS if padded is None else padded / self.rate
        )

    def _inputs(self, sound: Sound) -> dict[str, Tensor]:
        found = self.extractor(sound.samples, sampling_rate=self.rate, return_tensors="pt")
        return {
            name: value.to(self.module.device, self.module.dtype)
            if value.is_floating_point()
            else value.to(self.module.device)
            for name, value in found.items()
        }

    def answer(
        self, source: Any, options: dict[str, Any], *, attention: bool, **recording: Any
    ) -> PretrainedOutput:
        """Return what is said in a recording."""
        sound = self._read(source)
        inputs = self._inputs(sound)
        if not self.generates:
            return self._characters(sound, inputs, attention, recording)
        answers = self._generated(inputs, options)
        outputs = [
            self._output(sound, inputs, answer, rank, attention, recording)
            for rank, answer in enumerate(answers)
        ]
        return replace(outputs[0], alternatives=tuple(outputs[1:]))

    def checked(self, source: Any, target: str | None, max_len: int | None) -> "CheckedSource":
        """Return a recording in slices of time, with what the model writes or a given target."""
        from regard.pretrained.media_check import SoundSlices, sound_scorer
        from regard.seeing.attribution.transformers_check import MAX_NEW_TOKENS as CHECKED_TOKENS
        from regard.seeing.attribution.transformers_check import CheckedSource, OutputNames

        sound = self._read(source)
        inputs = self._inputs(sound)
        features, positions = inputs.get("input_features"), self._positions
        if not self.generates or features is None or not positions:
            raise RegardError(
                f"a speech model must write text of a spectrogram, as Whisper does, to be checked, "
                f"but {self.path} is a {type(self.module).__name__}: see where it looks with "
                f"`regard show` or .trace."
            )
        if target is None:
            most = CHECKED_TOKENS if max_len is None else max_len
            options = {"max_new_tokens": most, "num_beams": 1, "do_sample": False}
            answer = self._generated(inputs, options)[0]
        else:
            answer = self._given(target)
        new = answer.ids[len(answer.ids) - answer.written :]
        seconds, real = self._position_times(sound, positions)
        slices = SoundSlices.of(features.shape[-1], positions, real, seconds)
        times = (Token(f"{i * slices.seconds:.2f} s") for i in range(slices.number))
        backdrop = self._spectrogram(sound, slices.number, slices.seconds)
        return CheckedSource(
            sound_scorer(self.module, features[0], slices, answer.ids[:-1], new),
            Text(Path(sound.name).name, tuple(times), backdrop),
            written(self.tokenizer, new),
            OutputNames(self.module, self.tokenizer, "target"),
            "target",
            forced=target is not None,
            notes=sound.notes,
        )

    def _position_times(self, sound: Sound, total: int) -> tuple[float, int]:
        """Return the seconds of a position of the encoder, and how many are no padding."""
        step = (self.padded_samples or len(sound.samples)) / self.rate / total
        return step, min(total, max(1, int(np.ceil(sound.seconds / step - 1e-6))))

    @property
    def _positions(self) -> int:
        """Positions of an encoder that pads each recording to the same length; 0 for others."""
        config = self.module.config
        padded = self.padded_samples is not None
        return int(getattr(config, "max_source_positions", 0) or 0) if padded else 0

    def _given(self, target: str) -> _Answer:
        """Return a target that the model is made to write."""
        wanted = encode(self.tokenizer, target, target=True).ids
        start = decoder_start(self.module)
        ids = wanted if wanted[:1] == [start] else [start, *wanted]
        if len(ids) < 2:
            raise DataError("target", None, "it must have a token", "write something", kind="empty")
        return _Answer(ids, len(ids) - 1, None, DecodingInfo())

    def forced(self, source: Any, target: str, **recording: Any) -> Trace:
        """Return the trace of one pass in which the model is made to write a target."""
        sound = self._read(source)
        answer = self._given(target)
        inputs = self._inputs(sound)
        trace = self._output(sound, inputs, answer, 0, True, recording).trace
        assert isinstance(trace, Trace)
        return trace

    def _generated(self, inputs: dict[str, Tensor], options: dict[str, Any]) -> list[_Answer]:
        """Return the answers of the model's own `generate()`, best first."""
        told = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
        config = self.module.generation_config
        given = dict(options)
        several = given.get("num_return_sequences", 1) > 1 and not given.get("do_sample")
        if several and self.module.config.model_type == "whisper":
            # it repeats the input so often, and returns the same answer for each
            rule = "be 1 for Whisper, whose generate() returns the best answer alone"
            raise ArgumentError("nbest", rule, given["num_return_sequences"], "leave it out")
        positions = getattr(self.module.config, "max_target_positions", None)
        most = MAX_NEW_TOKENS if positions is None else positions - START_TOKENS
        if positions is not None and given.get("max_new_tokens", 0) > most:
            rule = f"be at most {most}, for which the model has positions"
            raise ArgumentError("max_len", rule, given["max_new_tokens"], "lower it")
        if config.max_new_tokens is None and config.max_length in (None, LIBRARY_LENGTH):
            given.setdefault("max_new_tokens", min(MAX_NEW_TOKENS, most))
        with inference(self.module):
            found = self.module.generate(**inputs, **{**given, **told})
        beams = getattr(found, "beam_indices", None)
        total = int(len(found.logits) if beams is None else beams.shape[1])
        scores = getattr(found, "sequences_scores", None)
        ends = config.eos_token_id
        ends = {ends} if isinstance(ends, int) else set(ends or ())
        info = DecodingInfo(*_mode(given, config))
        answers = []
        for i, row in enumerate(found.sequences.tolist()):
            new = row[len(row) - total :]
            count = next((j + 1 for j, one in enumerate(new) if one in ends), len(new))
            ids = row[: len(row) - total + count]
            score = None if scores is None else float(scores[i])
            answers.append(_Answer(ids, count, score, info, ended=bool(ids) and ids[-1] in ends))
        return answers

    def _output(
        self,
        sound: Sound,
        inputs: dict[str, Tensor],
        answer: _Answer,
        rank: int,
        attention: bool,
        recording: dict[str, Any],
    ) -> PretrainedOutput:
        """Return one answer, with its probabilities and its trace by one pass over it."""
        ids = torch.tensor([answer.ids], device=self.module.device)
        note = ""
        if attention and recording.get("layers") is None:
            layers, note = self._layers()
            recording = {**recording, "layers": layers}
        recorder = Recording(**recording).of(self.module) if attention else nullcontext()
        with inference(self.module), recorder as seen:
            logits = self.module(**inputs, decoder_input_ids=ids[:, :-1]).logits[0].float()
        log_probs = logits.log_softmax(-1)
        new = answer.ids[len(answer.ids) - answer.written :]
        own = log_probs[len(log_probs) - answer.written :]
        scores = [float(row[one]) for row, one in zip(own, new, strict=True)]
        info = replace(answer.info, rank=rank, log_prob=sum(scores))
        trace = None
        if seen is not None:
            target = written(self.tokenizer, answer.ids[1:])
            tokens = list(target.tokens)
            for i, (one, score) in enumerate(zip(new, scores, strict=True)):
                place = len(tokens) - answer.written + i
                others = likeliest(self.tokenizer, own[i].exp(), one)
                tokens[place] = with_prob(tokens[place], float(np.exp(min(score, 0.0))), others)
            target = replace(target, tokens=tuple(tokens))
            trace = self._named(sound, seen.traces[0], target, info, [note] * bool(note))
        return PretrainedOutput(
            text=continuation(self.tokenizer, [], new).strip(),
            prompt=sound.name,
            continues=False,
            tokens=tuple(labels(self.tokenizer, new)),
            token_log_probs=tuple(scores),
            score=sum(scores) if answer.score is None else answer.score,
            finished=answer.ended,
            recorded=trace,
            notes=sound.notes,
        )

    def _layers(self) -> tuple[Any, str]:
        """Return which modules to record, and a note if the encoder is too large for it."""
        config = self.module.config
        positions = getattr(config, "max_source_positions", 0)
        heads, layers = (
            getattr(config, f"encoder_{name}", 0) or 0 for name in ("attention_heads", "layers")
        )
        if heads * layers * positions**2 <= MAX_ENCODER_WEIGHTS:
            return None, ""
        return lambda name: ".encoder." not in f".{name}", (
            f"the encoder's self-attention over {positions} positions is not recorded: choose its "
            f"layers with layers= in Python"
        )

    def _named(
        self, sound: Sound, trace: Trace, target: Text | None, info: DecodingInfo | None, notes: Any
    ) -> Trace:
        """Return a trace whose source positions are times, without those of padding."""
        total = len(trace.source.tokens)
        step, real = self._position_times(sound, total)
        cut = [_without_padding(found, real) for found in trace.maps]
        rest = max((float(one.missing.max()) for one in cut if one.missing is not None), default=0)
        notes = [
            *sound.notes,
            *notes,
            f"a position of the recording is {step:.3g} s, from its time on",
        ]
        if real < total and rest > 0.01:
            notes.append(
                f"up to {rest:.2f} of a row's weight is on the silence after "
                f"{real * step:.2f} s, with which the model pads a recording to {step * total:g} s"
            )
        backdrop = self._spectrogram(sound, real, step)
        digits = 2 if step >= 0.0099 else 3
        tokens = tuple(Token(f"{i * step:.{digits}f} s") for i in range(real))
        source = Text(Path(sound.name).name, tokens, backdrop)
        trace = replace(
            trace,
            source=source,
            target=source if target is None else trace.target,
            decoded=ONE_PASS,
            maps=tuple(cut),
            notes=(*notes, *trace.notes),
        )
        if target is not None:
            found = named_trace(self.module, trace, source, target, info)
            assert isinstance(found, Trace)
            return found
        return trace

    def _spectrogram(self, sound: Sound, positions: int, step: float) -> Backdrop:
        """Return the logarithmic mel spectrogram of a recording, as wide as its positions."""
        from transformers.audio_utils import mel_filter_bank

        window, hop = (round(seconds * self.rate) for seconds in (WINDOW, STEP))
        length = round(positions * step * self.rate)
        samples = torch.from_numpy(sound.samples[:length].copy())
        samples = F.pad(samples, (0, max(0, max(length, window) - len(samples))))
        parts = torch.stft(
            samples, window, hop, window=torch.hann_window(window), return_complex=True
        )
        power = parts.abs().square()[:, :-1] if parts.shape[1] > 1 else parts.abs().square()
        filters = mel_filter_bank(
            power.shape[0], BANDS, 0.0, self.rate / 2, self.rate, norm="slaney", mel_scale="slaney"
        )
        mel = torch.from_numpy(filters.T).float() @ power
        levels = mel.clamp(min=SILENCE).log10()
        return backdrops.spectrogram(levels.numpy(), positions, positions * step)

    def _characters(
        self, sound: Sound, inputs: dict[str, Tensor], attention: bool, recording: dict[str, Any]
    ) -> PretrainedOutput:
        """Return the text of an encoder whose positions each name a character or nothing."""
        recorder = Recording(**recording).of(self.module) if attention else nullcontext()
        with inference(self.module), recorder as seen:
            log_probs = self.module(**inputs).logits[0].float().log_softmax(-1)
        best = log_probs.max(dim=-1)
        text = str(self.tokenizer.decode(best.indices.tolist()))
        trace = None
        if seen is not None:
            note = "each position names a character or nothing, and repeats are joined (CTC)"
            trace = self._named(sound, seen.traces[0], None, None, [note, f"text: {text}"])
        tokens = tuple(map(str, self.tokenizer.convert_ids_to_tokens(best.indices.tolist())))
        scores = tuple(best.values.tolist())
        return PretrainedOutput(
            *(text, sound.name, False, tokens, scores, sum(scores)),
            recorded=trace,
            notes=sound.notes,
        )


def _mode(options: dict[str, Any], config: Any) -> tuple[str, int | None]:
    beams = int(options.get("num_beams") or getattr(config, "num_beams", None) or 1)
    if options.get("do_sample", getattr(config, "do_sample", False)):
        return "sample", None
    return ("beam" if beams > 1 else "greedy"), beams


def _without_padding(found: Map, real: int) -> Map:
    """Return a map of which only the first `real` source positions are kept."""
    weights = found.weights
    if found.rows == "source":
        weights = weights[:, :real]
    if found.columns == "source":
        weights = weights[:, :, :real]
    if weights.shape == found.weights.shape:
        return found
    weights = np.ascontiguousarray(weights)
    return replace(found, weights=weights, missing=missing_mass(weights))


def _is_recording(source: list[Any]) -> bool:
    return len(source) == 2 and isinstance(source[1], int)
