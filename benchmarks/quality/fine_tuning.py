"""Fine-tune models on few examples, beside the same network and the default one from scratch.

    python -m benchmarks.quality.fine_tuning make ../shared/data carry/fine-tuning    # the files
    python -m benchmarks.quality.fine_tuning train carry/fine-tuning --at-once 14 --minutes 9 \
        --out fine-tuning.json
    python -m benchmarks.quality.fine_tuning score carry/fine-tuning --out fine-tuning.json

Cases: `translate-en-de` to captions (Multi30k), `g2p` to the symbols of NETtalk and to Dutch, and
the sentiment of films (SST-2) from a language model that has read texts at hand. Each way of
training has some candidates of settings; the first seed of each is trained, that with the best dev
score gets the other seeds, and only these are tested, once. `old` is the score on test data of what
the model could do before.

Runs share one GPU, each in a process; none is begun after `--minutes`. Outputs for test data are
kept beside the result, in FILE.outputs.jsonl, and `score` computes the scores where its packages
are: BLEU of Moses tokens in lower case, as the recipes have it, accuracy, and phoneme errors.
"""

import argparse
import gzip
import json
import lzma
import multiprocessing
import random
import re
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import harness

#: pairs of the dev sets and of the test sets of words; of the old task, test pairs that are scored
DEV, TEST, OLD = 500, 1000, 500
#: dev sources that are decoded at an evaluation, and evaluations of a run
DECODED, EVALUATIONS = 300, 8
#: sentences of Tatoeba that the language model reads, and replayed pairs of the old task
TATOEBA, REPLAYED = 60_000, 20_000
#: words of the language model's texts
WORDS: Final = re.compile(r"[\w'<>]+|[^\w\s]")
LANGUAGE_MODEL: Final = "language-model"

Settings = Mapping[str, Any]


class Case(NamedTuple):
    """A task with few examples.

    Attributes:
        start: the model to fine-tune; "" for the language model of this benchmark.
        metric: that decides on the dev set, and whether more is better.
        sizes: training examples.
        ways: candidates of settings by way of training; `start` in them is filled in.
        steps: of runs from scratch, by size; fine-tuning has its own defaults.
    """

    start: str
    metric: str
    higher: bool
    sizes: tuple[int, ...]
    ways: Mapping[str, Sequence[Settings]]
    steps: Mapping[int, int]


_G2P: Final = {"hidden": 512, "embed": 256, "src_case": "upper", "tgt_tokenizer": "space"}
_G2P |= {"src_tokenizer": "char", "label_smoothing": 0.0}
_WORDS: Final = {
    "fine-tuned": [{"start": "g2p"}, {"start": "g2p", "lr": 1e-3}],
    "same network": [{**_G2P, "dropout": 0.1}, {**_G2P, "dropout": 0.4}],
    "default": [{}],
}
_GRU: Final = {"hidden": 512, "embed": 256, "tied": "output", "vocab_size": 6000}
_READER: Final = {"preset": "classifier-transformer"}
CASES: Final = {
    "captions": Case(
        "translate-en-de",
        "bleu",
        True,
        (300, 1000, 5000, 29_000),
        {
            "fine-tuned": [{"start": "translate-en-de"}, {"start": "translate-en-de", "lr": 3e-4}],
            "same network": [{**_GRU, "dropout": 0.3}, {**_GRU, "dropout": 0.5}],
            "default": [{}],
            "replay": [{"start": "translate-en-de", "replay": "captions/replay.tsv"}],
        },
        {300: 1000, 1000: 1500, 5000: 2500, 29_000: 4000},
    ),
    "nettalk": Case("g2p", "per", False, (500, 2000), _WORDS, {500: 1500, 2000: 2000}),
    "dutch": Case("g2p", "per", False, (500, 2000), _WORDS, {500: 1500, 2000: 2000}),
    "sst2": Case(
        "",
        "accuracy",
        True,
        (500, 6920),
        {
            "fine-tuned": [{**_READER, "start": "", "dropout": d} for d in (0.1, 0.3)],
            "same network": [
                {**_READER, "src_tokenizer": "space", "size": "small", "dropout": d}
                for d in (0.1, 0.3)
            ],
            "default": [{}],
        },
        {500: 1000, 6920: 2500},
    ),
}


class Job(NamedTuple):
    """One run."""

    case: str
    size: int
    way: str
    candidate: int
    seed: int
    tested: bool

    @property
    def name(self) -> str:
        """Name of its folder."""
        return "-".join(map(str, self[:5])).replace(" ", "-")


def _rows(file: Path) -> Iterator[list[str]]:
    opened = lzma.open if file.suffix == ".xz" else gzip.open
    with opened(file, "rt", encoding="utf-8", newline="") as lines:
        for line in lines:
            yield line.rstrip("\n").split("\t")


def _write(file: Path, rows: Iterable[Sequence[str]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def _shuffled(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    found = list(dict.fromkeys(rows))
    random.Random(0).shuffle(found)
    return found


def make(data: Path, folder: Path) -> None:
    """Write the files of all cases."""

    def parts(case: str, train: Any, dev: Any, test: Any) -> None:
        for size in CASES[case].sizes:
            _write(folder / case / f"train-{size}.tsv", train[:size])
        _write(folder / case / "dev.tsv", dev)
        _write(folder / case / "test.tsv", test)

    captions = data / "multi30k"
    train, dev, test = (
        [row[:2] for row in _rows(captions / f"{name}.en-de-fr-cs.tsv.gz")]
        for name in ("train", "val", "test_2016_flickr")
    )
    parts("captions", train, dev, test)
    german = [[row[0], row[1]] for row in _rows(data / "tatoeba_eng_deu" / "train.tsv.xz")][1:]
    _write(folder / "captions" / "replay.tsv", random.Random(0).sample(german, REPLAYED))
    old = [row[:2] for row in _rows(data / "tatoeba_eng_deu" / "test.tsv.xz")][1:]
    _write(folder / "captions" / "old.tsv", random.Random(0).sample(old, OLD))
    letters = (row[:2] for row in _rows(data / "nettalk" / "nettalk.aligned.tsv.gz"))
    words = _shuffled((word, " ".join(said.replace("-", ""))) for word, said in letters)
    parts("nettalk", words[DEV + TEST :], words[:DEV], words[DEV : DEV + TEST])
    spoken = {
        part: _shuffled(
            (word, " ".join(said.replace(" ", "")))
            for language, word, said, *_ in _rows(
                data / "g2p_ipadict_permissive" / f"{part}.tsv.xz"
            )
            if language == "nl"
        )
        for part in ("train", "dev", "test")
    }
    parts("dutch", spoken["train"], spoken["dev"][:DEV], spoken["test"][:TEST])
    english = [row[:2] for row in _rows(data / "cmudict_g014b2b" / "test.multiref.tsv.gz")]
    for case in ("nettalk", "dutch"):
        _write(folder / case / "old.tsv", random.Random(0).sample(english, OLD))
    films = {
        part: _films(data / "sst" / f"trees.{part}.txt.gz") for part in ("train", "dev", "test")
    }
    few = random.Random(0).sample(films["train"], len(films["train"]))
    parts("sst2", few, films["dev"], films["test"])
    reviews = (row[0] for row in films["train"])
    print(f"sst2: {len(films['train'])} training sentences")
    treebank = (row[0] for row in _rows(data / "ptb" / "ptb.train.txt.gz"))
    texts = [*reviews, *treebank, *(row[0] for row in train)]
    texts += [row[0] for row in random.Random(0).sample(german, TATOEBA)]
    plain = (" ".join(WORDS.findall(text.lower())) for text in texts)
    _write(folder / "sst2" / "texts.txt", ([text] for text in plain if text))


def _films(file: Path) -> list[tuple[str, str]]:
    found = []
    for (tree,) in _rows(file):
        degree, words = int(tree[1]), re.findall(r" ([^()\s]+)\)", tree)
        if degree != 2:
            text = " ".join(WORDS.findall(" ".join(words).lower()))
            found.append((text, ["neg", "pos"][degree > 2]))
    return found


def _settings(job: Job, folder: Path, runs: Path) -> dict[str, Any]:
    case = CASES[job.case]
    settings = dict(case.ways[job.way][job.candidate])
    if settings.get("start") == "":
        settings["start"] = str(runs / LANGUAGE_MODEL)
    if "replay" in settings:
        settings["replay"] = str(folder / settings["replay"])
    if "start" not in settings:
        settings["steps"] = case.steps[job.size]
    return settings


def _run(job: Job, folder: Path, runs: Path, device: str, steps: int | None, until: float) -> Any:
    """Train a model, unless it is too late, and keep its outputs for the test data."""
    import torch

    import regard

    torch.set_num_threads(1)
    settings = _settings(job, folder, runs)
    while "start" in settings and "/" in settings["start"] and time.time() < until:
        if (Path(settings["start"]) / "README.md").exists():
            break
        time.sleep(1)
    record: dict[str, Any] = {
        **job._asdict(),
        "settings": CASES[job.case].ways[job.way][job.candidate],
    }
    if time.time() > until:
        return record | {"skipped": True}
    began, case, place = time.monotonic(), CASES[job.case], folder / job.case
    output = runs / job.name
    if steps is not None:
        settings["steps"] = steps
    try:
        model = regard.fit(
            place / f"train-{job.size}.tsv",
            dev=str(place / "dev.tsv"),
            output=output,
            metric=case.metric,
            seed=1 + job.seed,
            device=device,
            quiet=True,
            report=False,
            baseline=False,
            eval_pairs=DECODED,
            **settings,
        )
    except (regard.errors.RegardError, RuntimeError) as error:
        return record | {"error": str(error)[:500]}
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    scores = [row[f"dev_{case.metric}"] for row in rows]
    record |= {"seconds": round(time.monotonic() - began, 1), "steps": rows[-1]["step"]}
    record |= {"dev": (max if case.higher else min)(scores), "first_dev": scores[0]}
    if job.tested:
        record["outputs"] = _answers(model, job, place)
        shutil.rmtree(output)
    return record


def _test(job: Job, folder: Path, runs: Path, device: str) -> Any:
    """Return the outputs of a run that was chosen on the dev set."""
    import regard

    model = regard.load(runs / job.name, device=device)
    return {**job._asdict(), "outputs": _answers(model, job, folder / job.case)}


def _answers(model: Any, job: Job, place: Path) -> dict[str, list[str]]:
    files = {"test": place / "test.tsv"}
    if "start" in CASES[job.case].ways[job.way][job.candidate] and (place / "old.tsv").exists():
        files["old"] = place / "old.tsv"
    return {
        name: [o.text for o in model.predict(_column(file, 0), attention=False)]
        for name, file in files.items()
    }


def _column(file: Path, number: int) -> list[str]:
    return [line.split("\t")[number] for line in file.read_text().splitlines()]


def _language_model(folder: Path, runs: Path, device: str, steps: int | None) -> Any:
    import torch

    import regard

    torch.set_num_threads(1)
    began, text = time.monotonic(), folder / "sst2" / "texts.txt"
    regard.fit(
        text,
        "lm-transformer",
        tgt_tokenizer="space",
        vocab_size=20_000,
        size="small",
        dropout=0.1,
        steps=steps or 4000,
        output=runs / LANGUAGE_MODEL,
        device=device,
        quiet=True,
        report=False,
        baseline=False,
    )
    rows = [json.loads(line) for line in (runs / LANGUAGE_MODEL / "metrics.jsonl").open()]
    return {
        "case": LANGUAGE_MODEL,
        "seconds": time.monotonic() - began,
        "perplexity": min(r["dev_perplexity"] for r in rows),
    }


def train(folder: Path, cases: Sequence[str], args: argparse.Namespace) -> None:
    """Train all runs, as many at once as asked for, and write the result after each."""
    until = time.time() + 60 * args.minutes
    runs = Path(tempfile.mkdtemp(prefix="fine-tuning-"))
    result = harness.provenance() | {"records": []}
    kept = args.out.with_suffix(".outputs.jsonl")
    kept.write_text("")
    first = [
        Job(case, size, way, candidate, 0, tested=len(candidates) == 1)
        for case in cases
        for size in CASES[case].sizes[: args.sizes]
        for way, candidates in CASES[case].ways.items()
        if way in args.ways or not args.ways
        for candidate in range(len(candidates))
    ]
    first.sort(
        key=lambda job: ("start" not in CASES[job.case].ways[job.way][job.candidate], -job.size)
    )
    waiting: dict[Future[Any], Job | None] = {}
    dev: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
    chosen: dict[tuple[Any, ...], int] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.at_once, mp_context=spawn) as pool:

        def begin(job: Job) -> None:
            where = (folder, runs, args.device, args.steps, until)
            waiting[pool.submit(_run, job, *where)] = job

        if "sst2" in cases:
            waiting[pool.submit(_language_model, folder, runs, args.device, args.steps)] = None
        for job in first:
            begin(job)
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                job, record = waiting.pop(future), future.result()
                outputs = record.pop("outputs", None)
                if outputs is not None and job is not None:
                    with kept.open("a") as file:
                        file.write(json.dumps({**job._asdict(), "outputs": outputs}) + "\n")
                if "dev" in record or job is None or "error" in record or "skipped" in record:
                    result["records"].append(record)
                    harness.write(args.out, result)
                    print(json.dumps(record), flush=True)
                if job is None or job.seed or "dev" not in record:
                    continue
                key, candidates = job[:3], CASES[job.case].ways[job.way]
                dev[key][job.candidate] = record["dev"]
                if len(dev[key]) < len(candidates) or key in chosen:
                    continue
                better = max if CASES[job.case].higher else min
                chosen[key] = better(dev[key], key=dev[key].__getitem__)
                best = job._replace(candidate=chosen[key])
                if not best.tested:
                    waiting[pool.submit(_test, best, folder, runs, args.device)] = best
                for seed in range(1, args.seeds):
                    begin(best._replace(seed=seed, tested=True))
    shutil.rmtree(runs)


def score(folder: Path, out: Path) -> None:
    """Add the test scores of the kept outputs to a result, and print their means."""
    from statistics import mean

    result = json.loads(out.read_text())
    found = {}
    for line in out.with_suffix(".outputs.jsonl").read_text().splitlines():
        row = json.loads(line)
        case = CASES[row["case"]]
        key = tuple(row[name] for name in Job._fields[:5])
        found[key] = {
            name: _score(
                row["case"], case.metric, texts, _column(folder / row["case"] / f"{name}.tsv", 1)
            )
            for name, texts in row["outputs"].items()
        }
    groups: dict[tuple[Any, ...], list[dict[str, float]]] = defaultdict(list)
    for record in result["records"]:
        key = tuple(record.get(name) for name in Job._fields[:5])
        if key in found:
            record |= found[key]
            groups[key[:3]].append(found[key])
    harness.write(out, result)
    for key, rows in sorted(groups.items(), key=str):
        means = {name: round(mean(row[name] for row in rows), 2) for name in rows[0]}
        print(*key, means, f"{len(rows)} seeds")


def _score(case: str, metric: str, texts: list[str], gold: list[str]) -> float:
    from regard.recipes.paper_metrics import Answers, bleu_of_tokens, exact, phoneme_error_rate
    from regard.recipes.task_data import RecipeExample

    compute = {"bleu": bleu_of_tokens, "per": phoneme_error_rate, "accuracy": exact}[metric]
    examples = [RecipeExample("", (one,), group="de") for one in gold]
    return compute(Answers(examples, texts)).value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("do", choices=("make", "train", "score"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--cases", default=",".join(CASES), help="with commas between")
    parser.add_argument("--ways", default="", help="with commas between; all by default")
    parser.add_argument(
        "--sizes", type=int, help="of each case, the smallest first; all by default"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of every run, to try this")
    parser.add_argument("--minutes", type=float, default=9.0, help="no run is begun after them")
    parser.add_argument("--at-once", type=int, default=1, help="runs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = args.folders[-1].resolve()
    if args.do == "make":
        make(args.folders[0], folder)
    elif args.do == "score":
        score(folder, args.out)
    else:
        args.ways = [way for way in args.ways.split(",") if way]
        train(folder, args.cases.split(","), args)


if __name__ == "__main__":
    main()
