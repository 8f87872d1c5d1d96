"""Train and score one cell of the small-data benchmark with default settings and a budget.

    python small_data_job.py '{"system": "after", "task": "reversal", "pairs": 4000, ...}' DATA WORK

`small_data.py` starts it, with the source tree to measure first on the path. The result is the last
line of stdout. Everything that a system needs to know of its user is here: the file of pairs, the
model by name, the budget and the device; all other settings are the system's own.
"""

import json
import platform
import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

#: test sources that a model is scored by
TEST: Final = 500
#: tasks whose targets are letters; those of the others are symbols between blanks
LETTERS: Final = ("reversal",)
#: threads of a run on the CPU
THREADS: Final = 2
#: the file by which a job is told that the signal it gets is no end
STOPPING: Final = "stopping"


class StoppedError(Exception):
    """The run was stopped by a signal, to be resumed by the next command."""


class Example(NamedTuple):
    """A source with the targets that are right for it."""

    src: str
    references: list[str]


def read(file: Path, count: int | None = None) -> list[Example]:
    """Return the first examples of a file: source and references, tab-separated."""
    with open(file, encoding="utf-8") as lines:
        rows = [
            line.rstrip("\n").split("\t") for line, _ in zip(lines, _up_to(count), strict=False)
        ]
    return [Example(src, references) for src, *references in rows]


def _up_to(count: int | None) -> Iterable[int]:
    return range(count) if count is not None else iter(int, 1)


def write(file: Path, pairs: Iterable[Example]) -> Path:
    """Write examples as a file of pairs."""
    file.write_text("".join(f"{e.src}\t{e.references[0]}\n" for e in pairs), encoding="utf-8")
    return file


def symbols(text: str, task: str) -> list[str]:
    """Split a target into the symbols that the error rate counts."""
    normal = unicodedata.normalize("NFC", text)
    return list(normal.strip()) if task in LETTERS else normal.split()


def scores(task: str, outputs: Sequence[str], test: Sequence[Example]) -> dict[str, float]:
    """Return exact match, by any reference, and the symbol error rate by the nearest."""
    from rapidfuzz.distance import Levenshtein

    exact, errors, total = 0, 0, 0
    for output, example in zip(outputs, test, strict=True):
        found = symbols(output, task)
        references = [symbols(reference, task) for reference in example.references]
        distance, length = min((Levenshtein.distance(found, r), len(r)) for r in references)
        exact, errors, total = exact + (distance == 0), errors + distance, total + length
    return {"exact": exact / len(test), "error_rate": errors / total}


def longest(task: str, examples: Iterable[Example]) -> int:
    """Return the length after which an output is cut, the same for every system."""
    return 2 * max(len(symbols(r, task)) for e in examples for r in e.references)


def train_regard(job: dict[str, Any], train: Path, work: Path) -> dict[str, Any]:
    """Train a preset of regard, and say how far it came."""
    from regard.training import make_config, resume_run, start_run

    if (work / "run").exists():
        resume_run(work / "run")
        return _progress(work)
    threads = {"threads": THREADS} if job["machine"] == "cpu" else {}
    settings = {"data": str(train), "preset": job["model"], "minutes": job["minutes"]}
    config = make_config(
        {**settings, **job.get("settings", {}), "device": job["machine"], **threads}
    )
    start_run(config, work / "run")
    return _progress(work)


def _progress(work: Path) -> dict[str, Any]:
    metrics = work / "run" / "metrics.jsonl"
    if not metrics.exists():  # stopped before the first evaluation
        return {}
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    names = ("step", "epoch", "tokens", "seconds")
    return {n: rows[-1][n] for n in names} | {"evaluations": len(rows), "metrics": rows}


def predict_regard(job: dict[str, Any], test: Sequence[Example], work: Path) -> list[str]:
    """Answer the test sources greedily."""
    import regard

    model = regard.load(work / "run", device=job["machine"])
    options = {"beam": 1, "max_len": longest(job["task"], test), "batch": 128}
    return [o.text for o in model.predict([e.src for e in test], attention=False, **options)]


def run_regard(
    job: dict[str, Any], train: Sequence[Example], test: Sequence[Example], work: Path
) -> Any:
    """Train and score a preset of regard, which holds out dev pairs itself."""
    file = work / "pairs.tsv"
    progress = train_regard(job, file if file.exists() else write(file, train), work)
    if (work / STOPPING).exists():
        (work / STOPPING).unlink()
        raise StoppedError
    return progress, predict_regard(job, test, work)


def run_yoyodyne(
    job: dict[str, Any], pairs: Sequence[Example], test: Sequence[Example], work: Path
) -> Any:
    """Train and score a model of yoyodyne by its defaults, with the dev pairs of regard.

    Its command line leaves the choice of a checkpoint to the user. Here it is whichever is better
    on dev, of the best epoch and the last weights. Its reader of TSV files takes a quotation mark
    for the beginning of a field over several lines: such pairs are left out.
    """
    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint
    from yoyodyne import models
    from yoyodyne.data import DataModule, Mapper
    from yoyodyne.models import modules

    from regard.data import dev_share, is_held_out

    if job["machine"] == "cpu":
        torch.set_num_threads(THREADS)
    lightning.seed_everything(1, verbose=False)
    share = dev_share(len(pairs))
    pairs = [e for e in pairs if '"' not in e.src + e.references[0]]
    files = {
        "train": write(
            work / "train.tsv", [e for e in pairs if not is_held_out(e.src, share=share)]
        ),
        "val": write(work / "val.tsv", [e for e in pairs if is_held_out(e.src, share=share)]),
        "predict": write(work / "test.tsv", test),
    }
    separators = {"source_sep": "", "target_sep": "" if job["task"] in LETTERS else " "}
    data = DataModule(
        model_dir=str(work), **{name: str(file) for name, file in files.items()}, **separators
    )
    kinds = {
        "attentive-lstm": (modules.LSTMEncoder, models.SoftAttentionLSTMModel),
        "transformer": (modules.TransformerEncoder, models.TransformerModel),
    }
    encoder, kind = kinds[job["model"]]
    model = kind(
        source_encoder=encoder(),
        target_vocab_size=data.target_vocab_size,
        vocab_size=data.vocab_size,
        max_source_length=data.max_source_length,
        max_target_length=longest(job["task"], [*pairs, *test]),
    )
    best = ModelCheckpoint(dirpath=work, monitor="val_accuracy", mode="max", save_weights_only=True)
    trainer = lightning.Trainer(
        accelerator="cpu" if job["machine"] == "cpu" else "gpu",
        devices=1,
        max_epochs=-1,
        max_time={"seconds": 60 * job["minutes"]},
        logger=False,
        callbacks=[best],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(work),
        num_sanity_val_steps=0,
    )
    began = time.monotonic()
    trainer.fit(model, data)
    progress = {
        "step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "seconds": time.monotonic() - began,
    }
    last = float(trainer.validate(model, data, verbose=False)[0]["val_accuracy"])
    if best.best_model_score is not None and float(best.best_model_score) > last:
        model.load_state_dict(torch.load(best.best_model_path, weights_only=False)["state_dict"])
    mapper, sep = Mapper(data.index), separators["target_sep"]
    found = trainer.predict(model, data) or []
    return progress, [sep.join(mapper.decode_target(row)) for batch in found for row in batch]


def versions(system: str) -> dict[str, Any]:
    """Return what the figures depend on, beside the machine."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, Any] = {"python": platform.python_version()}
    for name in ("torch", "lightning", "numba", *([system] if system == "yoyodyne" else [])):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def run(job: dict[str, Any], data: Path, work: Path) -> dict[str, Any]:
    """Train, score, and return what is to be recorded."""
    began = time.monotonic()
    work.mkdir(parents=True, exist_ok=True)
    train = read(data / f"{job['task']}.train.tsv", job["pairs"])
    if len(train) < job["pairs"]:
        raise SystemExit(f"{job['task']} has {len(train)} pairs, fewer than {job['pairs']}.")
    test = read(data / f"{job['task']}.test.tsv", TEST)
    runner = run_yoyodyne if job["system"] == "yoyodyne" else run_regard
    progress, outputs = runner(job, train, test, work)
    return {
        **progress,
        **scores(job["task"], outputs, test),
        "test": len(test),
        "process_seconds": time.process_time(),
        "wall_seconds": time.monotonic() - began,
        "versions": versions(job["system"]),
        "examples": [[e.src, e.references[0], o] for e, o in zip(test[:3], outputs, strict=False)],
    }


if __name__ == "__main__":
    try:
        found = run(json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
    except StoppedError:
        found = {"stopped": True}
    print(json.dumps(found), flush=True)
