"""Traces as JSON that is small enough to embed in a page.

Weights are the bulk. Up to a million of them are stored as float16; above that, one byte each: the
square root of a weight in steps of 1/255, which keeps the mass of a row, whereas linear bytes would
round its many small weights to zero. Both are deflated and written as base64. Maps that deflate
badly, as near-uniform ones do, take coarser steps, so that the size of a page stays bounded.
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
from regard.seeing.trace.backdrop import Backdrop
from regard.seeing.trace.trace import (
    DecodingInfo,
    Map,
    ModelInfo,
    QueryKeys,
    Text,
    Token,
    Trace,
    TraceError,
    Weights,
)

if TYPE_CHECKING:
    from regard.seeing.trace.trace_schema import StoredMap, StoredQueries, StoredText

FORMAT: Final = "regard-trace"
VERSION: Final = 1
#: weights of a trace beyond which each takes one byte
HALF_LIMIT: Final = 1_000_000
#: steps of a square root from 0 to 1; the first that needs at most this many characters is taken
STEPS: Final = (255, 127, 63, 31)
MOST_CHARACTERS: Final = 7_000_000
#: size limit of a stored trace
MAX_BYTES: Final = 1 << 26


def to_json(trace: Trace) -> dict[str, Any]:
    """Return a trace as plain dictionaries, lists, numbers and strings."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "source": _text_to_json(trace.source),
        "target": _text_to_json(replace(trace.target, backdrop=None)),
        "maps": _maps_to_json(trace),
        "model": dict(vars(trace.model)),
        "decoded": dict(vars(trace.decoded)),
        "derived": {name: pack(matrix, "float16") for name, matrix in trace.derived.items()},
        "checks": dict(trace.checks),
        "gold": [list(link) for link in trace.gold],
        "gold_units": list(trace.gold_units),
        "notes": list(trace.notes),
        **({"queries": list(map(_queries_to_json, trace.queries))} if trace.queries else {}),
    }


def _queries_to_json(found: QueryKeys) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "layer": found.layer,
        "scale": found.scale,
        "queries": pack(found.queries, "float16"),
        "keys": pack(found.keys, "float16"),
    }


def _text_to_json(text: Text) -> dict[str, Any]:
    """Return a text; without a backdrop it has no key for one, as in files of earlier versions."""
    found = {"text": text.text, "tokens": [dict(vars(token)) for token in text.tokens]}
    backdrop = text.backdrop
    if backdrop is None:
        return found
    data = base64.b64encode(zlib.compress(backdrop.pixels, 6)).decode("ascii")
    fields = {name: getattr(backdrop, name) for name in ("kind", "first", "seconds")}
    sizes = {"shape": list(backdrop.shape), "grid": list(backdrop.grid)}
    return {**found, "backdrop": {**fields, **sizes, "data": data}}


def dumps(trace: Trace) -> str:
    """Return a trace as one line of JSON for a file; raises TraceError if it is too large."""
    from regard.seeing.trace.trace_schema import BYTES, MAX_WEIGHTS, may_inflate  # see `from_json`

    content = to_json(trace)
    packed = [part for found in content["maps"] for part in (found["weights"], found["missing"])]
    vectors = [one[name] for one in content.get("queries", ()) for name in ("queries", "keys")]
    packed += [*content["derived"].values(), *vectors]
    packed = [part for part in packed if part is not None]
    inflated = sum(math.prod(part["shape"]) * BYTES[part["encoding"]] for part in packed)
    text = json.dumps(content, ensure_ascii=False)
    if len(text) > MAX_BYTES or not may_inflate(inflated, sum(len(p["data"]) for p in packed)):
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
    _check_version(content.get("version"))
    try:
        file = StoredTrace.model_validate(content)
        return Trace(
            source=_parse_text(file.source),
            target=_parse_text(file.target),
            maps=tuple(map(_parse_map, file.maps)),
            model=ModelInfo(**dict(file.model)),
            decoded=DecodingInfo(**dict(file.decoded)),
            derived={name: _finite(name, unpack(dict(one))) for name, one in file.derived.items()},
            checks=file.checks,
            gold=tuple(file.gold),
            gold_units=file.gold_units,
            notes=tuple(file.notes),
            queries=tuple(map(_parse_queries, file.queries)),
        )
    except (ValidationError, PackedError) as error:
        reason = safe_read.explain(error) if isinstance(error, ValidationError) else str(error)
        raise TraceError(
            f"the trace must be whole, but a part of it cannot be read ({reason}): save it again."
        ) from None


def _check_version(found: Any) -> None:
    if isinstance(found, int) and found > VERSION:
        raise TraceError(
            f"the trace must be of version {VERSION} or older, but it is of {found!r:.40}: a newer "
            f"regard wrote it, so update regard with `pip install --upgrade regard`."
        )
    if found != VERSION:
        raise TraceError(
            f"the trace must be of version {VERSION}, but it is of {found!r:.40}: "
            f"save it again with this version of regard."
        )


class LoadedTrace(NamedTuple):
    """A trace of a file, and the number of traces in the file."""

    trace: Trace
    total: int


def load(path: str | Path, line: int = 1) -> Trace:
    """Read a trace from a file that `Trace.save` or `regard predict --trace` wrote; see `find`."""
    return find(path, line).trace


def find(path: str | Path, line: int = 1) -> LoadedTrace:
    """Read one trace from a file of one trace, or of a trace on each line, counted from 1."""
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
    wanted, total = b"", 0
    with safe_read.open_regular(path) as file:
        while row := file.readline(MAX_BYTES + 1):
            if row.isspace():
                continue
            total += 1
            if total == 1 and not _is_whole(row):
                wanted = row + file.read(MAX_BYTES + 1 - len(row))
                break
            if total == number:
                wanted = row
            if len(row) > MAX_BYTES:
                break
    if max(len(row), len(wanted)) > MAX_BYTES:
        raise TraceError(
            f"a trace must have at most {MAX_BYTES:,} bytes, but one of {path} has more: save it "
            f"with fewer layers."
        )
    if total and not 1 <= number <= total:
        rule = f"be from 1 to {total}, since {path} has {total} trace{'s' * (total > 1)}"
        raise ArgumentError("line", rule, number, "choose one of them")
    return wanted, total


def _is_whole(row: bytes) -> bool:
    """Return whether a line is complete JSON; otherwise one trace spans all lines."""
    try:
        safe_read.parse_json(row)
    except safe_read.InvalidJSONError:
        return False
    return True


def pack(array: Weights, how: str, steps: int = STEPS[0]) -> dict[str, Any]:
    """Return an array as shape, encoding, and base64 of the deflated little-endian bytes."""
    if how == "sqrt8":
        raw = np.round(np.sqrt(np.clip(array, 0.0, 1.0)) * steps).astype(np.uint8)
    else:
        raw = array.astype("<f2")
    data = base64.b64encode(zlib.compress(raw.tobytes(), 6)).decode("ascii")
    return {"shape": list(array.shape), "encoding": how, "steps": steps, "data": data}


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


def _parse_queries(file: "StoredQueries") -> QueryKeys:
    queries, keys = (
        _finite(name, unpack(dict(part)))
        for name, part in (("queries", file.queries), ("keys", file.keys))
    )
    return QueryKeys(file.kind, file.layer, queries, keys, file.scale)


def _parse_text(file: "StoredText") -> Text:
    tokens = ({**dict(token), "alternatives": tuple(token.alternatives)} for token in file.tokens)
    return Text(file.text, tuple(Token(**token) for token in tokens), _parse_backdrop(file))


def _parse_backdrop(file: "StoredText") -> Backdrop | None:
    if file.backdrop is None:
        return None
    fields = dict(file.backdrop)
    pixels = _inflated(fields.pop("data"), math.prod(fields["shape"]), "pixels")
    return Backdrop(**fields, pixels=pixels)


def _maps_to_json(trace: Trace) -> list[dict[str, Any]]:
    if sum(found.weights.size for found in trace.maps) <= HALF_LIMIT:
        return [_map_to_json(found, "float16", STEPS[0]) for found in trace.maps]
    for steps in STEPS:
        made = [_map_to_json(found, "sqrt8", steps) for found in trace.maps]
        if sum(len(one["weights"]["data"]) for one in made) <= MOST_CHARACTERS:
            break
    return made


def _map_to_json(found: Map, how: str, steps: int) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "layer": found.layer,
        "rows": found.rows,
        "columns": found.columns,
        "causal": found.causal,
        "weights": pack(found.weights, how, steps),
        "missing": None if found.missing is None else pack(found.missing, "float16"),
    }


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
