"""Write the text of the cases for other toolkits: token ids of regard, separated by spaces.

So every system has the same words, and none spends time on cutting them or has an opinion on
their letters. Runs where regard is installed.
"""

import argparse
import sys
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cases import CASES, PREDICT_BATCH, SENTENCES, WORDS, Case, missing
from regard.data import Tokenizer, read_pairs
from regard.symbols import SYMBOLS


def write(case: Case, data: Path, folder: Path, sentences: int) -> None:
    """Write train, dev and test of both sides, and the vocabularies, most frequent first."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = list(read_pairs(data / case.train, columns=case.columns))
    parts = {
        "train": pairs,
        "dev": list(islice(read_pairs(data / case.dev, columns=case.columns), PREDICT_BATCH)),
        "test": list(islice(read_pairs(data / case.test, columns=case.columns), sentences)),
    }
    for side, kind in zip(("src", "tgt"), case.tokenizers, strict=True):
        tokenizer = Tokenizer.train(
            kind, [getattr(pair, side) for pair in pairs], vocab_size=WORDS + len(SYMBOLS)
        )
        words = [word(i) for i in range(len(SYMBOLS), tokenizer.vocab_size)]
        (folder / f"vocab.{side}").write_text("".join(f"{w}\n" for w in words))
        for part, rows in parts.items():
            encoded = tokenizer.encode_batch([getattr(pair, side) for pair in rows])
            text = [" ".join(map(word, ids)) for ids in encoded]
            (folder / f"{part}.{side}").write_text("".join(f"{line}\n" for line in text))


def word(number: int) -> str:
    """Return a token that no toolkit treats specially; unk is in no vocabulary."""
    return f"w{number}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder to write to")
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="to predict")
    args = parser.parse_args()
    problem = missing(args.data, list(CASES))
    if problem:
        parser.error(problem)
    for name, case in CASES.items():
        write(case, args.data, args.work / name, args.sentences)


if __name__ == "__main__":
    main()
