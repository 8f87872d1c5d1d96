"""Render docs/models.md, the page of the bundled models, from their cards.

python benchmarks/models_page.py            # writes it
python benchmarks/models_page.py --check    # 1 if it is out of date
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from provenance import ROOT
from regard.api import bundled_models
from regard.api.bundled_card import BundledCard, licence, megabytes
from regard.messages import use_language

PAGE: Final = ROOT / "docs" / "models.md"

HEAD: Final = """# Models in the box

These models come with the package: a first map needs no training, no download and no network. A
name stands wherever a run folder does, in `show`, `predict`, `check`, `evaluate`, `export`,
`serve` and in Python.

```sh
regard models                           # what there is: size, score, licence, an example
regard models g2p                       # the card of one; --lang zh prints it in Chinese
regard show g2p attention               # draw where it looked
regard serve                            # a page with all of them, each loaded when it is first used
```

```python
import regard

model = regard.load("g2p")
print(model("attention").text)  # AH T EH N SH AH N
```
"""

TABLES: Final = """\
This page is written by `python benchmarks/models_page.py` from the cards, whose numbers the packer
measures. A score is that of the stored weights on the test split that the model has not seen, with
its 95% interval; its signature is on the card. Milliseconds are medians over single
sources, with the number of threads in brackets.
"""

FOOT: Final = """
## Pack a model

```sh
regard train recipes/g2p -o runs/g2p
python benchmarks/pack_model.py runs/g2p --replace
python benchmarks/models_page.py
```

The packer scores a run on the test split of its recipe, stores its weights with 8 bits (`--bits
16` keeps float16), scores them again, measures the time per source, and writes the folder of the
model with its card and its licence. Large matrices become int8 with a float32 scale for each row,
vectors float16; a model is loaded as float32 and computes as before. What is said about a model,
in English and Chinese, its examples and the notice of its data are in `benchmarks/box/NAME.toml`.
A bundled model has 12 MB at most, and all together 30 MB in the wheel, which compresses them.
"""


def cards() -> list[BundledCard]:
    """Return the cards of the bundled models, the default first."""
    names = sorted(bundled_models.names(), key=lambda name: (name != bundled_models.DEFAULT, name))
    found = (bundled_models.card(name) for name in names)
    return [card for card in found if card is not None]


def page() -> str:
    """Return the text of docs/models.md."""
    with use_language("en"):
        found = cards()
        total = sum(bundled_models.size(card.name) for card in found)
        parts = [HEAD, TABLES, *table(SCORE_TITLES, map(score_row, found)), ""]
        parts += [*table(STORE_TITLES, map(store_row, found)), ""]
        parts.append(f"All together they take {megabytes(total)}.\n\n## Try them\n\n```sh")
        parts += [command for card in found for command in card.show_commands[:2]]
        return "\n".join([*parts, "```", FOOT])


SCORE_TITLES: Final = ("model", "what it does", "test rows", "score", "95% interval", "licence")
STORE_TITLES: Final = ("model", "data", "weights", "size", "stored in", "ms per source")


def score_row(card: BundledCard) -> Sequence[str]:
    """Return what a model does and how well."""
    score = card.score
    value = f"{score.label} {score.shown(score.value)}"
    return f"`{card.name}`", card.said.what, f"{score.rows:,}", value, score.ends, licence(card)


def store_row(card: BundledCard) -> Sequence[str]:
    """Return what a model has learned from, and what it takes."""
    size = megabytes(bundled_models.size(card.name))
    ms = f"{card.ms_per_source:.0f} ({card.threads})"
    return f"`{card.name}`", card.said.data, f"{card.weights:,}", size, card.loss, ms


def table(titles: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
    elif not is_current():
        sys.exit("docs/models.md is out of date: run `python benchmarks/models_page.py`.")


def is_current(file: Path = PAGE) -> bool:
    """Return whether the page is what the cards say."""
    return file.exists() and file.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    main()
