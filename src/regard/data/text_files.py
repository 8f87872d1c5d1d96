r"""Numbered lines of files, of stdin and of folders of classes, and fingerprints of content.

Lines end at `\n` alone, as `wc -l` counts them; a `\r` before it and a byte order mark at the
start of the file are removed. Lines of other encodings become UTF-8. Everything else stays as it
is.
"""

import atexit
import codecs
import hashlib
import io
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from itertools import islice
from typing import IO, Any, Final, NamedTuple

from regard import safe_read
from regard.data.error_hints import BadLine
from regard.data.media_files import MEDIA
from regard.errors import DataError
from regard.messages import message
from regard.safe_read import DAMAGE, DECOMPRESSORS, PathLike

UTF8: Final = "utf-8"
#: lines and bytes by which an encoding is guessed at most
MAX_LINES, MAX_SAMPLE = 500, 1 << 16
#: share of its characters that must be common ones
CLEAR: Final = 0.97
#: characters from which on a text of hangul alone is no Chinese
ENOUGH_HANGUL: Final = 12
#: marks at the start of a file; that of UTF-32 begins with that of UTF-16
MARKS: Final = {
    **dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32"),
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16"),
}
#: letters and signs of Western Europe
WESTERN: Final = "àâäáãåæçèéêëìíîïñòóôöõøùúûüýßœÀÂÄÁÃÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÖÕØÙÚÛÜŒ’‘“”„–—…«»€£§°·¿¡\xa0"
_JAPANESE: Final = ("euc_jp", {0xA1, 0xA3, 0xA4, 0xA5, *range(0xB0, 0xD0)})
#: the code that orders the characters of an encoding by how common they are, and first bytes in it
#: of punctuation and common characters
COMMON: Final = {
    "cp949": ("euc_kr", {0xA1, *range(0xB0, 0xC9)}),
    "cp932": _JAPANESE,
    "euc_jp": _JAPANESE,
    "big5": ("big5", {0xA1, *range(0xA4, 0xC7)}),
    "gb18030": ("gb2312", {0xA1, 0xA3, *range(0xB0, 0xD8)}),
    "cp1252": ("cp1252", {*WESTERN.encode("cp1252")}),
}


class TextEncoding(NamedTuple):
    """The encoding of a file, and a word by which a reader can tell whether it is right."""

    name: str = UTF8
    word: str = ""


def marked_encoding(start: bytes) -> str:
    """Return the encoding that the first bytes of a file name; UTF-8 if they name none."""
    return next((name for mark, name in MARKS.items() if start.startswith(mark)), UTF8)


def find_encoding(content: bytes) -> TextEncoding:
    """Return the encoding of the beginning of a file; UTF-8 if it is damaged or unclear."""
    start = content[:4096]
    zeros = [start[i::2].count(0) for i in (0, 1)]
    name = marked_encoding(start)
    if name == UTF8 and min(zeros) == 0 and max(zeros) > max(8, len(start) // 6):
        name = "utf-16-le" if zeros[1] else "utf-16-be"
    if name != UTF8:
        word = next(iter(start.decode(name, "ignore").split()), "")
        return TextEncoding(name, word.removeprefix("\ufeff")[:20])
    try:
        content.decode(UTF8)
    except UnicodeDecodeError:
        lines = (line for line in content.split(b"\n") if not line.isascii())
        return _guess(b"\n".join(islice(lines, MAX_LINES))[:MAX_SAMPLE])
    return TextEncoding()


def _guess(sample: bytes) -> TextEncoding:
    text = sample.decode(UTF8, "replace")
    if 2 * text.count("\N{REPLACEMENT CHARACTER}") < sum(not c.isascii() for c in text):
        return TextEncoding()
    best, most = TextEncoding(), CLEAR
    for name, (code, leads) in COMMON.items():
        try:
            text = sample.decode(name)
        except UnicodeDecodeError:
            continue
        words = [word for word in text.split() if not word.isascii()] or ["\ufffd"]
        letters = [c for word in words for c in word if c.isalpha()]
        # Cyrillic and Greek have accents on every letter if they are taken for Western
        foreign = name == "cp1252" and 2 * sum(map(str.isascii, letters)) <= len(letters)
        found = [c.encode(code, "ignore")[:1] for c in text if not c.isascii()]
        share = sum(bool(lead) and lead[0] in leads for lead in found) / len(found)
        if share > most and not foreign and (name != "cp949" or len(found) >= ENOUGH_HANGUL):
            best, most = TextEncoding(name, words[0][:20]), share
    return best


STDIN: Final = "-"


BOM: Final = b"\xef\xbb\xbf"
#: bytes that are looked at for the encoding of a file at most
SCANNED_BYTES: Final = 1 << 24
# so that a file without line ends cannot fill the memory
MAX_BYTES: Final = 1 << 24
#: the file of a folder that names its recordings with their texts, and its bytes at most
TRANSCRIPTS: Final = "transcripts.tsv"
MAX_TRANSCRIPTS: Final = 1 << 30
#: endings of files that `class_table` lists
CLASS_FILES: Final = (*MEDIA, ".npy")
#: endings of files with rows of examples, best first where an archive has several
ROW_FILES: Final = (
    *(".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".feather", ".xlsx"),
    ".txt",
)
ARCHIVE: Final = ".zip"
#: bytes that a zip of pictures or recordings may be unpacked to
MAX_UNPACKED: Final = 1 << 34


def display_name(source: PathLike) -> str:
    """Return the name of a file in messages."""
    return "stdin" if source == STDIN else os.fspath(source)


def format_suffix(source: PathLike) -> str:
    """Return the last suffix but that of compression, in lower case; of a zip, that of its file."""
    stem, suffix = os.path.splitext(os.fspath(source))
    if suffix.lower() == ARCHIVE and os.path.isfile(source):
        return "" if media_folder(source) else format_suffix(archived_table(source)[0])
    return (os.path.splitext(stem)[1] if suffix in DECOMPRESSORS else suffix).lower()


def archived_table(source: PathLike) -> tuple[str, int]:
    """Return the one file of a zip that has rows of examples, and the number of its files.

    Among several it is the one that is named after training. Raises DataError unless there is one.
    """
    return _archived_table(os.fspath(source), _stamp(source))


@lru_cache(maxsize=16)
def _archived_table(name: str, stamp: object) -> tuple[str, int]:
    with safe_read.open_input(name) as raw:
        names = safe_read.archive_names(raw, name)
    shown = [n for n in names if not any(part[:1] in "._" for part in n.split("/"))]
    rows = [n for n in shown if n.lower().endswith(ROW_FILES)]
    tables = [n for n in rows if not n.lower().endswith(".txt")] or rows
    training = [n for n in tables if os.path.basename(n).lower().startswith("train")]
    media = [n for n in shown if n.lower().endswith(CLASS_FILES)]
    found = training if len(training) == 1 else tables
    if len(found) == 1 and not media:
        return found[0], len(shown)
    what = f"has {len(media):,} pictures or recordings" if media else f"has {len(tables)}"
    listed = f" ({', '.join(tables[:4])})" if tables and not media else ""
    reason = f"a zip must have one file with rows of examples, but this one {what}{listed}"
    fix = f"unpack it with `python -m zipfile -e {name} {os.path.splitext(name)[0]}`"
    raise DataError(name, None, reason, fix)


def archive_note(source: PathLike) -> str:
    """Return a sentence about which file of a zip is read; "" if the source is no zip."""
    if not os.fspath(source).lower().endswith(ARCHIVE) or not os.path.isfile(source):
        return ""
    if media_folder(source):
        return message("data.unpacked", file=display_name(source))
    name, files = archived_table(source)
    return message("data.archive", file=display_name(source), name=name, files=files)


def _stamp(source: PathLike) -> object:
    """Return what changes when a file does."""
    found = os.stat(source)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def is_read_once(source: PathLike) -> bool:
    """Return whether a file can be read only once: stdin, a pipe, as of `<(...)`, or a device."""
    if source == STDIN:
        return True
    try:
        mode = os.stat(source).st_mode
    except (OSError, ValueError):  # opening it says what is wrong
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)


@contextmanager
def open_bytes(source: PathLike) -> Iterator[IO[bytes]]:
    """Open the bytes of a file, decompressed if its name or its first bytes say so.

    A folder, or a zip of one, is read as the table that `folder_table` makes of it.
    """
    if folder := media_folder(source):
        yield io.BytesIO(folder_table(folder))
        return
    with ExitStack() as stack:
        raw = stdin_bytes()
        if source != STDIN:
            raw = stack.enter_context(safe_read.open_input(source))
        suffix = os.path.splitext(os.fspath(source))[1]
        if suffix.lower() == ARCHIVE and os.path.isfile(source):
            member, _ = archived_table(source)
            yield stack.enter_context(safe_read.open_archived(raw, member, display_name(source)))
            return
        found = safe_read.decompressed(raw, suffix)
        yield raw if found is raw else stack.enter_context(found)


def is_folder(source: Any) -> bool:
    """Return whether a source is the path of a folder."""
    named = isinstance(source, str | os.PathLike) and source != STDIN
    try:
        return named and os.path.isdir(source)
    except ValueError:  # a NUL
        return False


def media_folder(source: Any) -> str | None:
    """Return the path of a folder, or of an unpacked zip of pictures, recordings or .npy files.

    None for another source. What is unpacked is removed when the process ends.
    """
    if is_folder(source):
        return str(source)
    named = isinstance(source, str | os.PathLike) and str(source).lower().endswith(ARCHIVE)
    return _unpacked(str(source), _stamp(source)) if named and os.path.isfile(source) else None


@lru_cache(maxsize=16)
def _unpacked(name: str, stamp: object) -> str | None:
    with safe_read.open_input(name) as raw:
        names = safe_read.archive_names(raw, name)
        hidden = (".", "_")
        shown = [
            n for n in names if not any(p.startswith(hidden) and p != ".." for p in n.split("/"))
        ]
        media = [n for n in shown if n.lower().endswith(CLASS_FILES)]
        beside = [n for n in shown if n.endswith((".txt", TRANSCRIPTS))]
        tables = [n for n in shown if n.lower().endswith(ROW_FILES) and n not in beside]
        if not media or tables:
            return None
        folder = tempfile.mkdtemp(prefix="regard-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        safe_read.unpack_archive(raw, name, media + beside, folder, MAX_UNPACKED)
    while len(inside := list(os.scandir(folder))) == 1 and inside[0].is_dir():
        folder = inside[0].path  # most archives have one folder, with all others in it
    return folder


def folder_table(folder: PathLike) -> bytes:
    """Return a folder of pictures, recordings or .npy files as tab-separated lines.

    They are those of its file `transcripts.tsv`; or a file and its text, as in `1.wav` beside
    `1.txt`; or else what `class_table` makes of it.
    """
    table = os.path.join(os.fspath(folder), TRANSCRIPTS)
    if os.path.isfile(table):
        return safe_read.read_bytes(table, MAX_TRANSCRIPTS)
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    texts = {name for name in names if name.endswith(".txt")}
    media = [name for name in names if name.lower().endswith(CLASS_FILES)]
    if not texts or not media:
        return class_table(folder)
    lines = []
    for name in media:
        text = f"{os.path.splitext(name)[0]}.txt"
        if text not in texts:
            reason = f"each of its files must have a text beside it, but there is no {text}"
            raise DataError(display_name(folder), None, reason, f"write it, or remove {name}")
        content = safe_read.read_bytes(os.path.join(os.fspath(folder), text), MAX_BYTES)
        lines.append(name.encode("utf-8", "surrogateescape") + b"\t" + b" ".join(content.split()))
    return b"\n".join(lines) + b"\n"


def class_table(folder: PathLike) -> bytes:
    """Return the files in the folders of a folder as tab-separated lines: path, name of the folder.

    This is how sets of labelled pictures and recordings are usually laid out: `cat/1.png`,
    `dog/7.png`. Files of other endings and hidden ones are left out. Raises DataError if none is
    left, or if a name cannot be written on a line.
    """
    root, lines = os.fspath(folder), []
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        if not entry.is_dir() or entry.name.startswith("."):
            continue
        for place, below, names in os.walk(entry.path):
            below[:] = sorted(name for name in below if not name.startswith("."))
            good = (n for n in names if n.lower().endswith(CLASS_FILES) and not n.startswith("."))
            for name in sorted(good):
                path = os.path.relpath(os.path.join(place, name), root)
                lines.append(f"{path}\t{entry.name}")
    name = display_name(folder)
    if not lines:
        reason = (
            "a folder must have a folder for each class, with pictures, recordings or .npy files, "
            "but this one has none"
        )
        raise DataError(name, None, reason, "put them there, or name a file of pairs")
    odd = next((line for line in lines if line.count("\t") != 1 or "\n" in line), None)
    table = "\n".join(lines) + "\n"
    try:
        if odd is None:
            return table.encode()
    except UnicodeEncodeError:
        odd = next(line for line in lines if not line.isprintable())
    reason = f"the names of its files must be UTF-8 without tabs and line ends, but one is {odd!r}"
    raise DataError(name, None, reason, "rename it")


def stdin_bytes() -> Any:
    """Return the binary stream of stdin, which may have been replaced."""
    if sys.stdin is None:
        reason, fix = "it is closed", "write lines to it, leave `<&-` out, or name a file"
        raise DataError("stdin", None, reason, fix)
    return sys.stdin.buffer


def numbered_lines(source: PathLike) -> Iterator[tuple[int, bytes]]:
    """Yield line numbers from 1 and lines without their ends; the first one opens the file.

    A line longer than `MAX_BYTES` is truncated to one byte more, for `decode` to refuse.
    """
    name, number = display_name(source), 0
    with open_bytes(source) as stream:
        try:
            encoding = _encoding(source, stream)
            readline = stream.readline if encoding == UTF8 else _recoded(stream, encoding)
            while raw := readline(MAX_BYTES + 1):
                number += 1
                if number == 1:
                    raw = raw.removeprefix(BOM)
                rest = raw
                while len(raw) > MAX_BYTES and rest and not rest.endswith(b"\n"):
                    rest = readline(MAX_BYTES)
                yield number, raw.removesuffix(b"\n").removesuffix(b"\r")
        except DAMAGE as error:
            raise damaged_file(name, number + 1, error) from None
        except UnicodeDecodeError as error:
            reason = f"the file is in {encoding}, but byte {error.start} of a part of it is not"
            raise DataError(name, number + 1, reason, "save it as UTF-8") from None


def _recoded(stream: Any, encoding: str) -> Callable[[int], bytes]:
    """Return the `readline` of a stream in another encoding, as UTF-8."""
    text = io.TextIOWrapper(stream, encoding, newline="\n")
    return lambda size: text.readline(size).encode()


def encoding_note(source: PathLike) -> str:
    """Return a sentence about the encoding of a file that is not UTF-8; else ""."""
    if is_read_once(source) or not os.path.isfile(source):
        return ""
    found = _file_encoding(os.fspath(source), _stamp(source))
    if found.name == UTF8:
        return ""
    return message("data.encoding", file=display_name(source), **found._asdict())


def _encoding(source: PathLike, stream: Any) -> str:
    """Return the encoding of a file, or of a stream of which only the first bytes may be seen."""
    if not is_read_once(source) and os.path.isfile(source):
        return _file_encoding(os.fspath(source), _stamp(source)).name
    return marked_encoding(stream.peek(4)[:4] if isinstance(stream, io.BufferedReader) else b"")


@lru_cache(maxsize=64)
def _file_encoding(name: str, stamp: object) -> TextEncoding:
    try:
        with open_bytes(name) as stream:
            content = stream.read(SCANNED_BYTES)
    except DAMAGE:  # reading its lines says where
        return TextEncoding()
    whole = len(content) < SCANNED_BYTES
    return find_encoding(content if whole else content[: content.rfind(b"\n") + 1])


def damaged_file(name: str, line: int | None, error: Exception) -> DataError:
    """Return the error for a truncated or damaged file."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    reason = f"the file cannot be read on ({text[:1].lower() + text[1:].rstrip('.')})"
    return DataError(name, line, reason, "it is cut off or damaged, so copy or compress it again")


def decode(raw: bytes) -> str:
    """Decode a line; raises BadLine if it is too long or no text."""
    if len(raw) > MAX_BYTES:
        reason = f"the line has more than {MAX_BYTES:,} bytes"
        raise BadLine("too long", reason, "check that the file has line ends")
    if b"\0" in raw:
        reason = f"there is a NUL byte at offset {raw.index(0)} of the line"
        raise BadLine("NUL byte", reason, "remove it, and check that this is a text file")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"invalid UTF-8, byte 0x{raw[error.start]:02x} at offset {error.start} of the line"
        raise BadLine("invalid UTF-8", reason, "save the file as UTF-8") from None


BLOCK = 1 << 20


def data_checksum(source: PathLike) -> str:
    """Return the checksum of what a file holds, decompressed."""
    digest = hashlib.blake2b(digest_size=16)
    with open_bytes(source) as stream:
        try:
            while block := stream.read(BLOCK):
                digest.update(block)
        except DAMAGE as error:
            raise damaged_file(display_name(source), None, error) from None
    return digest.hexdigest()


def fingerprint(**values: Any) -> str:
    """Return a checksum of values, which JSON can hold."""
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()
