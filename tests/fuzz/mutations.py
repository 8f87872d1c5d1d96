"""Damage to files: to the structure of JSON, to bytes, and to what kind of file it is."""

import copy
import gzip
import json
import os
import random
import socket
import struct
from pathlib import Path
from typing import Any

DEEP = "@deep@"
#: what no reader expects, in the place of anything
ODD = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "x", "\0", "a\0b", "\ud800", "\x1b[2J", "ﷺ" * 50, "-1"),
    *("../canary/notes.txt", "/dev/zero", "/etc/passwd", "a" * 100_000, "\n", "true", "1e999"),
    *([], {}, [[]], [{}], {"": {}}, {"a": 1}, [None] * 50, [0] * 1000, DEEP),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all nodes of a JSON value, the root first; of long lists, the first and the last."""
    found = [path]
    if isinstance(value, dict):
        for key in list(value)[:60]:
            found += places(value[key], (*path, key))
    elif isinstance(value, list):
        for i in sorted({*range(min(4, len(value))), *range(max(0, len(value) - 2), len(value))}):
            found += places(value[i], (*path, i))
    return found


def mutate(value: Any, rng: random.Random) -> Any:
    """A JSON value with one node changed."""
    path = rng.choice(places(value))
    if not path:
        return copy.deepcopy(rng.choice(ODD))
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    key = path[-1]
    how = rng.random()
    if how < 0.15:
        del holder[key]
    elif how < 0.25 and isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(rng.choice(ODD)))
    elif how < 0.3 and isinstance(holder, dict):
        holder[rng.choice(("", "a\0b", "format", "version", "x" * 5000))] = copy.deepcopy(
            rng.choice(ODD)
        )
    elif how < 0.45 and isinstance(holder[key], int | float):
        holder[key] = holder[key] * rng.choice((-1, 2, 3, 0.5, 1000, 10**12))
    elif how < 0.5 and isinstance(holder[key], str):
        holder[key] = rng.choice((holder[key] * 2, holder[key][:-1], holder[key] + "\ud800"))
    else:
        holder[key] = copy.deepcopy(rng.choice(ODD))
    return value


def dumps(value: Any) -> bytes:
    """JSON text; half characters and nesting that Python could not write are in it."""
    deep = "[" * 5000 + "]" * 5000
    return json.dumps(value).replace(json.dumps(DEEP), deep).encode()


def flip(content: bytes, rng: random.Random) -> bytes:
    """Bytes with some changed, cut off, put in or doubled."""
    changed = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 1, 3, 30))):
        at = rng.randrange(len(changed) + 1)
        how = rng.randrange(6)
        if how == 0:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif how == 1:
            del changed[at : at + rng.choice((1, 2, 8, 1000))]
        elif how == 2:
            changed[at:at] = rng.randbytes(rng.choice((1, 4, 100)))
        elif how == 3:
            changed[at:at] = changed[: rng.choice((1, 50, 5000))]
        elif how == 4 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        else:
            del changed[at:]
        changed = changed or bytearray(b"\0")
    return bytes(changed)


def lie(content: bytes, rng: random.Random) -> bytes:
    """A safetensors file whose header says something else than what follows it."""
    (size,) = struct.unpack("<Q", content[:8])
    header, tensors = json.loads(content[8 : 8 + size]), content[8 + size :]
    how = rng.randrange(7)
    if how == 0:
        claimed = rng.choice((0, 1, size - 1, size + 1, 2**40, 2**64 - 1))
        return struct.pack("<Q", claimed) + content[8:]
    name = rng.choice([name for name in header if name != "__metadata__"])
    if rng.random() < 0.7:  # as in runs that have no checksum, which none can be right for
        header.pop("__metadata__", None)
    if how == 1:
        header[name]["shape"] = rng.choice(([2**40], [0], [2**62, 4], [], [1] * 40, [-1]))
    elif how == 2:
        header[name]["data_offsets"] = rng.choice(([0, 2**50], [8, 4], [0, 0], [-4, 4]))
    elif how == 3:
        header[name]["dtype"] = rng.choice(("F64", "I64", "BOOL", "F8", "", 5))
    elif how == 4:
        header[f"layers.{2**40}.weight"] = header.pop(name)
    elif how == 5:
        values = rng.choice((float("nan"), float("inf"), 1e38, -1e38))
        tensors = struct.pack("<f", values) * (len(tensors) // 4)
    else:
        header = mutate(header, rng)
    raw = dumps(header)
    return struct.pack("<Q", len(raw)) + raw + tensors


def replace_kind(path: Path, rng: random.Random, outside: Path) -> None:
    """Put something else in the place of a file: a pipe, a folder, a device, a link, a bomb."""
    content = path.read_bytes() if path.is_file() else b""
    path.unlink(missing_ok=True)
    how = rng.randrange(11)
    if how == 0:
        os.mkfifo(path)
    elif how == 1:
        path.mkdir()
    elif how == 2:
        path.symlink_to(rng.choice(("/dev/zero", "/dev/full", "/dev/tty", "/dev/stdin")))
    elif how == 3:
        path.symlink_to(outside / "notes.txt")
    elif how == 4:
        path.symlink_to(path.name)
    elif how == 5:
        bound = socket.socket(socket.AF_UNIX)
        place = os.open(path.parent, os.O_RDONLY)
        bound.bind(f"/proc/self/fd/{place}/{path.name}")  # names of sockets must be short
        os.close(place)
        bound.close()
    elif how == 6:
        path.write_bytes(content)
        path.chmod(0)
    elif how == 7:
        with open(path, "wb") as file:
            file.truncate(rng.choice((1 << 20, 1 << 40)))
    elif how == 8:
        path.write_bytes(gzip.compress(bytes(50_000_000), 9))
    elif how == 9:
        path.write_bytes(b"")
    else:
        path.write_bytes(rng.randbytes(rng.choice((1, 8, 1000, 100_000))))
