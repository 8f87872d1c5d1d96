"""Fine-tune models on few examples, beside the same network and the default one from scratch.

    python -m benchmarks.quality.fine_tuning make ../shared/data carry/fine-tuning    # the files
    python -m benchmarks.quality.fine_tuning train carry/fine-tuning --at-once 5 --minutes 8 \
        --out fine-tuning.json
    python -m benchmarks.quality.fine_tuning score carry/fine-tuning --out fine-tuning.json

Cases: `translate-en-de` to captions (Multi30k), `g2p` to the symbols of NETtalk and to Dutch, and
the sentiment of films (SST-2) from a language model that has read texts at hand. `PLAN` has a group
of runs for each case, size and way of training, the most important first. The first seed of each of
its candidates is trained, the one with the best dev score gets the other seeds, and the others are
not tested. `old` is the score on test data of what the model could do before.

Runs share one GPU, each in a process; none is begun after `--minutes`, and what is not begun is
missing from the result. Outputs for test data are kept beside the result, in FILE.outputs.jsonl,
and `score` computes the scores where its packages are: BLEU of Moses tokens in lower case, as the
recipes have it, accuracy, and phoneme errors.
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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import harness

#: pairs of the dev sets and of the test sets of words; of the old task, test pairs that are scored
DEV, TEST, OLD = 500, 1000, 500
#: dev sources that are decoded at an evaluation
DECODED: Final = 300
#: sentences of Tatoeba that the language model reads, and replayed pairs of the old task
TATOEBA, REPLAYED = 60_000, 20_000
#: words of the language model's texts
WORDS: Final = re.compile(r"[\w'<>]+|[^\w\s]")
LANGUAGE_MODEL: Final = "language-model"

Settings = Mapping[str, Any]


class Case(NamedTuple):
    """A task with few examples.

    Attributes:
        start: the model to fine-tune.
        metric: that decides on the dev set, and whether more is better.
        sizes: training examples.
    """

    start: str
    metric: str
    higher: bool
    sizes: tuple[int, ...]


CASES: Final = {
    "captions": Case("translate-en-de", "bleu", True, (300, 1000, 5000, 10_000, 29_000)),
    "nettalk": Case("g2p", "per", False, (500, 2000)),
    "dutch": Case("g2p", "per", False, (500, 2000)),
    "sst2": Case(LANGUAGE_MODEL, "accuracy", True, (500, 6920)),
}


class Group(NamedTuple):
    """Runs of one case, size and way of training.

    Attributes:
        candidates: settings to choose from by the first seed.
        seeds: of the best of them.
    """

    case: str
    size: int
    way: str
    candidates: Sequence[Settings]
    seeds: int = 3


TUNED, SCRATCH, REPLAY, AS_IT_IS = "fine-tuned", "from scratch", "replay", "as it is"
_GRU: Final = {
    "hidden": 512,
    "embed": 256,
    "tied": "output",
    "label_smoothing": 0.1,
    "dropout": 0.45,
    "word_dropout": 0.05,
    "ema": 0.998,
}
_G2P: Final = {
    "hidden": 512,
    "embed": 256,
    "src_case": "upper",
    "tgt_tokenizer": "space",
    "src_tokenizer": "char",
    "label_smoothing": 0.0,
    "dropout": 0.4,
}
_RDROP: Final = {"rdrop": 4.0, "ema": 0.998, "lr": 1e-3, "dropout": 0.3}
_OLD: Final = {"replay": "captions/replay.tsv"}
_READER: Final = {"preset": "classifier-transformer", "src_tokenizer": "space", "size": "small"}


def _captions(steps: int) -> list[Settings]:
    return [{**_GRU, "vocab_size": 6000, "steps": steps}, {"steps": steps}]


def _words(case: str) -> list[Group]:
    return [
        Group(case, 2000, TUNED, [{}]),
        Group(case, 2000, SCRATCH, [{**_G2P, "steps": 1500}, {"steps": 1500}]),
        Group(case, 500, TUNED, [{}]),
        Group(case, 500, SCRATCH, [{**_G2P, "steps": 1000}, {"steps": 1000}]),
        Group(case, 500, AS_IT_IS, [{}], 1),
    ]


#: all of them, those to begin first before the others
PLAN: Final = [
    Group("captions", 29_000, TUNED, [{}, {**_RDROP, "steps": 4000}, {**_RDROP, **_OLD}]),
    Group("captions", 1000, TUNED, [{}, {**_RDROP, "steps": 1000}, {**_RDROP, **_OLD}]),
    Group("captions", 10_000, SCRATCH, _captions(3000)),
    Group("captions", 1000, SCRATCH, _captions(1200)),
    Group("captions", 1000, AS_IT_IS, [{}], 1),
    Group("sst2", 0, LANGUAGE_MODEL, [{}], 1),
    *_words("nettalk"),
    Group("captions", 300, TUNED, [{}]),
    Group("captions", 5000, TUNED, [{}]),
    *(
        Group("sst2", size, way, [settings])
        for size in (500, 6920)
        for way, settings in (
            (TUNED, {"preset": "classifier-transformer", "dropout": 0.2}),
            (SCRATCH, {**_READER, "dropout": 0.2, "steps": 1000 if size < 1000 else 2000}),
        )
    ),
    Group("captions", 29_000, SCRATCH, _captions(4000)[:1], 1),
    Group("captions", 1000, REPLAY, [_OLD]),
    Group("captions", 300, SCRATCH, _captions(1000)[:1], 1),
    Group("captions", 5000, SCRATCH, _captions(2500)[:1], 1),
    Group("captions", 29_000, REPLAY, [_OLD], 1),
    *_words("dutch"),
]


class Job(NamedTuple):
    """One run."""

    group: int
    candidate: int
    seed: int

    @property
    def key(self) -> tuple[str, int, str]:
        """What its group is called."""
        return PLAN[self.group][:3]

    @property
    def settings(self) -> Settings:
        """Its settings, apart from seed and data."""
        return PLAN[self.group].candidates[self.candidate]


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


def _run(job: Job, folder: Path, runs: Path, device: str, steps: int | None) -> dict[str, Any]:
    """Return the record of a run, with its outputs for the test data."""
    import torch

    import regard

    torch.set_num_threads(1)
    case, size, way = job.key
    began, facts, place = time.monotonic(), CASES[case], folder / case
    output = runs / "-".join(map(str, (case, way.replace(" ", "-"), *job)))
    record: dict[str, Any] = {**dict(zip(("case", "size", "way"), job.key, strict=True))}
    record |= {"candidate": job.candidate, "seed": job.seed, "settings": job.settings}
    record |= {"versions": harness.versions(device)}
    settings: dict[str, Any] = {"device": device, "quiet": True, "report": False, "baseline": False}
    settings |= {"encode_processes": 1, **job.settings} | ({"steps": steps} if steps else {})
    start = str(runs / facts.start) if facts.start == LANGUAGE_MODEL else facts.start
    try:
        if way == LANGUAGE_MODEL:
            return record | _language_model(place / "texts.txt", runs / facts.start, settings)
        if way == AS_IT_IS:
            model = regard.load(start, device=device)
        else:
            if "replay" in settings:
                settings["replay"] = str(folder / settings["replay"])
            if way != SCRATCH:
                settings["start"] = start
            model = regard.fit(
                place / f"train-{size}.tsv",
                dev=str(place / "dev.tsv"),
                output=output,
                metric=facts.metric,
                seed=1 + job.seed,
                eval_pairs=DECODED,
                **settings,
            )
            record |= _progress(output, f"dev_{facts.metric}", higher=facts.higher)
        files = {"test": place / "test.tsv"}
        if way != SCRATCH and (place / "old.tsv").exists():
            files["old"] = place / "old.tsv"
        record["outputs"] = {
            name: [o.text for o in model.predict(_column(file, 0), attention=False)]
            for name, file in files.items()
        }
    except (regard.errors.RegardError, RuntimeError) as error:
        return record | {"error": str(error)[:500]}
    shutil.rmtree(output, ignore_errors=True)
    return record | {"seconds": round(time.monotonic() - began, 1)}


def _progress(run: Path, name: str, *, higher: bool) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = [row[name] for row in rows]
    best = (max if higher else min)(scores)
    return {"steps": rows[-1]["step"], "dev": best, "first_dev": scores[0]}


def _column(file: Path, number: int) -> list[str]:
    return [line.split("\t")[number] for line in file.read_text().splitlines()]


def _language_model(texts: Path, run: Path, settings: dict[str, Any]) -> dict[str, Any]:
    import regard

    began, given = time.monotonic(), {"steps": 4000} | settings
    given |= {"tgt_tokenizer": "space", "vocab_size": 20_000, "size": "small", "dropout": 0.1}
    regard.fit(texts, "lm-transformer", output=run, **given)
    record = _progress(run, "dev_perplexity", higher=False)
    return record | {"seconds": round(time.monotonic() - began, 1)}


def train(folder: Path, cases: Sequence[str], args: argparse.Namespace) -> None:
    """Train all runs, as many at once as asked for, and write the result after each."""
    until = time.time() + 60 * args.minutes
    runs = Path(tempfile.mkdtemp(prefix="fine-tuning-"))
    result = harness.provenance() | {"records": []}
    kept = args.out.with_suffix(".outputs.jsonl")
    kept.write_text("")
    chosen_groups = {
        number: group
        for number, group in enumerate(PLAN)
        if group.case in cases and (group.way in args.ways or not args.ways)
    }
    queue = [Job(n, i, 0) for n, group in chosen_groups.items() for i in range(len(group[3]))]
    missing = {CASES[group.case].start for group in chosen_groups.values()} & {LANGUAGE_MODEL}
    running: dict[Future[Any], Job] = {}
    candidates: dict[int, list[dict[str, Any]]] = defaultdict(list)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.at_once, mp_context=spawn) as pool:
        while running or (queue and time.time() < until):
            ready = (
                [job for job in queue if not _waits(job, missing)] if time.time() < until else []
            )
            for job in sorted(ready)[: args.at_once - len(running)]:
                queue.remove(job)
                where = (folder, runs, args.device, args.steps)
                running[pool.submit(_run, job, *where)] = job
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED)[0]:
                job, record = running.pop(future), future.result()
                group = PLAN[job.group]
                result["machine"] |= record.pop("versions")
                result["records"].append({n: v for n, v in record.items() if n != "outputs"})
                harness.write(args.out, result)
                print(json.dumps(result["records"][-1]), flush=True)
                missing -= {group.way}
                tested = [record]
                if job.seed == 0:
                    candidates[job.group].append(record)
                    if len(candidates[job.group]) < len(group.candidates):
                        continue
                    tested = [r for r in candidates[job.group] if "dev" in r] or tested
                    better = max if CASES[group.case].higher else min
                    tested = [better(tested, key=lambda record: record.get("dev", 0))]
                    best = job._replace(candidate=tested[0]["candidate"])
                    seeds = range(1, min(group.seeds, args.seeds))
                    queue += [best._replace(seed=seed) for seed in seeds]
                if "outputs" in tested[0]:
                    with kept.open("a") as file:
                        file.write(json.dumps(tested[0]) + "\n")
    shutil.rmtree(runs)


def _waits(job: Job, missing: Collection[str]) -> bool:
    """Return whether a job starts from a model that is not there yet."""
    case, _, way = job.key
    return way not in (SCRATCH, LANGUAGE_MODEL) and CASES[case].start in missing


def score(folder: Path, out: Path) -> None:
    """Add the test scores of the kept outputs to a result, and print their means."""
    from statistics import mean

    result = json.loads(out.read_text())
    names = ("case", "size", "way", "candidate", "seed")
    records = {tuple(r[name] for name in names): r for r in result["records"]}
    groups: dict[tuple[Any, ...], list[dict[str, float]]] = defaultdict(list)
    for line in out.with_suffix(".outputs.jsonl").read_text().splitlines():
        row = json.loads(line)
        place, metric = folder / row["case"], CASES[row["case"]].metric
        scores = {
            name: _score(metric, texts, _column(place / f"{name}.tsv", 1))
            for name, texts in row["outputs"].items()
        }
        key = tuple(row[name] for name in names)
        records[key] |= scores
        groups[key[:3]].append(scores)
    harness.write(out, result)
    for key, rows in sorted(groups.items()):
        means = {name: round(mean(row[name] for row in rows), 2) for name in rows[0]}
        print(*key, means, [round(row["test"], 2) for row in rows])


def _score(metric: str, texts: list[str], gold: list[str]) -> float:
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
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of every run, to try this")
    parser.add_argument("--minutes", type=float, default=8.0, help="no run is begun after them")
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
