"""Files with a token and its tags on each line, and empty lines between sentences.

They are those of the CoNLL shared tasks and of Universal Dependencies. Each sentence becomes a row
of a table: the tokens with spaces between, and so each column of tags.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from regard.data.error_hints import BadLine
from regard.data.pairs import other_width
from regard.data.text_files import decode

#: the columns of CoNLL-U: words that are several tokens, or none, have no plain number there
CONLLU: Final = ["id", "tokens", "lemma", "tags", "xpos", "feats", "head", "deprel", "deps", "misc"]
#: lines without a token
COMMENT, DOCUMENT = b"#", b"-DOCSTART-"
#: tokens that have each tag, and tokens of a sentence at most, on average; the share of lines that
#: have as many columns as most
EACH_TAG, LONGEST, REGULAR = 2, 60, 0.9


def token_columns(head: Iterable[bytes]) -> list[str]:
    """Return the names of the columns if the first lines are tokens with tags, else []."""
    lines = [line.strip() for line in head if not line.startswith((COMMENT, DOCUMENT))]
    found = [_cells(line) for line in lines if line]
    width = Counter(map(len, found)).most_common(1)[0][0] if found else 0
    tokens = [cells for cells in found if len(cells) == width]
    tags = {cells[-1] for cells in tokens}
    sentences = 1 + len(lines) - len(found)
    if width < 2 or EACH_TAG * len(tags) > len(tokens) or len(tokens) < REGULAR * len(found):
        return []
    if not 1 < sentences < len(tokens) <= LONGEST * sentences or any(b" " in c[0] for c in tokens):
        return []
    if width == len(CONLLU):
        return CONLLU
    numbered = ["id"] * (width > 2 and all(cells[0].isdigit() for cells in tokens))
    between = range(1 + len(numbered), width - 1)
    return [*numbered, "tokens", *(f"column {place}" for place in between), "tags"]


def _cells(line: bytes) -> list[bytes]:
    return line.split(b"\t") if b"\t" in line else line.split()


def token_rows(
    names: Sequence[str], lines: Iterable[tuple[int, bytes]]
) -> Iterator[tuple[int, Any]]:
    """Yield the names, then each sentence as cells, numbered by its first line, or a BadLine."""
    yield 0, list(names)
    sentence: list[list[str]] = []
    start = 0
    for number, line in itertools.chain(lines, [(0, b"")]):
        cells = _cells(line.strip())
        if not cells or line.startswith(DOCUMENT):
            if sentence:
                yield start, [" ".join(column) for column in zip(*sentence, strict=True)]
            sentence = []
        elif len(cells) == len(names):
            if names != CONLLU or cells[0].isdigit():
                start = start if sentence else number
                try:
                    sentence.append(["_".join(decode(cell).split()) or "_" for cell in cells])
                except BadLine as bad:
                    yield number, bad
        elif not line.startswith(COMMENT):
            yield number, other_width([*map(str, cells)], len(names))
