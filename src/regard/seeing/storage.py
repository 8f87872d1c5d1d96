"""A trace as JSON, small enough to stand in a page; and back.

Weights are the bulk. Up to a million of them are stored as float16; above that, one byte each: the
square root of a weight in steps of 1/255, which keeps the mass of a row where linear bytes round
its many small weights to nothing. Both are deflated and written as base64. Maps that deflate badly,
as near-even ones do, take coarser steps, so that a page stays as small as it is promised to be.
"""

import base64
import json
import zlib
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import numpy as np

from regard.errors import ArgumentError
from regard.seeing.trace import (
    Decoded,
    Map,
    ModelInfo,
    Text,
    Token,
    Trace,
    TraceError,
    Unit,
    Weights,
)

FORMAT: Final = "regard-trace"
VERSION: Final = 1
#: weights of a whole trace beyond which each takes one byte
HALF_LIMIT: Final = 1_000_000
#: steps of a square root from 0 to 1, finest first; more characters than these ask for the next
STEPS: Final = (255, 127, 63, 31)
MOST_CHARACTERS: Final = 7_000_000


def to_json(trace: Trace) -> dict[str, Any]:
    """Plain dictionaries, lists, numbers and strings."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "source": _text_to_json(trace.source),
        "target": _text_to_json(trace.target),
        "maps": _maps_to_json(trace),
        "model": dict(vars(trace.model)),
        "decoded": dict(vars(trace.decoded)),
        "derived": {name: pack(matrix, "float16") for name, matrix in trace.derived.items()},
        "checks": dict(trace.checks),
        "gold": [list(link) for link in trace.gold],
        "gold_units": list(trace.gold_units),
        "notes": list(trace.notes),
    }


def from_json(content: Any) -> Trace:
    """Reads what `to_json` has made; all that `Trace` asserts is asserted again."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise TraceError(
            "the file must hold a trace, but it does not: "
            "save one with `regard show -o x.json` or `regard predict --trace x.jsonl`."
        )
    if content.get("version") != VERSION:
        raise TraceError(
            f"the trace must be of version {VERSION}, but it is of {content.get('version')}: "
            f"save it again with this version of regard."
        )
    try:
        return Trace(
            source=_text_from_json(content["source"]),
            target=_text_from_json(content["target"]),
            maps=tuple(_map_from_json(found) for found in content["maps"]),
            model=ModelInfo(**content["model"]),
            decoded=Decoded(**content["decoded"]),
            derived={name: unpack(packed) for name, packed in content["derived"].items()},
            checks=content["checks"],
            gold=tuple((int(t), int(s), bool(sure)) for t, s, sure in content["gold"]),
            gold_units=_units_from_json(content),
            notes=tuple(content["notes"]),
        )
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        zlib.error,
    ) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(
            f"the trace must be whole, but a part of it cannot be read ({error}): save it again."
        ) from None


class Found(NamedTuple):
    """A trace of a file, and how many the file holds."""

    trace: Trace
    total: int


def load(path: str | Path, line: int = 1) -> Trace:
    """Reads a file that `files.save` or `regard predict --trace` has written; see `find`."""
    return find(path, line).trace


def find(path: str | Path, line: int = 1) -> Found:
    """Reads a file of one trace, or of a trace on each line.

    Args:
        path: the file.
        line: which trace of it, counted from 1.
    """
    try:
        text, total = _text_of(path, line)
        content = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise TraceError(f"{path} must hold a trace, but it is not JSON: save one again.") from None
    return Found(from_json(content), total)


def _text_of(path: str | Path, number: int) -> tuple[str, int]:
    """One trace as it is written, and how many there are; no other is kept in memory."""
    wanted, total = "", 0
    with open(path, encoding="utf-8") as file:
        for row in file:
            if not row.strip():
                continue
            total += 1
            if total == 1 and not _is_whole(row):
                wanted = row + file.read()
                break
            if total == number:
                wanted = row
    if total and not 1 <= number <= total:
        rule = f"be from 1 to {total}, since {path} has {total} trace{'s' * (total > 1)}"
        raise ArgumentError("line", rule, number, "choose one of them")
    return wanted, total


def _is_whole(row: str) -> bool:
    """Whether a line is a value of its own; else one trace is written on all lines."""
    try:
        json.loads(row)
    except json.JSONDecodeError:
        return False
    return True


def pack(array: Weights, how: str, steps: int = STEPS[0]) -> dict[str, Any]:
    """An array as a dictionary: shape, encoding, and base64 of the deflated little-endian bytes."""
    if how == "sqrt8":
        raw = np.round(np.sqrt(np.clip(array, 0.0, 1.0)) * steps).astype(np.uint8)
    else:
        raw = array.astype("<f2")
    data = base64.b64encode(zlib.compress(raw.tobytes(), 6)).decode("ascii")
    return {"shape": list(array.shape), "encoding": how, "steps": steps, "data": data}


def unpack(packed: dict[str, Any]) -> Weights:
    """The array that `pack` was given, as exact as its encoding is."""
    raw = zlib.decompress(base64.b64decode(packed["data"]))
    if packed["encoding"] == "sqrt8":
        found = np.square(np.frombuffer(raw, dtype=np.uint8).astype(np.float32) / packed["steps"])
    elif packed["encoding"] == "float16":
        found = np.frombuffer(raw, dtype="<f2").astype(np.float32)
    else:
        raise ValueError(f"the encoding {packed['encoding']!r} is not known")
    shaped: Weights = found.reshape(packed["shape"])
    return shaped


def _units_from_json(content: dict[str, Any]) -> tuple[Unit, Unit]:
    """What gold counts: words, where an older file does not say."""
    target, source = content.get("gold_units", ("words", "words"))
    if not {target, source} <= set(get_args(Unit)):
        raise ValueError(f"gold_units are {target!r} and {source!r}")
    return target, source


def _text_to_json(text: Text) -> dict[str, Any]:
    return {"text": text.text, "tokens": [dict(vars(token)) for token in text.tokens]}


def _text_from_json(content: dict[str, Any]) -> Text:
    return Text(content["text"], tuple(_token_from_json(token) for token in content["tokens"]))


def _token_from_json(content: dict[str, Any]) -> Token:
    span = content["span"]
    return Token(
        text=content["text"],
        span=None if span is None else (int(span[0]), int(span[1])),
        word=content["word"],
        special=content["special"],
        prob=content["prob"],
        alternatives=tuple((str(text), float(prob)) for text, prob in content["alternatives"]),
    )


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


def _map_from_json(content: dict[str, Any]) -> Map:
    weights = unpack(content["weights"])
    missing = None if content["missing"] is None else unpack(content["missing"])
    if content["weights"]["encoding"] == "sqrt8":
        weights = _restored(weights, missing, causal=content["causal"])
    return Map(
        kind=content["kind"],
        layer=content["layer"],
        weights=weights,
        missing=missing,
        rows=content["rows"],
        columns=content["columns"],
        causal=content["causal"],
    )


def _restored(weights: Weights, missing: Weights | None, *, causal: bool) -> Weights:
    """Rows brought back to the sum that they had: rounding moves it by a percent or so.

    A row of which rounding has left nothing was near even, and over thousands of columns: it is
    even again.
    """
    rows, columns = weights.shape[1:]
    even = np.tri(rows, columns, columns - rows if causal else columns, dtype=np.float32)
    weights = np.where(weights.any(axis=-1, keepdims=True), weights, even)
    total = weights.sum(axis=-1, keepdims=True)
    wanted = 1.0 if missing is None else 1.0 - missing[..., None]
    restored: Weights = np.zeros_like(weights)
    np.divide(weights * wanted, total, out=restored, where=total > 0)
    return restored
