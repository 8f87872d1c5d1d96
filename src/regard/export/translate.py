"""Search with the CTranslate2 model of this folder: `echo text | python translate.py --beam 5`.

It needs ctranslate2; and `tokenizers`, if manifest.json says so.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import ctranslate2

if __package__:
    from regard.data.text_codec import TokenCodec, answer
else:  # a copy in an exported folder
    from text_codec import TokenCodec, answer  # type: ignore[import-not-found,no-redef]

#: source tokens at a time
BATCH = 2048
LENGTH_PENALTY = 0.6


class Translator:
    """The model of a folder.

    Args:
        folder: that `regard export --to ctranslate2` wrote.
        precision: `compute_type` of CTranslate2: `float32`, `int8`, `bfloat16`, `auto`, ...
        threads: of each prediction; all cores if 0.
        device: `cpu`, `cuda` or `auto`.
    """

    def __init__(
        self,
        folder: str | Path,
        precision: str = "float32",
        threads: int = 0,
        device: str = "cpu",
    ) -> None:
        folder = Path(folder)
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.symbols, self.limits = manifest["symbols"], manifest["limits"]
        self.source = TokenCodec(folder / "tokenizer.src.json", manifest)
        self.target = TokenCodec(folder / "tokenizer.tgt.json", manifest)
        self.engine = ctranslate2.Translator(
            str(folder), device=device, compute_type=precision, intra_threads=threads
        )

    def __call__(self, texts: list[str], beam: int = 5, **options: Any) -> list[str]:
        """Return the prediction for each text; options are those of `translate_batch`."""
        rows = [self.source.encode(text) for text in texts]
        return [self.target.decode(ids) for ids, _ in self.search(rows, beam, **options)]

    def search(
        self, rows: list[list[int]], beam: int = 5, **options: Any
    ) -> list[tuple[list[int], float]]:
        """Return the ids and the score of the best prediction for each list of ids.

        CTranslate2 divides the log-probability by `length ** length_penalty`.
        """
        for row in rows:
            if len(row) > self.limits["positions"]:
                raise ValueError(
                    f"a source must have at most {self.limits['positions']} tokens, for which the "
                    f"model has positions, but one has {len(row)}: split it"
                )
        limits = [self.most_tokens(row) for row in rows]
        found = self._search(rows, max(limits, default=0), beam, options)
        for i, most in enumerate(limits):
            if len(found[i][0]) > most:  # longer than alone, since others of the batch may be
                found[i : i + 1] = self._search([rows[i]], most, beam, options)
        return found

    def _search(
        self, rows: list[list[int]], most: int, beam: int, options: dict[str, Any]
    ) -> list[tuple[list[int], float]]:
        given: dict[str, Any] = {
            "beam_size": beam,
            "length_penalty": LENGTH_PENALTY if beam > 1 else 0,
            "max_decoding_length": most,
            "min_decoding_length": 0,
            "max_input_length": 0,
            "suppress_sequences": [[str(self.symbols[name])] for name in ("pad", "bos")],
            "return_scores": True,
            "max_batch_size": BATCH,
            "batch_type": "tokens",
        }
        texts = [list(map(str, row)) for row in rows]
        results = self.engine.translate_batch(texts, **{**given, **options})
        return [(list(map(int, one.hypotheses[0])), one.scores[0]) for one in results]

    def most_tokens(self, row: list[int]) -> int:
        """Return the most tokens of a prediction, eos not counted."""
        most = int(self.limits["per_source_token"] * len(row)) + self.limits["extra"]
        return int(min(most, self.limits["positions"] - 1))


def main() -> None:
    """Predict a line for each line of standard input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beam", type=int, default=5, help="beam width; 1 is greedy search")
    parser.add_argument("--precision", default="float32", help="float32, int8, bfloat16, auto, ...")
    parser.add_argument("--threads", type=int, default=0, help="all cores if 0")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or auto")
    given = parser.parse_args()
    model = Translator(Path(__file__).parent, given.precision, given.threads, given.device)
    answer(lambda texts: model(texts, given.beam), sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
