"""Alignment error rate of word alignments by statistics, on English-French gold of the Hansards.

    python -m benchmarks.quality.word_alignment --pairs 1000,10000,0 --out RESULT

No pair of the Hansards is counted besides the 447 of the gold, without their links: the other data
are everyday sentences (Tatoeba) and captions (Multi30k), as many of each as `--pairs` says, or all.
"""

from pathlib import Path
from typing import Final

from benchmarks import harness
from regard.data import read_lines
from regard.data.lookup_codecs import words_of
from regard.data.word_aligner import align_texts, unit_links
from regard.seeing.trace.view import Quality, diagonal, read_gold

#: file and columns of source and target
TRAINING: Final = (
    ("tatoeba_eng_fra/pairs.eng-fra.tsv.gz", 0, 1),
    ("multi30k/train.en-de-fr-cs.tsv.gz", 0, 2),
)
GOLD: Final = "wordalign_gold/awesome.enfr.tsv.gz"


def read_texts(data: Path, count: int) -> list[tuple[str, str]]:
    """Return the last pairs of each training file, so many or all of them."""
    found = []
    for name, source, target in TRAINING:
        rows = [line.split("\t") for line in read_lines(str(data / name), max_chars=1_000_000)]
        found += [(row[source], row[target]) for row in (rows[-count:] if count else rows)]
    return found


def rates(found: Quality) -> harness.Record:
    """Return the rates of alignments, from 0 to 1."""
    return {"aer": found.aer, "precision": found.precision, "recall": found.recall}


def main() -> None:
    """Align the gold pairs with each number of other pairs, and write their error rates."""
    parser = harness.parser(__doc__, data=True)
    parser.add_argument("--pairs", type=harness.numbers, default=[1000, 10_000, 0])
    args = parser.parse_args()
    lines = list(read_lines(str(args.data / GOLD), max_chars=1_000_000))
    gold = read_gold(GOLD, lines, first=1)
    texts = [(source, target) for source, target, _ in (line.split("\t") for line in lines)]
    words = [(words_of(source), words_of(target)) for source, target in texts]
    straight = Quality.of([diagonal(len(source), len(target)) for source, target in words], gold)
    result = harness.provenance() | {"records": [{"what": "diagonal", **rates(straight)}]}
    for count in args.pairs:
        every = [*texts, *read_texts(args.data, count)]
        timed = harness.timed(lambda every=every: align_texts(every))
        spans = timed.pop("value")
        links = [unit_links(own, *pair) for own, pair in zip(spans, words, strict=False)]
        what = {"what": "statistics", "pairs": len(every) - len(texts)}
        result["records"].append(what | rates(Quality.of(links, gold)) | timed)
        print(result["records"][-1], flush=True)
        harness.write(args.out, result)


if __name__ == "__main__":
    main()
