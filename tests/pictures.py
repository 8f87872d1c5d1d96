"""Pictures for tests: files of two colours whose captions say which, and damaged ones."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

COLOURS = {"red": (200, 30, 20), "blue": (20, 40, 210)}
SIDES = ("left", "right")


def drawn(colour, side, seed=0, height=6, width=10):
    """A picture of which one half has a colour, (height, width, 3)."""
    noise = np.random.default_rng(seed).integers(0, 20, (height, width, 3))
    half = slice(None, width // 2) if side == "left" else slice(width // 2, None)
    noise[:, half] += np.array(COLOURS[colour]).astype(noise.dtype)
    return noise.astype(np.uint8)


def caption(colour, side):
    return f"{colour} is {side}"


def write_set(folder, count=24, name="pairs.tsv", mode="RGB"):
    """Write pictures, and a file of pairs that names them; a mode of Pillow may be grey, "L"."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines = []
    for i in range(count):
        colour, side = list(COLOURS)[i % 2], SIDES[i // 2 % 2]
        picture = Image.fromarray(drawn(colour, side, i)).convert(mode)
        picture.save(folder / "images" / f"{i}.png")
        lines.append(f"images/{i}.png\t{caption(colour, side)}\n")
    (folder / name).write_text("".join(lines))
    return folder / name


def write_classes(folder, count=24):
    """Write pictures in a folder for each colour."""
    for i in range(count):
        colour = list(COLOURS)[i % 2]
        (folder / colour).mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawn(colour, "left", i)).save(folder / colour / f"{i}.png")
    return folder


def bomb(width=60_000, height=60_000):
    """A small PNG file that claims to have billions of pixels."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def png_bytes(array):
    content = io.BytesIO()
    Image.fromarray(array).save(content, "png")
    return content.getvalue()
