"""Files of weights with a checksum, verified against the model that they are for.

The checksum is in the metadata of the safetensors header and covers every other byte of the file,
so that weights and checksum are replaced together, in one rename.

The settings of an untrusted folder may name any size in a few bytes. Memory is therefore allocated
only for weights that the file really has: the shapes in its header are compared with those of the
model, which is first built on the meta device.

Matrices may be stored in int8: a row is 8-bit integers and one float32 scale, the largest magnitude
of the row divided by 127, so that rounding changes a weight by half a scale at most. They are only
stored so; `read_weights` returns float32, and a model computes as ever.
"""

import os
import re
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from regard import safe_read
from regard.atomic_files import write_atomic
from regard.device import shapes_only

WeightShapes = Mapping[str, tuple[int, ...]]

#: maximum number of tensors; a model of a hundred layers has some thousands
MAX_TENSORS: Final = 10_000
MAX_HEADER: Final = 1 << 22
#: dtypes of weights, as safetensors names them
DTYPES: Final = ("F64", "F32", "F16", "BF16")
INT8: Final = "I8"
#: maximum value of a setting that is not the size of a weight, such as the width of a window
MAX_FREE: Final = 1_000_000
FREE: Final = ("half_width", "window", "max_distance")
#: a header begins with its length in eight bytes, and metadata come first in it
HEAD: Final = re.compile(rb'.{8}\{"__metadata__":\{"checksum":"([0-9a-f]{8})"\}', re.DOTALL)
#: placeholder of the checksum while it is computed
BLANK: Final = b"0" * 8

#: end of the name of the scales of a matrix; no parameter of a module can be called so
SCALES: Final = ":scales"


class UnusableWeightsError(ValueError):
    """Weights that are damaged or of another model: says why."""


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write tensors with their checksum to a file, atomically."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    content = bytearray(save(plain, metadata={"checksum": BLANK.decode()}))
    head = HEAD.match(content)
    assert head is not None, "safetensors writes metadata first"
    start, end = head.span(1)
    content[start:end] = b"%08x" % zlib.crc32(content)
    write_atomic(path, bytes(content))


def read_weights(path: Path, *, inside: Path | None = None) -> dict[str, Tensor]:
    """Return the tensors of a file, which must be inside the folder `inside` if given.

    Those that are stored in int8 become float32. Raises UnusableWeightsError if the file does not
    match its checksum. A file without metadata, like that of an older run, has no checksum.
    """
    with safe_read.open_regular(path, inside=inside) as file:
        _check_memory(os.fstat(file.fileno()).st_size)
    content = safe_read.read_bytes(path, None, inside=inside)
    head = HEAD.match(content)
    if head is not None:
        start, end = head.span(1)
        view = memoryview(content)
        found = zlib.crc32(view[end:], zlib.crc32(BLANK, zlib.crc32(view[:start])))
        if found != int(head[1], 16):
            raise UnusableWeightsError("its content does not match its checksum")
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise UnusableWeightsError(_first_line(error)) from None
    if head is None and b'"__metadata__"' in content[8 : 8 + int.from_bytes(content[:8], "little")]:
        raise UnusableWeightsError("its header has no checksum")
    try:
        return dequantize_rows(tensors)
    except ValueError as error:
        raise UnusableWeightsError(str(error)) from None


def read_shapes(path: Path, *, inside: Path) -> WeightShapes:
    """Return the shape of each weight of a safetensors file; reads only its header."""
    with safe_read.open_regular(path, inside=inside) as file:
        size, claimed = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= claimed <= min(MAX_HEADER, size - 8):
        raise UnusableWeightsError(f"its header claims {claimed:,} bytes of {size:,}")
    _check_memory(size)
    try:
        with safe_read.open_tensors(path, inside=inside) as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            dtypes = {name: str(one.get_dtype()) for name, one in slices.items()}
            shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
    except SafetensorError as error:
        raise UnusableWeightsError(_first_line(error)) from None
    odd = [name for name, dtype in dtypes.items() if dtype not in (*DTYPES, INT8)]
    if odd:
        raise UnusableWeightsError(f"{odd[0]!r:.80} does not hold floating point numbers")
    if len(shapes) > MAX_TENSORS:
        raise UnusableWeightsError(
            f"it has {len(shapes):,} tensors, and {MAX_TENSORS:,} is the limit"
        )
    try:
        return weight_shapes(shapes, {name for name, dtype in dtypes.items() if dtype == INT8})
    except ValueError as error:
        raise UnusableWeightsError(str(error)) from None


def check_sizes(settings: Mapping[str, object], shapes: WeightShapes) -> None:
    """Raise UnusableWeightsError if a size or number of layers exceeds all sizes in the file."""
    longest = max((axis for shape in shapes.values() for axis in shape), default=0)
    most = max(longest, len(shapes))
    for name, value in settings.items():
        no_table = name == "max_positions" and settings.get("positions") != "learned"
        limit = MAX_FREE if name in FREE or no_table else most
        if isinstance(value, int) and value > limit:
            raise UnusableWeightsError(
                f"config.json asks for {name}={value!r:.80}, and the largest size that they have "
                f"is {limit:,}"
            )


def build_checked(build: Callable[[], nn.Module], shapes: WeightShapes) -> None:
    """Build a model on the meta device; raises UnusableWeightsError if its shapes differ."""
    try:
        with shapes_only():
            model = build()
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        raise UnusableWeightsError(_first_line(error)) from None
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(expected.keys() | shapes.keys()):
        if expected.get(name) != shapes.get(name):
            raise UnusableWeightsError(
                f"{name!r:.80} is {_shown(shapes.get(name))} in the file and "
                f"{_shown(expected.get(name))} in the model"
            )


def _shown(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else f"of shape {shape}"


def physical_memory() -> int:
    """Return the bytes of memory of this machine, or 2**62 if unknown."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 1 << 62
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_memory(size: int) -> None:
    """Raise UnusableWeightsError if a file, perhaps sparse, is larger than the memory."""
    memory = physical_memory()
    if size > memory:
        raise UnusableWeightsError(
            f"they take {size / 1e9:,.1f} GB, and this machine has {memory / 1e9:,.1f} GB of memory"
        )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200].rstrip(". ")


def dequantize_rows(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of stored tensors: float32 for each in int8, all others as they are.

    Raises ValueError as `weight_shapes` does.
    """
    int8 = {name for name, tensor in stored.items() if tensor.dtype == torch.int8}
    shapes = weight_shapes({name: tuple(one.shape) for name, one in stored.items()}, int8)
    found = {name: stored[name] for name in shapes}
    for name in int8 & shapes.keys():
        scales = stored[name + SCALES].float()
        found[name] = found[name].float() * scales.view(-1, *[1] * (found[name].dim() - 1))
    return found


def weight_shapes(
    shapes: Mapping[str, tuple[int, ...]], int8: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a file, without those of their scales.

    Raises ValueError unless each tensor in int8 has a scale for each row, and scales have their
    tensor.

    Args:
        shapes: of all tensors, by name.
        int8: names of those in int8.
    """
    found = {name: shape for name, shape in shapes.items() if not name.endswith(SCALES)}
    for name in found.keys() & set(int8):
        if not shapes[name] or shapes.get(name + SCALES) != shapes[name][:1]:
            raise ValueError(f"{name!r:.80} is in int8 and lacks a scale for each of its rows")
    for name in shapes.keys() - found.keys():
        if name.removesuffix(SCALES) not in int8:
            raise ValueError(f"{name!r:.80} are scales of no tensor in int8")
    return found
