"""Pictures and recordings that a model of transformers reads, and its answers to them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.media_files import Sound, read_picture, read_sound
from regard.errors import ArgumentError, DataError
from regard.models.protocol import inference
from regard.pretrained.folder import LoadedParts
from regard.pretrained.folder_checks import PretrainedError, explained
from regard.pretrained.generation import LIBRARY_LENGTH, RETURNED, search_mode
from regard.pretrained.output import (
    PretrainedOutput,
    Recording,
    classes_note,
    classified,
    named_trace,
    run_once,
    with_probs,
)
from regard.pretrained.text_reader import Reader
from regard.pretrained.token_texts import continuation, encode, labels, written
from regard.seeing.attribution.transformers_check import decoder_start
from regard.seeing.trace import DecodingInfo, Map, Text, Token, Trace, missing_mass
from regard.seeing.trace.trace import PICTURE_SIDE, Backdrop, spectrogram

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


@final
class ImageReader(Reader):
    """Pictures that a transformer of patches reads in one pass."""

    reads = "picture"

    @property
    def classifies(self) -> bool:
        """True if it names the class of a picture."""
        return self.task == "image-classification"

    def check(self, source: Any) -> None:
        """Raise DataError unless it is a picture."""
        read_picture(source)

    def _pixels(self, source: Any) -> tuple[str, Tensor]:
        """Return the name of a picture and what the image processor makes of it."""
        name, image = read_picture(source)
        return name, self.processor(image, return_tensors="pt")["pixel_values"][0]

    def answer(
        self, source: Any, settings: dict[str, Any], recording: Recording | None
    ) -> PretrainedOutput:
        """Return the class of a picture; nothing if the model has no classes."""
        name, pixels = self._pixels(source)
        given = pixels[None].to(self.module.device, self.module.dtype)
        try:
            output, seen = run_once(self.module, recording, pixel_values=given)
        except ValueError as error:
            raise PretrainedError(
                f"the image processor in {self.path} must make pictures that its model takes, "
                f"but it makes {tuple(pixels.shape[-2:])} ({str(error).splitlines()[0]:.120}): "
                f"save the one that the model was trained with."
            ) from None
        found = PretrainedOutput(prompt=name)
        if self.classifies:
            found = replace(classified(self.module.config, output.logits[0].float()), prompt=name)
        if recording is None:
            return found
        return replace(found, recorded=self._named(found, recording.first_trace(seen), pixels))

    def trace(
        self, source: Any, target: str | None, recording: Recording, *, chat: bool = False
    ) -> Any:
        """Return the trace of one pass."""
        return self.answer(source, {}, recording).trace

    def _named(self, found: PretrainedOutput, recorded: Trace, pixels: Tensor) -> Trace:
        """Return a trace whose positions are patches by row and column, over the picture."""
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


def _patch_tokens(grid: tuple[int, int], first: int) -> Iterator[Token]:
    for i in range(first):
        yield Token(SPECIAL[i] if i < len(SPECIAL) else f"[REG {i}]", special=True)
    for row in range(grid[0]):
        yield from (Token(f"patch {row + 1},{column + 1}") for column in range(grid[1]))


class _Answer(NamedTuple):
    """Ids of an answer, with the tokens that its decoder starts from.

    Attributes:
        ids: all tokens of the decoder.
        new: those at the end that the model wrote.
        score: what it was ranked by; None for its log-probability.
        info: how it was decoded.
        ended: whether it ends with an end-of-sequence token.
    """

    ids: list[int]
    new: list[int]
    score: float | None
    info: DecodingInfo
    ended: bool = True


@final
class SpeechReader(Reader):
    """Recordings that an encoder-decoder writes down, or an encoder of characters (CTC).

    The answer of an encoder-decoder is generated first, by the model's own `generate()`; its
    weights are those of one pass over it, which are the weights of the steps.
    """

    reads = "sound"

    def __init__(self, parts: LoadedParts, path: Path) -> None:
        super().__init__(parts, path)
        self.rate = int(getattr(self.processor, "sampling_rate", 16000))
        #: samples that each recording is padded to; None if to none
        self.padded_samples: int | None = getattr(self.processor, "n_samples", None)
        self.generates = bool(self.module.config.is_encoder_decoder)
        self.shown_maps = ("cross",) if self.generates else ("encoder-self",)
        if not self.generates and not type(self.module).__name__.endswith("ForCTC"):
            raise PretrainedError(
                f"a speech model must be an encoder-decoder or an encoder with CTC, but {path} is "
                f"a {type(self.module).__name__}: look at it with regard.capture."
            )

    def check(self, source: Any) -> Sound:
        """Return a recording; raises DataError unless it is of a length that the model reads."""
        padded = self.padded_samples
        most = MAX_SECONDS if padded is None else padded / self.rate
        return read_sound(source, self.rate, most=most)

    def _inputs(self, sound: Sound) -> dict[str, Tensor]:
        found = self.processor(sound.samples, sampling_rate=self.rate, return_tensors="pt")
        device, dtype = self.module.device, self.module.dtype
        return {
            name: value.to(device, dtype if value.is_floating_point() else value.dtype)
            for name, value in found.items()
        }

    def answer(
        self, source: Any, settings: dict[str, Any], recording: Recording | None
    ) -> PretrainedOutput:
        """Return what is said in a recording."""
        sound = self.check(source)
        inputs = self._inputs(sound)
        if not self.generates:
            return self._characters(sound, inputs, recording)
        answers = self._generated(inputs, settings)
        first, *others = (self._output(sound, inputs, answer, recording) for answer in answers)
        return replace(first, alternatives=tuple(others))

    def trace(
        self, source: Any, target: str | None, recording: Recording, *, chat: bool = False
    ) -> Any:
        """Return the trace of one pass, in which an encoder-decoder is made to write a target."""
        sound = self.check(source)
        inputs = self._inputs(sound)
        if not self.generates:
            return self._characters(sound, inputs, recording).trace
        return self._output(sound, inputs, self._given(target or ""), recording).trace

    def _position_times(self, sound: Sound, total: int) -> tuple[float, int]:
        """Return the seconds of a position of the encoder, and how many are no padding."""
        step = (self.padded_samples or len(sound.samples)) / self.rate / total
        return step, min(total, max(1, int(np.ceil(sound.seconds / step - 1e-6))))

    def _given(self, target: str) -> _Answer:
        """Return a target that the model is made to write."""
        wanted = encode(self.tokenizer, target, target=True).ids
        start = decoder_start(self.module)
        ids = wanted if wanted[:1] == [start] else [start, *wanted]
        if len(ids) < 2:
            raise DataError("target", None, "it must have a token", "write something", kind="empty")
        return _Answer(ids, ids[1:], None, DecodingInfo())

    def _generated(self, inputs: dict[str, Tensor], options: dict[str, Any]) -> list[_Answer]:
        """Return the answers of the model's own `generate()`, best first."""
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
        with inference(self.module), explained(self.path, "settings", use=True):
            found = self.module.generate(**inputs, **{**given, **RETURNED})
        beams = getattr(found, "beam_indices", None)
        total = int(len(found.logits) if beams is None else beams.shape[1])
        scores = getattr(found, "sequences_scores", None)
        ends = config.eos_token_id
        ends = {ends} if isinstance(ends, int) else set(ends or ())
        answers = []
        for i, row in enumerate(found.sequences.tolist()):
            new = row[len(row) - total :]
            count = next((j + 1 for j, one in enumerate(new) if one in ends), len(new))
            info = DecodingInfo(*search_mode(given, config), rank=i)
            score = None if scores is None else float(scores[i])
            ended = bool(count) and new[count - 1] in ends
            ids = row[: len(row) - total + count]
            answers.append(_Answer(ids, new[:count], score, info, ended))
        return answers

    def _output(
        self, sound: Sound, inputs: dict[str, Tensor], answer: _Answer, recording: Recording | None
    ) -> PretrainedOutput:
        """Return one answer, with its probabilities and its trace by one pass over it."""
        notes, new = [], answer.new
        if recording is not None and recording.layers is None and self._has_large_encoder():
            notes = [
                f"the encoder's self-attention over {self.module.config.max_source_positions} "
                f"positions is not recorded: choose its layers with layers= in Python"
            ]
            recording = replace(recording, layers=lambda name: ".encoder." not in f".{name}")
        ids = torch.tensor([answer.ids[:-1]], device=self.module.device)
        output, seen = run_once(self.module, recording, **inputs, decoder_input_ids=ids)
        log_probs = output.logits[0].float().log_softmax(-1)[len(answer.ids) - 1 - len(new) :]
        text = written(self.tokenizer, answer.ids[1:])
        target, scores = with_probs(self.tokenizer, text, new, log_probs)
        trace = None
        if recording is not None:
            info = replace(answer.info, log_prob=sum(scores))
            named = self._named(sound, recording.first_trace(seen), notes)
            trace = named_trace(self.module, named, named.source, target, info)
        return PretrainedOutput(
            text=continuation(self.tokenizer, [], new).strip(),
            prompt=sound.name,
            tokens=tuple(labels(self.tokenizer, new)),
            token_log_probs=tuple(scores),
            score=sum(scores) if answer.score is None else answer.score,
            finished=answer.ended,
            recorded=trace,
            notes=sound.notes,
        )

    def _has_large_encoder(self) -> bool:
        """Return whether the weights of the encoder's self-attention are too many to record."""
        config = self.module.config
        names = ("encoder_attention_heads", "encoder_layers", "max_source_positions")
        heads, layers, positions = (getattr(config, name, 0) or 0 for name in names)
        return bool(heads * layers * positions**2 > MAX_ENCODER_WEIGHTS)

    def _named(self, sound: Sound, trace: Trace, notes: list[str]) -> Trace:
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
        digits = 2 if step >= 0.0099 else 3
        tokens = tuple(Token(f"{i * step:.{digits}f} s") for i in range(real))
        source = Text(Path(sound.name).name, tokens, self._spectrogram(sound, real, step))
        return replace(
            trace,
            source=source,
            target=trace.target if self.generates else source,
            decoded=ONE_PASS,
            maps=tuple(cut),
            notes=(*notes, *trace.notes),
        )

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
        return spectrogram(levels.numpy(), positions, positions * step)

    def _characters(
        self, sound: Sound, inputs: dict[str, Tensor], recording: Recording | None
    ) -> PretrainedOutput:
        """Return the text of an encoder whose positions each name a character or nothing."""
        output, seen = run_once(self.module, recording, **inputs)
        best = output.logits[0].float().log_softmax(-1).max(dim=-1)
        ids, scores = best.indices.tolist(), tuple(best.values.tolist())
        text, trace = str(self.tokenizer.decode(ids)), None
        if recording is not None:
            note = "each position names a character or nothing, and repeats are joined (CTC)"
            trace = self._named(sound, recording.first_trace(seen), [note, f"text: {text}"])
        tokens = tuple(map(str, self.tokenizer.convert_ids_to_tokens(ids)))
        return PretrainedOutput(
            *(text, sound.name, False, tokens, scores, sum(scores)),
            recorded=trace,
            notes=sound.notes,
        )


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
