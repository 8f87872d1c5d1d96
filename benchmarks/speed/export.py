"""Speed of exported models on one thread of a CPU: `regard predict`, onnxruntime and CTranslate2.

Words of the bundled dictionary are pronounced by the bundled model g2p (preset bahdanau, a GRU) and
by a Transformer that is trained for a few minutes. Engines take turns in one process, round by
round, and seconds are those of the processor, so that other work on the machine counts little.
Predictions of each engine are compared with those of regard. The searches of regard and of the ONNX
folders are the same; that of CTranslate2 ranks predictions by another formula.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import ctranslate2
import onnxruntime
import torch

import regard
from benchmarks import harness
from benchmarks.harness import ROOT
from regard.api.evaluate_pairs import score_predictions
from regard.data import Pair, read_pairs
from regard.export import export
from regard.export.decode import Exported
from regard.export.translate import Translator

DICTIONARY = ROOT / "src" / "regard" / "bundled" / "cmudict"
BEAM = 5
#: of the Transformer: so small that a few minutes of one core teach it something
SIZES = {"dim": 128, "heads": 4, "feed_forward": 512, "layers": 2}
#: from sources to predictions
Engine = Callable[[list[str]], list[str]]


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--words", type=int, default=640, help="in batches")
    parser.add_argument("--single-words", type=int, default=64, help="one at a time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=3.0, help="of training the Transformer")
    parser.add_argument("--transformer", type=Path, metavar="RUN", help="already trained")
    args = parser.parse_args()
    torch.set_num_threads(1)
    modules = (torch, onnxruntime, ctranslate2)
    result = harness.provenance(**{module.__name__: module.__version__ for module in modules})
    names = ("words", "single_words", "rounds", "minutes")
    result["settings"] = {"beam": BEAM, "threads": 1, **{n: getattr(args, n) for n in names}}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        runs = {"g2p": "g2p", "small": args.transformer or train(scratch, args.minutes)}
        cases = (list(measure(name, run, scratch, args)) for name, run in runs.items())
        harness.collect(result, cases, args.out)


def train(scratch: Path, minutes: float) -> Path:
    """Train a small Transformer on the dictionary."""
    regard.fit(
        DICTIONARY / "train.tsv.gz",
        "transformer",
        output=scratch / "transformer",
        **SIZES,
        src_case="upper",
        batch_tokens=1024,
        lr=2e-3,
        warmup=100,
        dropout=0.0,
        label_smoothing=0.0,
        average=1,
        eval_every=100_000,
        eval_pairs=100,
        minutes=minutes,
        device="cpu",
        quiet=True,
    )
    return scratch / "transformer"


def pairs(count: int) -> list[Pair]:
    """Return test words, at equal distances through the dictionary."""
    test = list(read_pairs(DICTIONARY / "test.tsv.gz", references=True))
    return test[:: max(1, len(test) // count)][:count]


def measure(
    name: str, run: str | Path, scratch: Path, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a record for each engine and batch size."""
    model = regard.load(run, device="cpu")
    exported = {
        ("onnx", "32"): export(run, scratch / f"{name}-32"),
        ("onnx", "int8"): export(run, scratch / f"{name}-int8", precision="int8"),
    }
    if model.config.preset == "transformer":
        exported["ctranslate2", "32"] = export(run, scratch / f"{name}-ct2", to="ctranslate2")
        exported["ctranslate2", "int8"] = exported["ctranslate2", "32"]
    for batch, count in ((32, args.words), (1, args.single_words)):
        test = pairs(count)
        words = [pair.src for pair in test]
        engines = {("regard", "32"): of_regard(model, batch)}
        for (engine, precision), written in exported.items():
            make = of_onnx if engine == "onnx" else of_ctranslate2
            engines[engine, precision] = make(written.path, precision, batch)
        found = {key: engine(words) for key, engine in engines.items()}  # and warm up
        calls = {key: partial(engine, words) for key, engine in engines.items()}
        rounds = harness.in_turn(calls, args.rounds)
        seconds = {key: [one["cpu_seconds"] for one in own] for key, own in rounds.items()}
        base = seconds["regard", "32"]
        for key, answers in found.items():
            ratios = [own / other for own, other in zip(base, seconds[key], strict=True)]
            per = score_predictions(model.tgt_tokenizer, ("per",), answers, test).rows[0].value
            equal = sum(a == b for a, b in zip(answers, found["regard", "32"], strict=True))
            yield {
                "model": name,
                "preset": model.config.preset,
                "parameters": sum(weight.numel() for weight in model.module.parameters()),
                "engine": key[0],
                "precision": key[1],
                "batch": batch,
                "words": count,
                "words_per_second": round(count / median(seconds[key]), 1),
                "times_regard": round(median(ratios), 2),
                "equal": round(equal / count, 4),
                "per": round(per, 4),
            }


def of_regard(model: regard.Model, batch: int) -> Engine:
    """Return `regard predict`, without the time of its start."""

    def predict(words: list[str]) -> list[str]:
        found = model.predict(words, batch=batch, beam=BEAM, attention=False)
        return [output.text for output in found]

    return predict


def of_onnx(folder: Path, precision: str, batch: int) -> Engine:
    """Return `decode.py` of a folder."""
    model = Exported(folder, threads=1)
    return lambda words: model(words, batch, beam=BEAM)


def of_ctranslate2(folder: Path, precision: str, batch: int) -> Engine:
    """Return `translate.py` of a folder."""
    kind = "float32" if precision == "32" else precision
    model = Translator(folder, kind, threads=1)
    options: dict[str, Any] = {"max_batch_size": batch, "batch_type": "examples"}

    def predict(words: list[str]) -> list[str]:
        if batch > 1:
            return model(words, BEAM, **options)
        return [model([word], BEAM)[0] for word in words]

    return predict


if __name__ == "__main__":
    main()
