"""Measure scores of default settings after a wall-clock budget, for few to many pairs.

    python benchmarks/small_data.py data --source DATA --to carry/data
    python benchmarks/small_data.py run --list first --data carry/data --out OUT --limit 560
    python benchmarks/small_data.py collect OUT/results.jsonl ...
    python benchmarks/small_data.py render           # docs/small_data.md
    python benchmarks/small_data.py render --check   # 1 if the page is not what the results give

A job is one training: a system (`before`, `after`: two source trees of regard; `yoyodyne`), a task,
a number of training pairs, a model, a budget in minutes, and a machine (`cpu`: two cores; `cuda`).
Jobs run side by side, each on cores of its own. None is started that cannot end within the limit,
and the result of each is on disk when it ends. With `--keep FOLDER`, jobs longer than the limit are
started too: they are stopped by SIGTERM before it, and a later command with the same folder resumes
them.
"""

import argparse
import gzip
import itertools
import json
import os
import random
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import small_data_page as page
from provenance import ROOT, machine, source
from small_data_job import STOPPING, TEST

SIZES: Final = (300, 1_000, 4_000, 20_000, 100_000)
#: all pairs that there are of names, for 100,000
MOST: Final = {"katakana": 79_057}
TASKS: Final = ("cmudict", "katakana", "reversal")
#: lengths of the strings that are to be reversed
LENGTHS: Final = (3, 12)
CHILD: Final = Path(__file__).with_name("small_data_job.py")
#: seconds that a job needs beside its budget, until one has been seen: imports, data, scoring
OVERHEAD: Final = {"cpu": 30.0, "cuda": 35.0}
#: cells whose runs by an earlier state of the tree had ended too early
THREE_MINUTES: Final = (("cmudict", 4_000), ("katakana", 20_000))
ATTENTIVE_GPU: Final = (("cmudict", 4_000), ("katakana", 4_000), ("cmudict", 20_000))
AGAIN_GPU: Final = (
    ("cmudict", 4_000, "bahdanau"),
    ("cmudict", 100_000, "bahdanau"),
    ("katakana", 4_000, "bahdanau"),
    ("katakana", 79_057, "bahdanau"),
    ("cmudict", 4_000, "transformer"),
    ("katakana", 4_000, "transformer"),
    ("cmudict", 1_000, "bahdanau"),
    ("katakana", 1_000, "bahdanau"),
)
#: cells of one minute of a GPU that only such runs had filled
ENDED_EARLY: Final = (
    *((task, size, "bahdanau") for task in TASKS for size in (300, 1_000)),
    *(("reversal", size, "bahdanau") for size in (4_000, 20_000, 100_000)),
    *((task, 1_000, "transformer") for task in TASKS),
    ("reversal", 4_000, "transformer"),
)
#: seconds before the limit at which a job that is to be resumed is stopped
STOP: Final = 25.0
#: cores of a job
CORES: Final = {"cpu": 2, "cuda": 1}


@dataclass(frozen=True)
class Job:
    """One training."""

    system: str
    task: str
    pairs: int
    model: str
    minutes: float
    machine: str
    #: settings beside the defaults: a seed, or what might become a default
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name for its folder and its log."""
        values = [*asdict(self).values()][:-1]
        return "-".join(map(str, [*values, *itertools.chain(*self.settings.items())]))


def jobs(
    system: str, models: Iterable[str], sizes: Iterable[int], minutes: float, where: str
) -> Iterator[Job]:
    """Yield the jobs of all tasks, sizes and models, sizes first."""
    for model, size, task in itertools.product(models, sizes, TASKS):
        yield Job(system, task, min(size, MOST.get(task, size)), model, minutes, where)


def paired(system: str) -> list[Job]:
    """Return the jobs that both source trees of regard have time for, the longest first."""
    middle = (4_000, 1_000, 20_000)
    return [
        # a tenth minute would not fit into the limit
        Job(system, "cmudict", 20_000, "bahdanau", 9, "cpu"),
        Job(system, "cmudict", 100_000, "transformer", 9, "cuda"),
        Job(system, "cmudict", 4_000, "bahdanau", 3, "cpu"),
        Job(system, "katakana", 20_000, "bahdanau", 3, "cpu"),
        *jobs(system, ["bahdanau"], middle, 1, "cpu"),
        *jobs(system, ["transformer"], middle, 1, "cpu"),
        # reversal last, which a GPU has solved by any settings
        *sorted(
            [
                *jobs(system, ["bahdanau"], (*middle, 100_000, 300), 1, "cuda"),
                *jobs(system, ["transformer"], (*middle, 100_000), 1, "cuda"),
            ],
            key=lambda job: job.task == "reversal",
        ),
    ]


def twins(model: str, sizes: Iterable[int], minutes: float, where: str) -> list[Job]:
    """Return jobs of all tasks, each of both trees."""
    found = [jobs(system, [model], sizes, minutes, where) for system in ("after", "before")]
    return [job for pair in zip(*found, strict=True) for job in pair]


def further() -> list[Job]:
    """Return jobs of both trees, each beside its twin, for what time is left."""
    return [
        *twins("bahdanau", (300, 100_000), 1, "cpu"),
        *twins("self-attentive", (4_000,), 1, "cpu"),
    ]


def again(system: str) -> list[Job]:
    """Return jobs of one minute that an earlier state of the tree had ended too early."""
    few, many = (4_000, 20_000, 1_000, 300), (20_000, 100_000)
    return [
        *jobs(system, ["bahdanau"], (*few, 100_000), 1, "cpu"),
        *(j for j in jobs(system, ["transformer"], many, 1, "cuda") if j.task != "reversal"),
        *(j for j in jobs(system, ["bahdanau"], (*many, 4_000), 1, "cuda") if j.task != "reversal"),
    ]


def seeded(system: str, task: str, model: str, seed: int, **settings: Any) -> Job:
    """Return a job of one minute of a GPU on 20,000 pairs, with a seed and further settings."""
    return Job(system, task, 20_000, model, 1, "cuda", {"seed": seed, **settings})


def policies() -> list[Job]:
    """Return jobs that compare what might become defaults of a GPU, by three seeds."""
    cells = (("cmudict", "transformer", 300), ("katakana", "bahdanau", 500))
    found: list[Job] = []
    for seed in (1, 2, 3):
        for task, model, interval in cells:
            found += [
                seeded("after", task, model, seed),
                seeded("after", task, model, seed, dropout=0.3),
            ]
            if seed < 3:
                found.append(seeded("after", task, model, seed, eval_every=interval))
    for task, model, interval in cells:
        found += [
            seeded("before", task, model, 2),
            seeded("after", task, model, 1, dropout=0.3, eval_every=interval),
            seeded("after", task, model, 1, ema=0.999),
        ]
    return found


def averaged() -> list[Job]:
    """Return jobs with a moving average of the weights, beside those with the defaults."""
    cells = [("cmudict", "transformer"), ("katakana", "bahdanau")]
    found = [seeded("after", t, m, seed, ema=0.999) for seed in (1, 2, 3) for t, m in cells]
    cells = [*itertools.product(("cmudict", "katakana"), page.MODELS)]
    found += [Job("after", t, 4_000, m, 1, "cpu", {"ema": 0.999}) for t, m in cells]
    return [*found, Job("after", "cmudict", 1_000, "bahdanau", 1, "cpu", {"ema": 0.999})]


def both(task: str, pairs: int, model: str, minutes: float, where: str) -> list[Job]:
    """Return a job of each tree."""
    return [Job(s, task, pairs, model, minutes, where) for s in ("after", "before")]


def warm_up(model: str) -> list[Job]:
    """Return jobs after which the kernels of both trees for this CPU have been compiled."""
    return [Job(system, "reversal", 300, model, 0.1, "cpu") for system in ("after", "before")]


def ten_minutes() -> list[Job]:
    """Return the jobs that one command stops and the next one resumes."""
    return [
        *both("cmudict", 20_000, "bahdanau", 10, "cpu"),
        *both("katakana", 20_000, "transformer", 10, "cpu"),
        Job("before", "cmudict", 100_000, "transformer", 10, "cuda"),
    ]


def longer() -> list[Job]:
    """Return jobs of ten, three and one minutes, the longest first, for one command of 22 minutes.

    Ten minutes go to one or two cells of each model, three to six more on each machine; one minute
    goes to the cells that had been left out, or that an earlier state of the tree had ended.
    """
    ten = {
        "cuda": (
            ("cmudict", 20_000, "bahdanau"),
            ("cmudict", 100_000, "transformer"),
            ("katakana", 20_000, "transformer"),
            ("katakana", 20_000, "self-attentive"),
        ),
        "cpu": (("cmudict", 20_000, "bahdanau"), ("katakana", 20_000, "transformer")),
    }
    three = {
        "cuda": (
            ("cmudict", 4_000, "bahdanau"),
            ("katakana", 20_000, "bahdanau"),
            ("cmudict", 20_000, "self-attentive"),
            ("cmudict", 20_000, "transformer"),
            ("reversal", 1_000, "self-attentive"),
            ("reversal", 4_000, "transformer"),
        ),
        "cpu": (
            ("cmudict", 4_000, "self-attentive"),
            ("cmudict", 20_000, "transformer"),
            ("katakana", 4_000, "transformer"),
            ("katakana", 20_000, "self-attentive"),
            ("reversal", 1_000, "self-attentive"),
            ("reversal", 1_000, "bahdanau"),
        ),
    }
    one = (
        *(Job("after", t, n, m, 1, "cuda") for t, n, m in ENDED_EARLY),
        *(Job("after", "reversal", n, "transformer", 1, "cuda") for n in (20_000, 100_000)),
        *twins("self-attentive", (1_000, 100_000), 1, "cuda"),
        *twins("transformer", (300,), 1, "cuda"),
        *both("reversal", 4_000, "self-attentive", 1, "cuda"),
        *both("reversal", 20_000, "self-attentive", 1, "cuda"),
        *twins("self-attentive", (300,), 1, "cuda"),
    )
    other = (("attentive-lstm", 20_000, 3), ("transformer", 20_000, 3), ("transformer", 4_000, 1))
    return [
        *(j for where, cells in ten.items() for cell in cells for j in both(*cell, 10, where)),
        *(j for where, cells in three.items() for cell in cells for j in both(*cell, 3, where)),
        *(Job("yoyodyne", "cmudict", n, m, minutes, "cuda") for m, n, minutes in other),
        *one,
    ]


def peers(tasks: Iterable[str] = TASKS) -> list[Job]:
    """Return the jobs of yoyodyne."""
    found = [
        *jobs("yoyodyne", ["attentive-lstm"], (4_000, 1_000, 20_000), 1, "cpu"),
        *jobs("yoyodyne", ["transformer"], (4_000,), 1, "cpu"),
        *jobs("yoyodyne", ["attentive-lstm"], (4_000,), 1, "cuda"),
    ]
    return [job for job in found if job.task in tasks]


LISTS: Final = {
    "first": lambda: [*peers(), *paired("before"), *further()],
    # names with a quotation mark had ended the jobs of yoyodyne
    "second": lambda: [*paired("after"), *peers(["katakana"])[:2], *further()],
    # the cells of `after` that a run of 285 seconds has time for
    "third": lambda: again("after"),
    # to be followed at once by `fourth-rest`, on the same machine
    "fourth": lambda: [
        *ten_minutes(),
        *warm_up("self-attentive"),
        *policies(),
        *twins("self-attentive", (4_000, 1_000, 20_000), 1, "cpu"),
    ],
    "fourth-rest": lambda: [
        *ten_minutes(),
        *both("reversal", 300, "self-attentive", 1, "cpu"),
        *both("cmudict", 4_000, "self-attentive", 1, "cuda")[1:],
        *both("katakana", 4_000, "self-attentive", 1, "cuda")[1:],
        *both("cmudict", 20_000, "self-attentive", 1, "cuda")[1:],
    ],
    "fifth": lambda: [
        *both("reversal", 4_000, "transformer", 3, "cpu"),
        *warm_up("self-attentive"),
        *warm_up("bahdanau")[:1],
        *jobs("after", ["transformer"], (4_000,), 1, "cpu"),
        *(Job("after", t, n, "bahdanau", 3, "cpu") for t, n in THREE_MINUTES),
        *averaged(),
        *jobs("after", ["transformer"], (1_000, 20_000), 1, "cpu"),
        *twins("self-attentive", (20_000,), 1, "cpu"),
        *peers(["katakana"])[2:4],
        Job("before", "reversal", 20_000, "transformer", 1, "cpu"),
        *twins("self-attentive", (300,), 1, "cpu")[:4],
        *(Job("after", t, n, "self-attentive", 1, "cuda") for t, n in ATTENTIVE_GPU),
        *both("katakana", 20_000, "self-attentive", 1, "cuda"),
        *(Job("after", t, n, m, 1, "cuda") for t, n, m in AGAIN_GPU),
    ],
    "sixth": lambda: [*warm_up("bahdanau"), *warm_up("self-attentive"), *longer()],
    "trial": lambda: [
        Job(system, "reversal", 300, model, 0.1, where)
        for where in CORES
        for system, model in (("before", "bahdanau"), ("yoyodyne", "attentive-lstm"))
    ],
}


@dataclass
class Running:
    """A job at work, on its cores."""

    job: Job
    cores: tuple[int, ...]
    process: "subprocess.Popen[bytes]"
    began: float
    log: Path
    work: Path = field(repr=False)
    #: whether it was told to stop, to be resumed by a later command
    stopping: bool = False


class Bench:
    """Runs jobs in parallel; every result is on disk when its job ends."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.began = args, time.monotonic()
        self.out: Path = args.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.results, self.log = self.out / "results.jsonl", self.out / "log.txt"
        self.scratch = Path(args.keep or tempfile.mkdtemp(prefix="small-data-"))
        self.scratch.mkdir(parents=True, exist_ok=True)
        have = sorted(os.sched_getaffinity(0))
        slots = ["cuda"] * args.cuda_slots + ["cpu"] * args.cpu_slots
        if sum(CORES[kind] for kind in slots) > len(have):
            raise SystemExit(f"{slots} need more than the {len(have)} cores of this machine.")
        cores = iter(have)
        self.free = {
            kind: [tuple(itertools.islice(cores, CORES[kind])) for k in slots if k == kind]
            for kind in ("cuda", "cpu")
        }
        self.overhead: dict[str, list[float]] = {"cpu": [], "cuda": []}

    def run(self, waiting: list[Job]) -> None:
        """Run jobs until none is left that can end in time."""
        self.record({"kind": "machine", **self.facts(), "jobs": len(waiting)})
        running: list[Running] = []
        try:
            while waiting or running:
                for job in list(waiting):
                    if self.left < self.needs(job):
                        waiting.remove(job)
                        self.say(f"no time left for {job.name}")
                    elif self.free[job.machine]:
                        waiting.remove(job)
                        running.append(self.start(job))
                for one in list(running):
                    if self.left < STOP and self.can_wait(one.job):
                        self.stop(one)
                    if one.process.poll() is not None or self.left < 0:
                        running.remove(one)
                        self.finish(one)
                time.sleep(0.2)
        finally:
            for one in running:
                _end(one.process)
            if not self.args.keep:
                shutil.rmtree(self.scratch, ignore_errors=True)

    @property
    def left(self) -> float:
        """Seconds until the limit."""
        return float(self.args.limit - (time.monotonic() - self.began))

    def needs(self, job: Job) -> float:
        """Return the seconds that a job may take, by those that have ended."""
        if self.can_wait(job):
            return 2 * STOP
        seen = self.overhead[job.machine]
        return 60 * job.minutes + (1.1 * max(seen) if len(seen) > 2 else OVERHEAD[job.machine])

    def can_wait(self, job: Job) -> bool:
        """Return whether a job may end in a later command."""
        return bool(self.args.keep) and 60 * job.minutes > self.args.limit_of_one

    def facts(self) -> dict[str, Any]:
        """Return what all jobs have in common."""
        gpu = None
        if self.args.cuda_slots:
            asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
            gpu = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        slots = {"cpu": self.args.cpu_slots, "cuda": self.args.cuda_slots}
        return {**machine(), "gpu": gpu, "slots": slots, "source": source(), "list": self.args.list}

    def start(self, job: Job) -> Running:
        """Start a job on free cores."""
        cores, work = self.free[job.machine].pop(0), self.scratch / job.name
        log = self.scratch / f"{job.name}.log"
        (work / STOPPING).unlink(missing_ok=True)
        tree = self.args.before if job.system == "before" else ROOT / "src"
        path = [str(Path(tree).resolve()), *map(str, self.args.site)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}
        threads = str(len(cores))
        env |= {
            "OMP_NUM_THREADS": threads,
            "RAYON_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
        }
        if job.machine == "cpu":
            env["CUDA_VISIBLE_DEVICES"] = ""
        words = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, str(CHILD)]
        words += [json.dumps(asdict(job)), str(self.args.data.resolve()), str(work)]
        with open(log, "wb") as errors, open(f"{log}.out", "wb") as output:
            process = subprocess.Popen(
                words, stdout=output, stderr=errors, env=env, start_new_session=True
            )
        self.say(f"started {job.name} on {cores}")
        return Running(job, cores, process, time.monotonic(), log, work)

    def stop(self, one: Running) -> None:
        """Ask a job to save its run and end; a second signal would end it at once."""
        if not one.stopping:
            one.stopping = True
            (one.work / STOPPING).touch()
            one.process.terminate()

    def finish(self, one: Running) -> None:
        """Record how a job ended, and free its cores."""
        code, seconds = one.process.poll(), time.monotonic() - one.began
        if code is None:
            _end(one.process)
        lines = Path(f"{one.log}.out").read_text(errors="replace").strip().splitlines()
        found: dict[str, Any] = {}
        if code == 0 and lines:
            found = {**json.loads(lines[-1]), "said": one.log.read_text(errors="replace")[-1500:]}
            if not self.can_wait(one.job):
                self.overhead[one.job.machine].append(seconds - 60 * one.job.minutes)
        else:
            tail = one.log.read_text(errors="replace")[-2000:]
            found = {"failed": "out of time" if code is None else code, "stderr": tail}
            if code is None and self.can_wait(one.job):  # its last checkpoint is still there
                found["stopped"] = True
        commit = self.args.before_commit if one.job.system == "before" else source()["commit"]
        slots = {"cpu": self.args.cpu_slots, "cuda": self.args.cuda_slots}
        where = {"cores": len(one.cores), "slots": slots, "commit": commit, "seconds_all": seconds}
        kind = "stopped" if "stopped" in found else "result"
        self.record({"kind": kind, "job": asdict(one.job), **where, **found})
        if "stopped" in found:
            told = "stopped, to be resumed"
        elif "exact" in found:
            told = f"exact {found['exact']:.3f}"
        else:
            told = "FAILED " + found["stderr"][-300:]
        self.say(f"{one.job.name}: {told}, {seconds:.0f} s, step {found.get('step')}")
        self.free[one.job.machine].append(one.cores)
        if kind == "result":
            shutil.rmtree(one.work, ignore_errors=True)

    def record(self, row: dict[str, Any]) -> None:
        """Append a line that a kill cannot take back."""
        with open(self.results, "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def say(self, sentence: str) -> None:
        """Print a line, and keep it."""
        line = f"{time.monotonic() - self.began:7.1f}  {sentence}"
        print(line, flush=True)
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a job with the processes that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def write_data(args: argparse.Namespace) -> None:
    """Write the pairs of every task: shuffled once, so that a smaller set is part of a larger."""
    args.to.mkdir(parents=True, exist_ok=True)
    for task, make in (("cmudict", _cmudict), ("katakana", _katakana), ("reversal", _reversal)):
        train, test = make(args.source)
        random.Random(1).shuffle(train)
        seen = {src for src, *_ in train}
        test = [row for row in test if row[0] not in seen]
        random.Random(2).shuffle(test)
        for part, rows in (("train", train[: max(SIZES)]), ("test", test[:TEST])):
            text = "".join("\t".join(row) + "\n" for row in rows)
            (args.to / f"{task}.{part}.tsv").write_text(text, encoding="utf-8")
            print(f"{task}.{part}: {len(rows)}")


Rows = list[list[str]]


def _rows(file: Path) -> Rows:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n").split("\t") for line in lines]


def _cmudict(folder: Path) -> tuple[Rows, Rows]:
    data = folder / "cmudict_g014b2b"
    return _rows(data / "train.tsv.gz"), _rows(data / "test.multiref.tsv.gz")


def _katakana(folder: Path) -> tuple[Rows, Rows]:
    """Names in Latin letters and in katakana; dev pairs train too: each run holds out its own."""
    data = folder / "translit_wikidata"
    train, dev, test = (_rows(data / f"katakana.{p}.tsv.gz") for p in ("train", "dev", "test"))
    return [*train, *dev], test


def _reversal(folder: Path) -> tuple[Rows, Rows]:
    pick = random.Random(3)
    words: dict[str, None] = {}
    while len(words) < max(SIZES) + TEST:
        letters = pick.choices(string.ascii_lowercase, k=pick.randint(*LENGTHS))
        words["".join(letters)] = None
    rows = [[word, word[::-1]] for word in words]
    return rows[TEST:], rows[:TEST]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, dest="verb")
    data = verbs.add_parser("data", help="write the pairs of every task")
    data.add_argument("--source", type=Path, required=True, help="the folder of public data sets")
    data.add_argument("--to", type=Path, required=True)
    run = verbs.add_parser("run", help="run a list of jobs")
    run.add_argument("--list", choices=LISTS, required=True)
    run.add_argument("--data", type=Path, required=True)
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--limit", type=float, default=560, help="seconds in all")
    run.add_argument("--keep", type=Path, help="the folder of jobs that a later command resumes")
    run.add_argument(
        "--limit-of-one", type=float, default=570, help="seconds of a job that need a later command"
    )
    run.add_argument("--before", type=Path, help="the source tree that the change began from")
    run.add_argument("--before-commit", help="its commit")
    run.add_argument("--site", type=Path, action="append", default=[], help="more packages")
    run.add_argument("--cpu-slots", type=int, default=1)
    run.add_argument("--cuda-slots", type=int, default=0)
    collect = verbs.add_parser("collect", help="take results into benchmarks/results")
    collect.add_argument("files", type=Path, nargs="+")
    render = verbs.add_parser("render", help="write docs/small_data.md")
    render.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.verb == "data":
        write_data(args)
    elif args.verb == "run":
        able = {kind for kind in CORES if getattr(args, f"{kind}_slots")}
        Bench(args).run([job for job in LISTS[args.list]() if job.machine in able])
    elif args.verb == "collect":
        page.collect(args.files)
    else:
        return page.render(check=args.check)
    return 0


if __name__ == "__main__":
    sys.exit(main())
