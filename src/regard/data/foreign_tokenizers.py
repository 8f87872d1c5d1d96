"""Checks of descriptions of tokenisers that others have written, before one is made of them.

They are in the language of Hugging Face's `tokenizers`, in which a small file can ask for texts and
vocabularies that explode.
"""

import base64
import math
import struct
from collections.abc import Iterator
from typing import Any, Final

#: entries of a vocabulary if the model's own has fewer
MAX_VOCABULARY: Final = 1 << 18
#: times that a normaliser may lengthen a text
MAX_GROWTH: Final = 1000
MAX_WORD: Final = 10_000


def json_objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON value, nested ones among them."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def tokenizer_growth(found: dict[str, Any], size: int) -> float:
    """Return how often a tokeniser lengthens a text; raises ValueError for what explodes.

    Args:
        found: its description.
        size: number of tokens of its model.
    """
    model: Any = found["model"] if isinstance(found.get("model"), dict) else {}
    most = max(MAX_VOCABULARY, 4 * size)
    if isinstance(model.get("vocab"), dict | list) and len(model["vocab"]) > most:
        raise ValueError(
            f"the vocabulary must have at most {most:,} tokens, but it has {len(model['vocab']):,}",
        )
    word = model.get("max_input_chars_per_word")
    if isinstance(word, int) and word > MAX_WORD:
        raise ValueError(
            f"max_input_chars_per_word must be at most {MAX_WORD:,}, but it is {word:.3g}"
        )
    parts = (found.get(name) for name in ("normalizer", "pre_tokenizer", "decoder"))
    growth = max(math.prod(map(_growth, json_objects(part))) for part in parts)
    for part in json_objects(found.get("post_processor")):  # a template may repeat the text
        steps = part.get("single")
        growth *= max(1, str(steps).count("'Sequence'")) if isinstance(steps, list) else 1
    if growth > MAX_GROWTH:
        raise ValueError(
            f"it must lengthen a text at most {MAX_GROWTH:,} times, but it may do so {growth:.3g} "
            f"times",
        )
    return float(growth)


def _growth(part: dict[str, Any]) -> float:
    """Return how many times a step of a normaliser may lengthen a text."""
    content, pattern = part.get("content"), part.get("pattern")
    if part.get("type") == "Replace" and isinstance(content, str):
        own = pattern.get("String") if isinstance(pattern, dict) else None
        times = len(content) / len(own) if isinstance(own, str) and own else len(content) + 1
        return max(1.0, float(times))
    charsmap = part.get("precompiled_charsmap")
    if isinstance(charsmap, str):
        try:
            raw = base64.b64decode(charsmap)
            (trie,) = struct.unpack_from("<I", raw)
        except (ValueError, struct.error):
            return 1.0  # which cannot be loaded
        return float(max(1, *map(len, raw[4 + trie :].split(b"\0"))))
    return 1.0
