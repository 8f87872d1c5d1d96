"""Compare training, prediction and saved files of two versions of the code, bit for bit.

`record DIR` trains small runs of every preset with the code at hand and keeps their losses,
weights, predictions and traces. `compare DIR` does the same with another version, compares
everything exactly, and opens the recorded runs and traces. Both must run on the same machine with
the same version of torch: other processors round differently.

    python -m benchmarks.tools.regression record baseline
    python -m benchmarks.tools.regression compare baseline --quick
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load_file

SETTINGS = ("seed=7", "batch_tokens=256", "eval_pairs=4", "device=cpu", "threads=1", "precision=32")
#: loss of every single step: the mean over the steps since the last evaluation
EVERY_STEP = ("steps=100", "eval_every=1", "patience=1000")
FEW_STEPS = ("steps=6", "eval_every=3")


class Case(NamedTuple):
    """One training run: its data file, preset and settings, and a source to predict."""

    data: str
    preset: str
    settings: tuple[str, ...]
    quick: bool = False


CASES = {
    "bahdanau": Case("pairs.tsv", "bahdanau", EVERY_STEP, quick=True),
    "self-attentive": Case("pairs.tsv", "self-attentive", EVERY_STEP, quick=True),
    "transformer": Case("pairs.tsv", "transformer", EVERY_STEP, quick=True),
    "vectors": Case("vectors.jsonl", "bahdanau", FEW_STEPS, quick=True),
    "tags": Case(
        "tags.tsv", "rnn", ("src_tokenizer=space", "tgt_tokenizer=space", *FEW_STEPS), True
    ),
    "texts": Case("texts.txt", "lm-self-attentive", FEW_STEPS, quick=True),
    "features": Case("features.tsv", "pointer", ("ema=0.9", *FEW_STEPS)),
    "words": Case("words.tsv", "gnmt", ("tgt_tokenizer=bpe", *FEW_STEPS)),
    "shared": Case("words.tsv", "transformer", ("shared_vocab=true", "tied=all", *FEW_STEPS)),
    "rdrop": Case("pairs.tsv", "transformer", ("rdrop=1.0", "accumulate=2", *FEW_STEPS)),
    **{
        preset: Case("pairs.tsv", preset, FEW_STEPS)
        for preset in ("seq2seq", "memory", "luong", "rnn-dot", "monotonic", "conv")
    },
    **{preset: Case("texts.txt", preset, FEW_STEPS) for preset in ("lm-rnn", "lm-transformer")},
}
#: settings of the toys of tests, one for each combination of input and output
TOY_SETTINGS = ("seed=7", "device=cpu", "threads=1", "steps=6", "eval_every=2", "report=false")
RECIPES = ("cmudict-self-attentive", "tatoeba-en-fr-bahdanau", "sst2-vectors", "ptb-lstm")


def write_data(folder: Path) -> None:
    """Write one small file of each kind of data."""
    draw = random.Random(3)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 9))) for _ in range(400)]
    words = sorted(set(words))
    lines = {"pairs.tsv": [f"{w}\t{w[::-1].upper()}" for w in words]}
    phrases = [draw.choices(words[:40], k=draw.randint(2, 7)) for _ in range(300)]
    lines["words.tsv"] = [f"{' '.join(p)}\t{' '.join(reversed(p))} ." for p in phrases]
    lines["tags.tsv"] = [f"{' '.join(p)}\t{' '.join(w[0].upper() for w in p)}" for p in phrases]
    lines["texts.txt"] = [" ".join(p) + " ." for p in phrases]
    lines["features.tsv"] = [
        f"{w}\t{w}{tag}\tV;{tag.upper()}" for w in words for tag in ("ed", "ing")
    ]
    lines["vectors.jsonl"] = [
        json.dumps({"src": [[ord(c) / 100, len(w) * 1.0] for c in w], "tgt": w}) for w in words
    ]
    for name, content in lines.items():
        (folder / name).write_text("\n".join(content) + "\n", encoding="utf-8")


def regard(*args: str, cwd: Path, given: str | None = None) -> str:
    """Run a command of regard with the code that this process would import."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "regard", *args],
        cwd=cwd,
        input=given,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"regard {' '.join(args)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def sources(folder: Path, data: str) -> list[str]:
    """Return a few sources of a data file, as `regard predict` takes them."""
    lines = (folder / data).read_text(encoding="utf-8").splitlines()[:8]
    if data == "vectors.jsonl":
        return [json.dumps({"src": json.loads(line)["src"]}) for line in lines]
    if data == "features.tsv":
        return ["\t".join(line.split("\t")[::2]) for line in lines]
    if data == "texts.txt":
        return [" ".join(line.split()[:2]) for line in lines]
    return [line.split("\t")[0] for line in lines]


def predictions(folder: Path, run: Path, case: Case) -> dict[str, str]:
    """Return predictions with scores, and their traces, one JSON object a line."""
    given = "\n".join(sources(folder, case.data)) + "\n"
    file = "in.jsonl" if case.data.endswith(".jsonl") else "in.txt"
    (folder / file).write_text(given, encoding="utf-8")
    options = ["--device", "cpu", "--max-len", "12", "--jsonl", "--beam", "3", "--trace", "t.jsonl"]
    answers = regard("predict", str(run), file, *options, cwd=folder)
    return {"predictions": answers, "traces": (folder / "t.jsonl").read_text(encoding="utf-8")}


def _is_repeatable(name: str, value: Any) -> bool:
    """Return whether a column of the metrics is a number that does not depend on the clock."""
    measured = ("second", "per_s", "time", "checksum")
    return isinstance(value, int | float) and not any(word in name for word in measured)


def weight_hashes(run: Path) -> dict[str, str]:
    """Return a hash of each tensor of a run's model."""
    return {
        name: hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
        for name, tensor in load_file(run / "model.safetensors").items()
    }


def facts_of(folder: Path, run: Path, case: Case) -> dict[str, Any]:
    """Return what must not change: losses, weights, predictions and traces of a run."""
    return {**stored_facts(run), **predictions(folder, run, case)}


def stored_facts(run: Path) -> dict[str, Any]:
    """Return the scores of a run's evaluations, and hashes of its weights."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timeless = [
        {name: value for name, value in row.items() if _is_repeatable(name, value)} for row in rows
    ]
    return {"metrics": timeless, "weights": weight_hashes(run)}


def train(folder: Path, name: str, case: Case) -> Path:
    """Train a case's run in a folder that has its data."""
    run = folder / name
    options = ("--preset", case.preset, "--size", "tiny", "-o", name, "-q")
    regard("train", case.data, *options, *SETTINGS, *case.settings, cwd=folder)
    return run


def train_recipe(folder: Path, name: str, data: Path) -> dict[str, str]:
    """Return hashes of the weights after the first steps of a recipe, which show its batches."""
    out = f"recipe-{name}"
    options = ("--data-dir", str(data), "--no-test", "-q", "-o", out)
    settings = (
        "steps=2",
        "eval_every=2",
        "eval_pairs=2",
        "device=cpu",
        "precision=32",
        "threads=1",
    )
    smaller = () if "lstm" in name else ("hidden=32",)
    regard("train", f"recipes/{name}", *options, *settings, *smaller, cwd=folder)
    return weight_hashes(folder / out)


def write_toys(folder: Path) -> None:
    """Write the toys of the tests with what their runs are given, for this and later versions."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from tasks.toys import TOYS

    for name, toy in TOYS.items():
        place = folder / "toys" / name.replace(" ", "-").replace(",", "")
        place.mkdir(parents=True)
        count = 120 if toy.task == "series to forecast" else 40
        data = toy.write(place, count, 1)
        facts = {"data": data.name, "settings": toy.settings, "source": toy.source}
        (place / "toy.json").write_text(json.dumps({**facts, "is_file": toy.field != "text"}))


def toy_facts(toy: Path, run: Path) -> dict[str, Any]:
    """Train a run of a toy; return its scores, weights, predictions and what is shown."""
    facts = json.loads((toy / "toy.json").read_text())
    more = ("batch_sentences=8", "max_tgt_len=8", "-q")
    settings = (*TOY_SETTINGS, *more, *facts["settings"])
    regard("train", facts["data"], "-o", str(run), *settings, cwd=toy)
    return {**stored_facts(run), **toy_answers(toy, run)}


def toy_answers(toy: Path, run: Path) -> dict[str, str]:
    """Return what a run predicts and shows of its toy's source."""
    facts = json.loads((toy / "toy.json").read_text())
    files, given = ([facts["source"]], None) if facts["is_file"] else ([], facts["source"] + "\n")
    options = ("--device", "cpu", "--jsonl")
    predicted = regard("predict", str(run), *files, *options, cwd=toy, given=given)
    shown = regard("show", str(run), facts["source"], "--device", "cpu", "--json", cwd=toy)
    return {"predictions": predicted, "shown": shown.replace(str(run), "RUN")}


def chosen(arguments: argparse.Namespace) -> dict[str, Case]:
    """Return the cases to run."""
    if arguments.only:
        return {name: CASES[name] for name in arguments.only if name in CASES}
    return {n: case for n, case in CASES.items() if case.quick or not arguments.quick}


def toys(arguments: argparse.Namespace) -> list[Path]:
    """Return the folders of the recorded toys to run."""
    found = sorted((arguments.folder.resolve() / "toys").glob("*/"))
    return [toy for toy in found if not arguments.only or toy.name in arguments.only]


def record(arguments: argparse.Namespace) -> int:
    """Train all cases and keep what they gave."""
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_data(folder)
    for name, case in chosen(arguments).items():
        run = train(folder, name, case)
        (folder / f"{name}.json").write_text(json.dumps(facts_of(folder, run, case), indent=1))
        print(f"{name}: recorded", flush=True)
    if not arguments.only:
        write_toys(folder)
    for toy in toys(arguments):
        found = toy_facts(toy, toy / "run")
        (toy / "facts.json").write_text(json.dumps(found, indent=1))
        print(f"toy {toy.name}: recorded", flush=True)
    for name in RECIPES if arguments.data else ():
        weights = train_recipe(folder, name, arguments.data.resolve())
        (folder / f"recipe-{name}.json").write_text(json.dumps(weights))
        print(f"recipe {name}: recorded", flush=True)
    return 0


def differences(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each fact that has changed."""
    for fact, value in before.items():
        if after[fact] != value:
            yield f"{name}: {fact} differ"


def compare(arguments: argparse.Namespace) -> int:
    """Train all cases again and open the recorded runs; return 1 if anything differs."""
    baseline, wrong = arguments.folder.resolve(), 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_data(folder)
        for name, case in chosen(arguments).items():
            before = json.loads((baseline / f"{name}.json").read_text())
            found = list(
                differences(name, before, facts_of(folder, train(folder, name, case), case))
            )
            opened = predictions(folder, baseline / name, case)
            before_opened = {fact: before[fact] for fact in opened}
            found += differences(f"the recorded run of {name}", before_opened, opened)
            (folder / "recorded.jsonl").write_text(before["traces"], encoding="utf-8")
            regard("show", "recorded.jsonl", "--json", cwd=folder)
            steps = len(before["metrics"])
            print("\n".join(found) or f"{name}: equal ({steps} evaluations)", flush=True)
            wrong += len(found)
        for toy in toys(arguments):
            before = json.loads((toy / "facts.json").read_text())
            opened = toy_answers(toy, toy / "run")
            found = list(
                differences(f"toy {toy.name}", before, toy_facts(toy, folder / toy.name / "run"))
            )
            before_opened = {fact: before[fact] for fact in opened}
            found += differences(f"the recorded run of toy {toy.name}", before_opened, opened)
            print("\n".join(found) or f"toy {toy.name}: equal", flush=True)
            wrong += len(found)
        for name in RECIPES if arguments.data else ():
            before = json.loads((baseline / f"recipe-{name}.json").read_text())
            same = train_recipe(folder, name, arguments.data.resolve()) == before
            print(f"recipe {name}: {'equal' if same else 'weights differ'}", flush=True)
            wrong += not same
    return int(wrong > 0)


def main() -> int:
    """Read the command line and run one of the two commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true", help="six cases instead of all")
    parser.add_argument("--only", nargs="*", metavar="CASE", help="these cases or toys alone")
    parser.add_argument(
        "--data", type=Path, help="folder of public data sets: recipes are compared too"
    )
    arguments = parser.parse_args()
    return record(arguments) if arguments.command == "record" else compare(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
