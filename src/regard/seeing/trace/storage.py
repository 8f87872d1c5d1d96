"""Traces as JSON that is small enough to embed in a page.

Weights are the bulk. Up to a million of them are stored as float16; above that, one byte each: the
square root of a weight in steps of 1/255, which keeps the mass of a row, whereas linear bytes would
round its many small weights to zero. Both are deflated and written as base64.
"""

import base64
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from regard import safe_read
from regard.errors import ArgumentError
from regard.seeing.trace.trace import Backdrop, Map, Text, Trace, TraceError, Weights

if TYPE_CHECKING:
    from regard.seeing.trace.trace_schema import StoredMap, StoredText

FORMAT: Final = "regard-trace"
VERSION: Final = 1
#: weights of a trace beyond which each takes one byte
HALF_LIMIT: Final = 1_000_000
#: steps of a square root from 0 to 1
STEPS: Final = 255
#: size limit of a stored trace
MAX_BYTES: Final = 1 << 26


def to_json(trace: Trace) -> dict[str, Any]:
    """Return a trace as plain dictionaries, lists, numbers and strings."""
    many = sum(found.weights.size for found in trace.maps) > HALF_LIMIT
    encoding = "sqrt8" if many else "float16"
    maps = [
        {
            **{name: getattr(found, name) for name in ("kind", "layer", "rows", "columns")},
            "causal": found.causal,
            "weights": pack(found.weights, encoding),
            "missing": None if found.missing is None else pack(found.missing, "float16"),
        }
        for found in trace.maps
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "source": _text_to_json(trace.source),
        "target": _text_to_json(replace(trace.target, backdrop=None)),
        "maps": maps,
        "model": dict(vars(trace.model)),
        "decoded": dict(vars(trace.decoded)),
        "derived": {name: pack(matrix, "float16") for name, matrix in trace.derived.items()},
        "checks": dict(trace.checks),
        "notes": list(trace.notes),
    }


def _text_to_json(text: Text) -> dict[str, Any]:
    """Return a text; without a backdrop it has no key for one, as in files of earlier versions."""
    found = {"text": text.text, "tokens": [dict(vars(token)) for token in text.tokens]}
    backdrop = text.backdrop
    if backdrop is None:
        return found
    fields = {name: getattr(backdrop, name) for name in ("kind", "first", "seconds")}
    sizes = {"shape": list(backdrop.shape), "grid": list(backdrop.grid)}
    return {**found, "backdrop": {**fields, **sizes, "data": _deflated(backdrop.pixels)}}


def dumps(trace: Trace) -> str:
    """Return a trace as one line of JSON for a file; raises TraceError if it is too large."""
    from regard.seeing.trace.trace_schema import BYTES, MAX_WEIGHTS, may_inflate  # see `from_json`

    content = to_json(trace)
    parts = [*content["maps"], content["derived"]]
    arrays = [one for part in parts for one in part.values() if isinstance(one, dict)]
    inflated = sum(math.prod(one["shape"]) * BYTES[one["encoding"]] for one in arrays)
    text = json.dumps(content, ensure_ascii=False)
    if len(text) > MAX_BYTES or not may_inflate(inflated, sum(len(one["data"]) for one in arrays)):
        raise TraceError(
            f"a trace that is saved must have at most {MAX_WEIGHTS:,} weights and {MAX_BYTES:,} "
            f"bytes, but this one has more: choose fewer layers."
        )
    return text


def from_json(content: Any) -> Trace:
    """Parse the result of `to_json`; raises TraceError if it is invalid."""
    # pydantic is slow to import, and not needed to draw
    from pydantic import ValidationError

    from regard.seeing.trace.trace_schema import StoredTrace

    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TraceError(
            "the file must hold a trace, but it does not: "
            "save one with `regard show -o x.json` or `regard predict --trace x.jsonl`."
        )
    if (version := content.get("version")) != VERSION:
        newer = isinstance(version, int) and version > VERSION
        fix = "update regard with `pip install --upgrade regard`" if newer else "save it again"
        raise TraceError(
            f"the trace must be of version {VERSION}, but it is of {version!r:.40}: {fix}."
        )
    try:
        file = StoredTrace.model_validate(content)
        return Trace(
            source=_parse_text(file.source),
            target=_parse_text(file.target),
            maps=tuple(map(_parse_map, file.maps)),
            model=file.model,
            decoded=file.decoded,
            derived={name: _finite(name, unpack(dict(one))) for name, one in file.derived.items()},
            checks=file.checks,
            notes=tuple(file.notes),
        )
    except (ValidationError, PackedError, ArgumentError) as error:
        reason = safe_read.explain(error) if isinstance(error, ValidationError) else str(error)
        raise TraceError(
            f"the trace must be whole, but a part of it cannot be read ({reason}): save it again."
        ) from None


class LoadedTrace(NamedTuple):
    """A trace of a file, and the number of traces in the file."""

    trace: Trace
    total: int


def load(path: str | Path, line: int = 1) -> Trace:
    """Read a trace from a file that `Trace.save` or `regard predict --trace` wrote; see `find`."""
    return find(path, line).trace


def find(path: str | Path, line: int = 1) -> LoadedTrace:
    """Read one trace: the whole file, or of a `.jsonl` file a line, counted from 1."""
    try:
        text, total = _text_of(path, line)
        content = safe_read.parse_json(text)
    except safe_read.InvalidJSONError as error:
        raise TraceError(
            f"{path} must hold a trace, but it is not JSON ({error}): save one again."
        ) from None
    return LoadedTrace(from_json(content), total)


def _text_of(path: str | Path, number: int) -> tuple[bytes, int]:
    """Return the text of one trace and the number of traces, with one in memory at a time."""
    by_lines, wanted, total = Path(path).suffix.lower() == ".jsonl", b"", 0
    with safe_read.open_regular(path) as file:
        read = file.readline if by_lines else file.read
        while part := read(MAX_BYTES + 1):
            if len(part) > MAX_BYTES:
                raise TraceError(
                    f"a trace must have at most {MAX_BYTES:,} bytes, but one of {path} has more: "
                    f"save it with fewer layers."
                )
            total += not part.isspace()
            if total == number and not wanted:
                wanted = part
    if total and not 1 <= number <= total:
        rule = f"be from 1 to {total}, since {path} has {total} trace{'s' * (total > 1)}"
        raise ArgumentError("line", rule, number, "choose one of them")
    return wanted, total


def pack(array: Weights, how: str) -> dict[str, Any]:
    """Return an array as shape, encoding, and base64 of the deflated little-endian bytes."""
    if how == "sqrt8":
        raw = np.round(np.sqrt(np.clip(array, 0.0, 1.0)) * STEPS).astype(np.uint8)
    else:
        raw = array.astype("<f2")
    shape = list(array.shape)
    return {"shape": shape, "encoding": how, "steps": STEPS, "data": _deflated(raw.tobytes())}


def _deflated(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


class PackedError(ValueError):
    """Raised for an array that cannot be unpacked."""


def unpack(packed: Mapping[str, Any]) -> Weights:
    """Return the array that `pack` was given, up to the precision of its encoding."""
    shape, kind = packed["shape"], np.dtype(np.uint8 if packed["encoding"] == "sqrt8" else "<f2")
    raw = _inflated(packed["data"], math.prod(shape) * kind.itemsize)
    found = np.frombuffer(raw, dtype=kind).astype(np.float32)
    if packed["encoding"] == "sqrt8":
        found = np.square(found / np.float32(packed["steps"]))
    shaped: Weights = found.reshape(shape)
    return shaped


def _inflated(data: str, size: int, what: str = "weights") -> bytes:
    """Inflate base64 of deflated bytes; raises PackedError unless there are `size` of them."""
    try:
        stream = zlib.decompressobj()
        raw = stream.decompress(base64.b64decode(data, validate=True), size + 1)
    except (ValueError, zlib.error) as error:
        raise PackedError(f"{what} are damaged: {error}") from None
    if len(raw) != size or not stream.eof:
        raise PackedError(f"{what} must inflate to {size:,} bytes, and these do not")
    return raw


def _finite(name: str, array: Weights) -> Weights:
    if not np.isfinite(array).all():
        raise PackedError(f"{name!r:.40} has numbers that are not finite")
    return array


def _parse_text(file: "StoredText") -> Text:
    if file.backdrop is None:
        return Text(file.text, tuple(file.tokens))
    fields = dict(file.backdrop)
    pixels = _inflated(fields.pop("data"), math.prod(fields["shape"]), "pixels")
    return Text(file.text, tuple(file.tokens), Backdrop(**fields, pixels=pixels))


def _parse_map(file: "StoredMap") -> Map:
    weights = unpack(dict(file.weights))
    missing = None if file.missing is None else _finite("missing", unpack(dict(file.missing)))
    if file.weights.encoding == "sqrt8":
        weights = _rescaled(weights, missing, causal=file.causal)
    return Map(file.kind, file.layer, weights, missing, file.rows, file.columns, file.causal)


def _rescaled(weights: Weights, missing: Weights | None, *, causal: bool) -> Weights:
    """Rescale rows to their original sums, which rounding moves by a percent or so.

    A row that rounding has set to zero was near uniform over thousands of columns, and becomes
    uniform again.
    """
    rows, columns = weights.shape[1:]
    even = np.tri(rows, columns, columns - rows if causal else columns, dtype=np.float32)
    weights = np.where(weights.any(axis=-1, keepdims=True), weights, even)
    total = weights.sum(axis=-1, keepdims=True)
    wanted = 1.0 if missing is None else 1.0 - missing[..., None]
    rescaled: Weights = np.zeros_like(weights)
    np.divide(weights * wanted, total, out=rescaled, where=total > 0)
    return rescaled
