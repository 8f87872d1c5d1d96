"""Time prediction on the CPU in turn: regard before and now, in each precision, and CTranslate2.

Cases (a), (b) and (c) are those of benchmarks/cases.py with random weights, a beam of 5 and outputs
of one length; `word` is the bundled model of pronunciations, one word at a time. Every variant has
a process of its own that waits for its turn, so that all of them see the same state of the machine:

    git worktree add ../before 0e37d42
    python benchmarks/cpu_decoding.py --before ../before --out benchmarks/results/cpu-decoding.json

`quality` compares the answers of the bundled model in each precision on the test words of CMUdict.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from cases import BEAM, CASES, LENGTH, PREDICT_BATCH, missing
from provenance import ROOT, command, machine, source, write
from toolkit import prepared

#: of `word`, and of the dictionary that its words are from
BUNDLED, WORDS_CASE = "g2p", "c"
FORCED: dict[str, Any] = {"beam": BEAM, "min_len": LENGTH, "max_len": LENGTH}


def texts_of(args: argparse.Namespace, name: str, count: int | None) -> tuple[list[str], list[str]]:
    """Return sources and targets of the test file of a case, one for each source."""
    from regard.data import read_pairs

    case = CASES[name]
    pairs = read_pairs(args.data / case.test, columns=case.columns)
    first: dict[str, str] = {}
    for pair in pairs:
        first.setdefault(pair.src, pair.tgt)
    chosen = list(islice(first.items(), count))
    return [src for src, _ in chosen], [tgt for _, tgt in chosen]


def load(run: str, precision: str) -> Any:
    """Load a run, as every version of regard since 0e37d42 can."""
    import regard

    return regard.load(run, device="cpu", precision=precision)


class Batches:
    """Batches of sentences of one case."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.texts, _ = texts_of(args, name, args.sentences)
        self.model = load(args.run, args.precision)

    def __call__(self) -> list[str]:
        """Return the answers."""
        outputs = self.model.predict(self.texts, attention=False, batch=PREDICT_BATCH, **FORCED)
        return [output.text for output in outputs]


class Words:
    """One word at a time."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.texts, _ = texts_of(args, WORDS_CASE, args.words)
        self.model = load(args.run, args.precision)

    def __call__(self) -> list[str]:
        """Return the answers."""
        return [self.model(text, attention=False).text for text in self.texts]


class Engine:
    """CTranslate2 with the model that `regard export --to ctranslate2` writes."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        from regard.export.translate import Translator

        self.texts, _ = texts_of(args, name, args.sentences)
        names = {"32": "float32"}
        precision = names.get(args.precision, args.precision)
        self.translator = Translator(args.run, precision, args.threads)

    def __call__(self) -> list[str]:
        """Return the answers."""
        rows = [self.translator.source.encode(text) for text in self.texts]
        options = {"min_decoding_length": LENGTH, "max_decoding_length": LENGTH}
        more = {"max_batch_size": PREDICT_BATCH, "batch_type": "examples"}
        found = self.translator.search(rows, BEAM, **options, **more)
        return [self.translator.target.decode(ids) for ids, _ in found]


def quality(args: argparse.Namespace) -> dict[str, Any]:
    """Return answers and error rates of the bundled model on test words."""
    from regard.api.evaluate_pairs import metric_names, score_predictions
    from regard.data import Pair

    sources, targets = texts_of(args, WORDS_CASE, args.quality_words)
    model = load(BUNDLED, args.precision)
    found = list(model.predict(sources, attention=False, batch=PREDICT_BATCH))
    answers = [output.text for output in found]
    pairs = [Pair(s, t, line=i) for i, (s, t) in enumerate(zip(sources, targets, strict=True))]
    names = metric_names(model.kind.metrics(), None)
    rows = score_predictions(model.tgt_tokenizer, names, answers, pairs).rows
    return {
        "answers": answers,
        "scores": [output.score for output in found],
        "metrics": {row.name: row.value for row in rows},
    }


def work(args: argparse.Namespace) -> None:
    """Answer each line of stdin with the times of one run."""
    kind, _, name = args.worker.partition(":")
    if kind == "quality":
        print(json.dumps(quality(args)), flush=True)
        return
    run: Any = {
        "regard": lambda: Words(args) if name == "word" else Batches(args, name),
        "ctranslate2": lambda: Engine(args, name),
    }[kind]()
    texts, run.texts = run.texts, run.texts[: 2 * PREDICT_BATCH]
    run()
    run.texts = texts
    print("ready", flush=True)
    for _ in sys.stdin:
        started, cpu_started = time.perf_counter(), time.process_time()
        answers = run()
        found = {"seconds": time.perf_counter() - started}
        found |= {"cpu_seconds": time.process_time() - cpu_started, "answers": answers}
        print(json.dumps(found), flush=True)


class Variant:
    """A process that runs one variant of a case when it is asked to."""

    def __init__(
        self, args: argparse.Namespace, label: str, worker: str, precision: str, run: str, src: Path
    ) -> None:
        self.label, self.precision = label, precision
        words = [sys.executable, __file__, "--worker", worker, "--precision", precision]
        words += ["--run", run, "--data", str(args.data), "--threads", str(args.threads)]
        words += ["--sentences", str(args.sentences), "--words", str(args.words)]
        words += ["--quality-words", str(args.quality_words)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "PYTHONPATH": str(src)}
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.times: list[dict[str, Any]] = []

    def read(self) -> str:
        """Return the next line that the process writes."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.label} failed: see above.")
        return line

    def once(self) -> None:
        """Run once and keep the times."""
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        self.times.append(json.loads(self.read()))

    def record(self, case: str, threads: int) -> dict[str, Any]:
        """Return the medians and the least of the times."""
        answers = len(self.times[0]["answers"])
        middle = {
            name: statistics.median(found[name] for found in self.times)
            for name in ("seconds", "cpu_seconds")
        }
        return {
            "case": case,
            "system": self.label,
            "precision": self.precision,
            "threads": threads,
            "sentences": answers,
            "rounds": len(self.times),
            "sentences_per_s": answers / middle["seconds"],
            "cpu_ms_per_sentence": 1000 * middle["cpu_seconds"] / answers,
            "least_cpu_ms": 1000 * min(t["cpu_seconds"] for t in self.times) / answers,
            **middle,
        }

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(args: argparse.Namespace, case: str, run: str, exported: str) -> list[dict[str, Any]]:
    """Time all variants of a case in turn."""
    now = ROOT / "src"
    variants = []
    if args.before:
        variants.append(("before", f"regard:{case}", "32", run, args.before.resolve() / "src"))
    variants += [("regard", f"regard:{case}", p, run, now) for p in args.precisions.split(",")]
    if case == "b" and not args.no_engine:
        variants += [("ctranslate2", "ctranslate2:b", p, exported, now) for p in ("32", "int8")]
    running = [Variant(args, *variant) for variant in variants]
    for variant in running:
        variant.read()
    for _ in range(args.rounds):
        for variant in running:
            variant.once()
    records = [variant.record(case, args.threads) for variant in running]
    answers = {(v.label, v.precision): v.times[0]["answers"] for v in running}
    ours = answers.get(("regard", "32"))
    for found, variant in zip(records, running, strict=True):
        theirs = answers[variant.label, variant.precision]
        if ours is not None:
            same = sum(a == b for a, b in zip(ours, theirs, strict=True))
            found["equal_to_regard_32"] = same / len(ours)
        variant.close()
        print(json.dumps(found), flush=True)
    return records


def measure_quality(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare the answers of the bundled model in each precision with those in 32 bits."""
    found = {}
    for precision in dict.fromkeys(["32", *args.precisions.split(","), "bf16"]):
        variant = Variant(args, "regard", "quality:", precision, BUNDLED, ROOT / "src")
        found[precision] = json.loads(variant.read())
        variant.close()
    ours, records = found["32"], []
    for precision, theirs in found.items():
        same = [a == b for a, b in zip(ours["answers"], theirs["answers"], strict=True)]
        scores = zip(ours["scores"], theirs["scores"], same, strict=True)
        records.append(
            {
                "case": "quality",
                "precision": precision,
                "words": len(same),
                "equal_answers": sum(same) / len(same),
                "largest_change_of_a_score": max(abs(a - b) for a, b, c in scores if c),
                **theirs["metrics"],
            }
        )
        print(json.dumps(records[-1]), flush=True)
    return records


def table(file: Path) -> None:
    """Print a result as the tables of docs/prediction.md."""
    result = json.loads(file.read_text())
    if "pairs" in result:
        precision_table(result)
        return
    times = [r for r in result["records"] if r["case"] != "quality"]
    names = list(dict.fromkeys((r["system"], r["precision"]) for r in times))
    titles = {"before": "before", "regard": "regard", "ctranslate2": "CTranslate2"}
    heads = [f"{titles[system]} {precision}" for system, precision in names]
    print(f"| case | {' | '.join(heads)} |\n| --- |{' ---: |' * len(heads)}")
    for case in dict.fromkeys(r["case"] for r in times):
        of = {
            (r["system"], r["precision"]): r["cpu_ms_per_sentence"]
            for r in times
            if r["case"] == case
        }
        print(f"| {case} | {' | '.join(f'{of[n]:.1f}' if n in of else '' for n in names)} |")
    print(
        f"\nMilliseconds of CPU time for a sentence; threads: {times[0]['threads']}, medians "
        f"of {times[0]['rounds']} turns; {result['machine']['cpu']}, measured at "
        f"{str(result['commit'])[:12]}.\n"
    )
    words = [r for r in result["records"] if r["case"] == "quality"]
    print("| precision | equal answers | PER | exact |\n| --- | ---: | ---: | ---: |")
    for r in words:
        shares = f"{r['equal_answers']:.1%} | {r['per']:.2%} | {r['exact']:.2%}"
        print(f"| {r['precision']} | {shares} |")
    print(f"\nThe bundled model on {words[0]['words']:,} test words of CMUdict." if words else "")


def precision_table(result: dict[str, Any]) -> None:
    """Print BLEU of a translation model in each precision."""
    print(
        "| device | precision | equal answers | BLEU | chrF |\n| --- | --- | ---: | ---: | ---: |"
    )
    for r in result["records"]:
        equal = f"{r['equal_to_32'] / result['pairs']:.1%}" if "equal_to_32" in r else ""
        shown = f"{equal} | {r['bleu']:.2f} | {r['chrf']:.2f}"
        print(f"| {r['device']} | {r['precision']} | {shown} |")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(os.environ.get("REGARD_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=default, help="folder of the data sets")
    parser.add_argument("--before", type=Path, help="another checkout of regard to compare with")
    parser.add_argument("--cases", default="a,b,c,word,quality", help="with commas between them")
    parser.add_argument("--precisions", default="32,int8", help="with commas between them")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each variant")
    parser.add_argument("--sentences", type=int, default=128, help="of a case, in each turn")
    parser.add_argument("--words", type=int, default=100, help="of `word`, in each turn")
    parser.add_argument("--quality-words", type=int, default=2000, help="of `quality`")
    parser.add_argument("--no-engine", action="store_true", help="leave CTranslate2 out")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all records to FILE")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the tables of a result")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--precision", default="32", help=argparse.SUPPRESS)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    problem = missing(args.data, [name for name in args.cases.split(",") if name in CASES])
    if problem and not args.table:
        parser.error(problem)
    return args


def make_readable(config: Path) -> None:
    """Leave out settings that are the defaults: earlier versions know fewer of them."""
    from regard.training.config import Config

    record = json.loads(config.read_text())
    record.pop("checksum", None)
    defaults = Config().model_dump(mode="json")
    given = {name: value for name, value in record["config"].items() if value != defaults[name]}
    config.write_text(json.dumps({**record, "config": {**given, "size": "small"}}))


def saved_run(args: argparse.Namespace, case: str, folder: Path) -> tuple[str, str]:
    """Write a run with random weights and its export; returns their folders."""
    if case not in CASES:
        if args.before:  # whose model all versions since then can read
            return str(args.before.resolve() / "src" / "regard" / "bundled" / BUNDLED), ""
        return BUNDLED, ""
    run, exported = folder / case, folder / f"{case}-ctranslate2"
    sizes = argparse.Namespace(
        data=args.data, device="cpu", precision="32", threads=args.threads, case=case
    )
    prepared(sizes, case, str(run)).best.write_model()
    make_readable(run / "config.json")
    if case == "b" and not args.no_engine:
        words = [sys.executable, "-m", "regard", "export", str(run), "--to", "ctranslate2"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        subprocess.run(
            [*words, "--output", str(exported)],
            check=True,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
    return str(run), str(exported)


def main() -> None:
    args = parse()
    if args.worker:
        work(args)
        return
    if args.table:
        table(args.table)
        return
    head = {"command": command(["python", *sys.argv]), "machine": machine(), **source()}
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in args.cases.split(","):
            if case == "quality":
                records += measure_quality(args)
            else:
                records += measure(args, case, *saved_run(args, case, Path(folder)))
            # after each, so that a run that is cut short loses nothing
            write(args.out, {**head, "records": records})


if __name__ == "__main__":
    main()
