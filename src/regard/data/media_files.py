"""Read pictures and recordings: files, or what Python has of them.

A file may come from anywhere: it must be of a listed format, its size is known before its content
is decoded, and each thing that is wrong with it is a sentence for its user.
"""

import io
import math
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from regard import extras, safe_read
from regard.data.text_codec import rgb_of
from regard.errors import DataError

#: pixels of a picture at most: those of Pillow, which warns of more
MAX_PIXELS: Final = 89_478_485
#: pixels of a side at most, as in JPEG: resizing a longer one takes long, however few the rows are
MAX_SIDE: Final = 65_535
PICTURES: Final = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
#: formats that Pillow may try: for others, such as EPS, it would run a program on the content
PICTURE_FORMATS: Final = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
SOUNDS: Final = (".wav", ".flac", ".ogg", ".oga", ".mp3", ".aiff", ".aif")
#: formats of soundfile, and how their files begin: libsndfile would try thirty parsers
SOUND_FORMATS: Final = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3", "AIFF")
SOUND_STARTS: Final = (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"FORM", b"ID3", b"\xff")
MEDIA: Final = (*PICTURES, *SOUNDS)
#: shortest recording in seconds; a model has no position for a shorter one
MIN_SECONDS: Final = 0.02
#: samples per second at most, as in the file of an encoder
MAX_RATE: Final = 768_000
#: samples of a channel at most: an hour at 48 kHz
MAX_SAMPLES: Final = 3600 * 48_000
#: terms of the ratio of two rates at most; the filter that resamples has 20 times as many taps
MAX_RATIO: Final = 1 << 16
#: numbers that are decoded at a time, whatever the channels
BLOCK: Final = 1 << 20
#: sizes of a RIFF file that a program wrote before it knew them
UNKNOWN_SIZES: Final = (0, 0xFFFFFFFF)
SAVE_AGAIN: Final = "save it again as .png or .jpg"
SAVE_AT: Final = "save it at 48000 Hz"
RECORD_AGAIN: Final = "copy it again, or save it as .wav or .flac"

Samples = npt.NDArray[np.float32]

_files_exist: ContextVar[bool] = ContextVar("files_exist", default=True)


@contextmanager
def without_files() -> Iterator[None]:
    """Let no text of this thread name a file inside the block, as for texts that clients send."""
    token = _files_exist.set(False)
    try:
        yield
    finally:
        _files_exist.reset(token)


class Sound(NamedTuple):
    """A recording of one channel.

    Attributes:
        name: of its file, or a description.
        samples: from -1 to 1.
        rate: samples per second.
        notes: changes that were made to it, as sentences for its user.
    """

    name: str
    samples: Samples
    rate: int
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.samples) / self.rate


class Picture(NamedTuple):
    """A picture in RGB, as Pillow holds it, and the name of its file."""

    name: str
    image: Any


def reject_media(given: Any) -> None:
    """Raise DataError if a picture or a recording is given to a model that reads text."""
    if isinstance(given, str):
        what = "picture" if given.lower().endswith(PICTURES) else "recording"
        if not given.lower().endswith(MEDIA) or not _exists(given):
            return
        name, found = given, f"the file of a {what}"
    elif type(given).__module__.startswith("PIL."):
        name, found = "text", "a picture"
    elif isinstance(given, np.ndarray | Tensor):
        name, found = "text", "an array"
    else:
        return
    fix = "write a text, or load a model that reads pictures or sound"
    raise DataError(
        name, None, f"this model must be given text, but it is {found}", fix, kind="not text"
    )


def read_picture(source: Any, *, max_pixels: int | None = None) -> Picture:
    """Return a picture in RGB; of an animated one, the first frame."""
    extras.require("PIL", extra="media", for_="a model that reads pictures")
    from PIL import Image, UnidentifiedImageError

    content, most = isinstance(source, bytes), max_pixels or MAX_PIXELS
    name = "picture"
    if not content and not isinstance(source, Image.Image):
        name = _path_of(source, "picture", "an image of Pillow", SAVE_AGAIN)
    try:
        if isinstance(source, Image.Image):
            return Picture(name, rgb_of(source))
        opened = io.BytesIO(source) if content else safe_read.open_regular(name)
        with opened as file, Image.open(file, formats=PICTURE_FORMATS) as image:
            if image.width * image.height > most or max(image.size) > MAX_SIDE:
                raise _too_many_pixels(name, f"{image.width} x {image.height}", most)
            return Picture(name, rgb_of(image))
    except UnidentifiedImageError:
        empty = not source if content else os.path.getsize(name) == 0
        what = "is empty" if empty else "is of no format that it knows"
        reason = f"a picture must be a file that Pillow can read, but this one {what}"
        raise DataError(name, None, reason, SAVE_AGAIN, kind="no picture") from None
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # an error in tests
        raise _too_many_pixels(name, "more", most) from None
    except Exception as error:  # a decoder raises anything for a damaged file
        text = " ".join(str(error).split()).rpartition("': ")[2]
        said = text.rstrip(".")[:120] or type(error).__name__
        reason = f"a picture must be whole, but this one cannot be decoded ({said})"
        raise DataError(name, None, reason, SAVE_AGAIN, kind="no picture") from None


def _too_many_pixels(name: str, found: str, most: int) -> DataError:
    reason = (
        f"a picture must have at most {most:,} pixels, and {MAX_SIDE:,} on a side, but this one "
        f"has {found}"
    )
    return DataError(name, None, reason, "make it smaller", kind="too large")


def read_sound(source: Any, rate: int, *, most: float) -> Sound:
    """Return a recording of one channel at the rate that a model reads.

    Args:
        source: the path of a file, its content as bytes, samples with their rate as in
            `(samples, 44100)`, or a mapping with `array` and `sampling_rate`, as libraries of
            datasets have them.
        rate: samples per second of the result.
        most: seconds at most.
    """
    if isinstance(source, Mapping) and {"array", "sampling_rate"} <= set(source):
        source = (source["array"], source["sampling_rate"])
    if isinstance(source, np.ndarray | Tensor):
        reason = "samples must come with their rate, but this is an array alone"
        fix = "pass both, as in (samples, 16000)"
        raise DataError("recording", None, reason, fix, kind="no recording")
    pair = isinstance(source, tuple | list) and len(source) == 2 and not isinstance(source[0], str)
    found = _given_samples(*source) if pair else _read_file(source, most)
    _check_length(found.name, found.seconds, most)
    return _resampled(found, rate)


def _check_length(name: str, seconds: float, most: float) -> None:
    if MIN_SECONDS <= seconds <= most:
        return
    reason = (
        f"a recording must have from {MIN_SECONDS} to {most:g} seconds, which the model reads at "
        f"once, but this one has {seconds:.2f}"
    )
    fix = "cut it into parts" if seconds > most else "record more"
    raise DataError(name, None, reason, fix, kind="length")


class _BoundedFile(io.RawIOBase):
    """A file within which libsndfile stays: errors of its calls would be printed as tracebacks."""

    def __init__(self, file: Any) -> None:
        self._file, self._size = file, file.seek(0, os.SEEK_END)
        file.seek(0)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = (0, self._file.tell(), self._size)[whence]
        return int(self._file.seek(min(max(0, start + offset), self._size)))

    def readinto(self, buffer: Any) -> int:
        return int(self._file.readinto(buffer))


def _read_file(source: Any, most: float) -> Sound:
    """Read a file whose length its header states, which is checked before it is decoded."""
    extras.require("soundfile", extra="media", for_="a model that reads sound")
    import soundfile

    content = isinstance(source, bytes)
    what = "samples with their rate"
    name = "recording" if content else _path_of(source, "recording", what, RECORD_AGAIN)
    with io.BytesIO(source) if content else safe_read.open_regular(name) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        start = file.read(12)
        _check_whole(name, start, size)
        file.seek(0)
        try:
            if not start.startswith(SOUND_STARTS):
                raise ValueError
            with _BoundedFile(file) as bounded, soundfile.SoundFile(bounded) as sound:
                if sound.format not in SOUND_FORMATS:
                    raise ValueError
                _check_length(name, sound.frames / sound.samplerate, most)
                _check_rate(name, sound.samplerate, sound.frames)
                return _decoded(name, sound)
        except DataError:
            raise
        except Exception as error:  # a decoder raises anything for a damaged file
            found = "is of no format that it knows" if size else "is empty"
            what = f"a recording must be a file that soundfile can read, but this one {found}"
            # its message names the file object that it was given
            said = getattr(error, "error_string", "").rstrip(".")
            reason = f"{what} ({said})" if size and said else what
            raise DataError(name, None, reason, RECORD_AGAIN, kind="no recording") from None


def _decoded(name: str, sound: Any) -> Sound:
    """Decode a file in blocks, the mean of whose channels is kept."""
    rate, parts = int(sound.samplerate), list[Sound]()
    for block in sound.blocks(max(1, BLOCK // sound.channels), dtype="float32", always_2d=True):
        wrong = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if len(wrong):
            at = (sum(len(part.samples) for part in parts) + wrong[0]) / rate
            reason = f"samples must be finite numbers, but one at {at:.2f} seconds is not"
            raise DataError(name, None, reason, RECORD_AGAIN, kind="not finite")
        parts.append(_one_channel(name, block, rate))
    return parts[0]._replace(samples=np.concatenate([part.samples for part in parts]))


def _check_rate(name: str, rate: int, samples: int) -> None:
    """Raise for rates, and numbers of samples, that no recording has."""
    if not 1 <= rate <= MAX_RATE or samples > MAX_SAMPLES:
        reason = (
            f"a recording must have at most {MAX_RATE:,} samples per second and {MAX_SAMPLES:,} in "
            f"all, but this one has {rate:,} and {samples:,}"
        )
        raise DataError(name, None, reason, SAVE_AT, kind="rate")


def _check_whole(name: str, start: bytes, size: int) -> None:
    """Raise for a .wav file that is shorter than its header says; its reader would not."""
    if len(start) < 12 or start[:4] != b"RIFF":
        return
    wanted = struct.unpack("<I", start[4:8])[0]
    if wanted not in UNKNOWN_SIZES and wanted + 8 > size + 1:  # a byte of padding may be missing
        reason = (
            f"a recording must be whole, but this file has {size:,} of its {wanted + 8:,} bytes"
        )
        raise DataError(name, None, reason, RECORD_AGAIN, kind="truncated")


def _given_samples(samples: Any, rate: Any) -> Sound:
    found = samples.detach().cpu().numpy() if isinstance(samples, Tensor) else samples
    try:
        array = np.asarray(found, dtype=np.float32)
    except (TypeError, ValueError):
        array = np.empty((0, 0, 0), dtype=np.float32)
    whole = isinstance(rate, int | np.integer) and not isinstance(rate, bool) and rate > 0
    if array.ndim not in (1, 2) or not whole or not np.isfinite(array).all():
        reason = (
            "samples must be finite numbers (length,) or (length, channels) with a rate in Hz, but "
            f"they are of shape {np.shape(found)} with the rate {rate!r:.40}"
        )
        raise DataError("recording", None, reason, "pass (samples, 16000)", kind="no recording")
    if isinstance(found, np.ndarray) and found.dtype.kind == "i":
        array = array / np.float32(-float(np.iinfo(found.dtype).min))
    _check_rate("recording", int(rate), len(array))
    return _one_channel("recording", array[:, None] if array.ndim == 1 else array, int(rate))


def _one_channel(name: str, samples: Samples, rate: int) -> Sound:
    channels = samples.shape[1]
    notes = (f"{name}: the {channels} channels are averaged",) if channels > 1 else ()
    mono: Samples = samples.mean(axis=1, dtype=np.float32)
    return Sound(name, mono, rate, notes)


def _resampled(sound: Sound, rate: int) -> Sound:
    if sound.rate == rate:
        return sound
    extras.require("scipy", extra="media", for_=f"a recording of {sound.rate} Hz")
    from scipy.signal import resample_poly

    common = math.gcd(sound.rate, rate)
    up, down = rate // common, sound.rate // common
    if max(up, down) > MAX_RATIO:
        reason = (
            f"the rates of a recording and of the model must be as two numbers of at most "
            f"{MAX_RATIO:,}, but {sound.rate:,} Hz is to {rate:,} Hz as {down:,} to {up:,}"
        )
        raise DataError(sound.name, None, reason, SAVE_AT, kind="rate")
    found = resample_poly(sound.samples, up, down)
    note = f"{sound.name}: resampled from {sound.rate} to {rate} Hz, which the model reads"
    return Sound(sound.name, found.astype(np.float32), rate, (*sound.notes, note))


def _path_of(source: Any, what: str, other: str, fix: str) -> str:
    """Return the path of a file; raises DataError for anything else, and for text."""
    rule = f"a {what} must be the path of a file or {other}"
    if not isinstance(source, str | Path):
        found = f"it is {type(source).__name__}"
        raise DataError(what, None, f"{rule}, but {found}", "pass a path", kind=f"no {what}")
    name = str(source)
    if not _exists(name):
        shown = repr(name if len(name) <= 60 else f"{name[:60]}…")
        reason = f"{rule}, but there is no file {shown}"
        raise DataError(what, None, reason, "check its name", kind=f"no {what}")
    return name


def _exists(name: str) -> bool:
    """Return whether a text names a file or a folder; False, without a look, for texts of clients.

    An answer would tell a client which files the server has.
    """
    try:
        return _files_exist.get() and os.path.exists(name)
    except ValueError:  # a NUL
        return False
