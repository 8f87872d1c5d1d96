"""Time prediction on the CPU in turn: regard before and now, in each precision, and CTranslate2.

Cases (a), (b) and (c) are those of benchmarks/peers/cases.py with random weights, a beam of 5 and
outputs of one length; `word` is the bundled model of pronunciations, one word at a time. Every
variant has a process of its own that waits for its turn:

    git worktree add ../before 0e37d42
    python -m benchmarks.speed.prediction --before ../before --out FILE

`quality` compares the answers of the bundled model in each precision on the test words of CMUdict.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import EngineProcess, Record
from benchmarks.peers.cases import BEAM, CASES, LENGTH, PREDICT_BATCH, missing
from benchmarks.speed.toolkit import prepared

#: of `word`, and of the dictionary that its words are from
BUNDLED, WORDS_CASE = "g2p", "c"
FORCED: dict[str, Any] = {"beam": BEAM, "min_len": LENGTH, "max_len": LENGTH}


def read_texts(args: argparse.Namespace, name: str, count: int) -> tuple[list[str], list[str]]:
    """Return sources and targets of the test file of a case, one for each source."""
    from regard.data import read_pairs

    case = CASES[name]
    first: dict[str, str] = {}
    for pair in read_pairs(args.data / case.test, columns=case.columns):
        first.setdefault(pair.src, pair.tgt)
    chosen = list(islice(first.items(), count))
    return [src for src, _ in chosen], [tgt for _, tgt in chosen]


class Worker:
    """A variant of a case: a run, or a peer of its size, with the texts that it answers."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.case, self.system, self.precision, self.run = args.worker.split(":", 3)

    def open(self) -> Record:
        """Load the model and answer some texts."""
        import regard

        args, case = self.args, self.case
        words = case in ("word", "quality")
        count = {"word": args.words, "quality": args.quality_words}.get(case, args.sentences)
        self.texts, self.targets = read_texts(args, WORDS_CASE if words else case, count)
        if self.system == "ctranslate2":
            self.model: Any = peer(self.run, self.precision, args.threads)
        else:
            self.model = regard.load(self.run, device="cpu", precision=self.precision)
            if self.case == "word":  # versions before compile for themselves
                getattr(self.model.predictor, "compile", lambda: None)()
        self.answers(self.texts[: 2 * PREDICT_BATCH])
        return {}

    def answers(self, texts: list[str]) -> list[str]:
        """Return the answers to texts, in batches or one by one."""
        if self.system == "ctranslate2":
            answers: list[str] = self.model(texts)
            return answers
        if self.case == "word":
            return [self.model(text, attention=False).text for text in texts]
        options = {} if self.case == "quality" else FORCED
        outputs = self.model.predict(texts, attention=False, batch=PREDICT_BATCH, **options)
        return [output.text for output in outputs]

    def round(self) -> Record:
        """Return the times of one round, and its answers."""
        return harness.timed(lambda: self.answers(self.texts))

    def metrics(self) -> Record:
        """Return the error rates of the answers."""
        from regard.api.evaluate_pairs import metric_names, score_predictions
        from regard.data import Pair

        rows = enumerate(zip(self.texts, self.targets, strict=True))
        pairs = [Pair(src, tgt, line=i) for i, (src, tgt) in rows]
        names = metric_names(self.model.task.tokens.metrics(), None)
        answers = self.answers(self.texts)
        scored = score_predictions(self.model.task, names, answers, pairs)
        return {row.name: row.value for row in scored.rows}


def peer(run: str, precision: str, threads: int) -> Callable[[list[str]], list[str]]:
    """Return CTranslate2's search by a Transformer of the same size with random weights."""
    from benchmarks.peers.ctranslate2 import translator
    from regard.training import RunFolder

    folder = RunFolder(run)
    src, tgt = folder.load("cpu").src_tokenizer, folder.load("cpu").tgt_tokenizer
    words = [[f"{i}" for i in range(side.vocab_size)] for side in (src, tgt)]
    engine = translator(CASES["b"].sizes, *words, precision, threads)
    options = {"min_decoding_length": LENGTH, "max_decoding_length": LENGTH}

    def answers(texts: list[str]) -> list[str]:
        rows = [[str(i) for i in src.encode(text)] for text in texts]
        found = engine.translate_batch(rows, beam_size=BEAM, **options)
        return [" ".join(one.hypotheses[0]) for one in found]

    return answers


def started(args: argparse.Namespace, *variant: str, path: Path | None = None) -> EngineProcess:
    """Start the process of a variant: its case, system, precision and run."""
    words = ["--worker", ":".join(variant), "--data", str(args.data)]
    for name in ("threads", "sentences", "words", "quality_words"):
        words += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    process = EngineProcess("benchmarks.speed.prediction", words, args.threads, path)
    opened = process.ask("open")
    if "error" in opened:
        raise SystemExit(f"{' '.join(variant[:3])} failed: {opened['error']}")
    return process


def measure(args: argparse.Namespace, case: str, folder: Path) -> list[Record]:
    """Time all variants of a case in turn."""
    run = saved_run(args, case, folder)
    variants = [("regard", precision, run, None) for precision in args.precisions]
    if args.before:
        variants.insert(0, ("before", "32", run, args.before.resolve() / "src"))
    if case == "b" and importlib.util.find_spec("ctranslate2"):
        variants += [("ctranslate2", precision, run, None) for precision in ("32", "int8")]
    running = {v[:2]: started(args, case, *v[:3], path=v[3]) for v in variants}
    times: dict[tuple[str, str], list[Record]] = {key: [] for key in running}
    for _ in range(args.rounds):
        for key, process in running.items():
            times[key].append(process.ask("round"))
    for process in running.values():
        process.end()
    ours = times["regard", args.precisions[0]][0]["value"]
    return [
        {
            "case": case,
            "system": system,
            "precision": precision,
            "threads": args.threads,
            "sentences": len(ours),
            "rounds": len(rounds),
            "sentences_per_s": len(ours) / harness.median(rounds, "seconds"),
            "cpu_ms_per_sentence": 1000 * harness.median(rounds, "cpu_seconds") / len(ours),
        }
        for (system, precision), rounds in times.items()
    ]


def equal(ours: list[str], theirs: list[str]) -> float:
    """Return the share of equal answers."""
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)


def quality(args: argparse.Namespace) -> Iterator[list[Record]]:
    """Compare the answers of the bundled model in each precision with those in 32 bits."""
    ours: list[str] = []
    for precision in dict.fromkeys(["32", *args.precisions, "bf16"]):
        process = started(args, "quality", "regard", precision, BUNDLED)
        answers = process.ask("round")["value"]
        ours = ours or answers
        record = {"case": "quality", "precision": precision, "words": len(answers)}
        yield [{**record, "equal_answers": equal(ours, answers), **process.ask("metrics")}]
        process.end()


def records(args: argparse.Namespace, folder: Path) -> Iterator[list[Record]]:
    """Yield the records of each case."""
    for case in args.cases:
        yield from quality(args) if case == "quality" else [measure(args, case, folder)]


def make_readable(config: Path) -> None:
    """Leave out settings that are the defaults: earlier versions know fewer of them."""
    from regard.training.config import Config

    record = json.loads(config.read_text())
    record.pop("checksum", None)
    defaults = Config().model_dump(mode="json")
    given = {name: value for name, value in record["config"].items() if value != defaults[name]}
    config.write_text(json.dumps({**record, "config": {**given, "size": "small"}}))


def saved_run(args: argparse.Namespace, case: str, folder: Path) -> str:
    """Write a run with random weights; returns its folder."""
    if case not in CASES:
        if args.before:  # whose model all versions since then can read
            return str(args.before.resolve() / "src" / "regard" / "bundled" / BUNDLED)
        return BUNDLED
    run = folder / case
    sizes = {"data": args.data, "device": "cpu", "precision": "32", "threads": args.threads}
    prepared(argparse.Namespace(**sizes), case, str(run)).best.write_model()
    make_readable(run / "config.json")
    return str(run)


def parse() -> argparse.Namespace:
    parser = harness.parser(__doc__, data=True)
    add = parser.add_argument
    add("--before", type=Path, help="another checkout of regard to compare with")
    add("--cases", type=harness.names, default=["a", "b", "c", "word", "quality"])
    add("--precisions", type=harness.names, default=["32", "int8"])
    add("--threads", type=int, default=1)
    add("--rounds", type=int, default=5, help="turns of each variant")
    add("--sentences", type=int, default=128, help="of a case, in each turn")
    add("--words", type=int, default=100, help="of `word`, in each turn")
    add("--quality-words", type=int, default=2000, help="of `quality`")
    add("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    problem = missing(args.data, [name for name in args.cases if name in CASES])
    if problem:
        parser.error(problem)
    return args


def main() -> None:
    args = parse()
    if args.worker:
        harness.serve(Worker(args))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = records(args, Path(folder))
        sys.exit(not harness.collect(harness.provenance(), found, args.out))


if __name__ == "__main__":
    main()
