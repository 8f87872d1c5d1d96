"""The whole life of a run of each input and output: the table of docs/guides/tasks.md.

PYTHONPATH=tests python -m tasks.life            # write the table anew
PYTHONPATH=tests python -m tasks.life series     # walk through one kind, and print its row
"""

import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

import regard as package
from cli.tools import done, regard, sentence
from export.tools import run_readme
from regard.export.decode import Exported, ExportedNumbers
from regard.serve.served_models import Models
from regard.tasks import INPUTS, OUTPUTS, refusal
from regard.training import RunFolder
from serve.conftest import client_of
from tasks.toys import TOYS, Toy

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "tasks.md"
VERBS = ("train", "resume", "predict", "evaluate", "show", "check", "serve", "export")
BRIEF = ("device=cpu", "steps=4", "eval_every=2", "save_every=2", "report=false")
BRIEF = (*BRIEF, "batch_sentences=8", "max_tgt_len=8", "-q")
#: examples of training and test data; series need windows of both
COUNTS = {"series to forecast": (120, 120)}
BEGIN, END = "<!-- tasks -->", "<!-- /tasks -->"


class Life:
    """Runs of a toy dataset in a folder, and what each command does with them.

    `refused` has the sentence of each command that does not take this kind.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.toy, self.folder = name, TOYS[name], folder
        train, test = COUNTS.get(self.toy.task, (40, 6))
        self.data, self.test = self.toy.write(folder, train, 1), self.toy.write(folder, test, 2)
        self.run, self.refused = folder / "run", {}

    def walk(self, *verbs: str) -> dict[str, str]:
        """Try commands in order; returns "yes" or "no" for each, and raises if one fails."""
        return {verb: "yes" if getattr(self, verb)() else "no" for verb in verbs}

    def train(self) -> bool:
        done(regard("train", self.data, "-o", self.run, *self.settings))
        task = RunFolder(self.run).load("cpu").task
        assert str(task) == self.toy.task
        return True

    @property
    def settings(self) -> tuple[str, ...]:
        return (*BRIEF, *self.toy.settings)

    def resume(self) -> bool:
        """Kill a run at a checkpoint, and end it: it has the weights of one that nobody killed."""
        other = self.folder / "killed"
        process = multiprocessing.get_context("fork").Process(target=self._die, args=(other,))
        process.start()
        process.join(300)
        assert process.exitcode == -signal.SIGKILL
        assert max((other / "checkpoints").glob("*.json")).stem == "step-00000002"
        done(regard("train", "--resume", other, "-q"))
        for file in ("model.safetensors", "calibration.safetensors"):
            assert_same_tensors(self.run / file, other / file)
        assert scores(self.run) == scores(other)
        return True

    def _die(self, output: Path) -> None:
        replace = os.replace

        def deadly(source, target):
            replace(source, target)
            name = Path(target)
            if name.match("checkpoints/step-*.json") and int(name.stem.removeprefix("step-")) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = deadly
        torch.set_num_threads(1)
        regard("train", self.data, "-o", output, *self.settings)

    @property
    def given(self) -> str:
        return self.toy.given(self.folder)

    def predict(self) -> bool:
        files = [self.given] if self.toy.field != "text" else []
        results = [
            done(regard("predict", self.run, *files, *form, stdin=self.toy.source + "\n"))
            for form in ((), ("--jsonl",))
        ]
        assert results[0].endswith("\n")
        json.loads(results[1])
        return True

    def evaluate(self) -> bool:
        found = json.loads(done(regard("evaluate", self.run, self.test, "--json")))
        assert found
        return True

    def show(self) -> bool:
        result = regard("show", self.run, self.given)
        if result.exit_code:
            return self._refuse("show", result)
        done(result)
        # each kind has one of the files, which are drawn from the same trace
        ending = ("html", "svg", "json")[list(TOYS).index(self.name) % 3]
        path = self.folder / f"shown.{ending}"
        done(regard("show", self.run, self.given, "-o", path))
        assert path.stat().st_size > 500
        return True

    def check(self) -> bool:
        assert len(done(regard("check", self.run, self.given)).split()) > 5
        return True

    def serve(self) -> bool:
        with client_of(Models.load([self.run], device="cpu")) as client:
            assert client.get("/").status_code == 200
            body = self.toy.body(self.folder)
            for verb in ("run", "check"):
                reply = client.post(f"/api/{verb}", json=body)
                assert reply.status_code == 200, reply.text
                assert reply.json()["format"].startswith("regard-")
            last = client.post("/api/stream", json=body).text.strip().split("\n\n")[-1]
            assert last.startswith("event: done")
            assert client.lines == []
        return True

    def export(self) -> bool:
        """Write graphs, which `regard export` compares with the model, and try their program."""
        output = self.folder / "onnx"
        result = regard("export", self.run, "-o", output)
        if result.exit_code:
            assert not output.exists()
            return self._refuse("export", result)
        done(result)
        if not self.toy.task.startswith("sound"):  # whose program reads log-mel frames
            model, source = package.load(self.run, device="cpu"), self.given
            assert_same_answer(output, source, model(source))
        if {*self.toy.task.split()} & {"series", "number", "picture", "story"}:
            run_readme(output, blocked=("torch", "regard"))
        return True

    def _refuse(self, verb: str, result) -> bool:
        said = sentence(result, result.exit_code)
        self.refused[verb] = said.replace(str(self.run), "RUN")
        return False


def assert_same_tensors(one: Path, other: Path) -> None:
    assert one.exists() == other.exists()
    if not one.exists():
        return
    a, b = load_file(one), load_file(other)
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def assert_same_answer(folder: Path, source: str, right: Any) -> None:
    """Check that the program of an exported folder finds the prediction of the model."""
    if "numbers" not in json.loads((folder / "manifest.json").read_text()):
        assert Exported(folder)([source]) == [right.text]
        return
    (found,) = ExportedNumbers(folder)([source])
    numbers = [right.value] if hasattr(right, "value") else right.point.ravel()
    assert np.allclose(found[..., 0].ravel(), numbers, rtol=1e-5)
    if found.shape[-1] > 1:
        assert np.allclose(found[..., 1:], right.quantiles, rtol=1e-5)


def scores(run: Path) -> list[dict]:
    rows = RunFolder(run).read_metrics()
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def row_of(name: str, toy: Toy, found: dict[str, str]) -> str:
    return f"| {name} | {toy.task} | {' | '.join(found[verb] for verb in VERBS)} |"


def refusals(life: Life) -> list[str]:
    return [f"- {life.name}, `regard {verb}`: {said}" for verb, said in life.refused.items()]


def table(lives: dict[str, tuple[Life, dict[str, str]]]) -> str:
    """Return the table of all kinds, and the sentences of what is refused."""
    head = [
        f"| data | task | {' | '.join(VERBS)} |",
        f"|---|---|{'---|' * len(VERBS)}",
    ]
    rows = [row_of(name, life.toy, found) for name, (life, found) in lives.items()]
    said = [line for life, _ in lives.values() for line in refusals(life)]
    return "\n".join([matrix(), "", *head, *rows, "", *said])


def matrix() -> str:
    """Return the table of inputs by outputs: which go together, and why others do not."""
    able = {toy.task for toy in TOYS.values()}
    both = product(reversed(INPUTS), OUTPUTS)
    reasons = list(dict.fromkeys(filter(None, (refusal(*pair) for pair in both))))
    rows = [f"| | {' | '.join(OUTPUTS)} |", f"|---|{'---|' * len(OUTPUTS)}"]
    for read in reversed(INPUTS):
        cells = [
            "yes" if f"{read} to {write}" in able else str(1 + reasons.index(refusal(read, write)))
            for write in OUTPUTS
        ]
        rows.append(f"| {read} | {' | '.join(cells)} |")
    return "\n".join([*rows, "", *(f"{i}. {reason}." for i, reason in enumerate(reasons, 1))])


def in_guide() -> str:
    """Return the table as docs/guides/tasks.md has it."""
    return GUIDE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


def main(names: list[str]) -> None:
    lives = {}
    for name in names or TOYS:
        with tempfile.TemporaryDirectory() as folder:
            life = Life(name, Path(folder))
            lives[name] = life, life.walk(*VERBS)
            print(row_of(name, life.toy, lives[name][1]), *refusals(life), sep="\n", flush=True)
    if names:
        return
    text = GUIDE.read_text(encoding="utf-8")
    new = f"{BEGIN}\n{table(lives)}\n{END}"
    GUIDE.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: new, text, flags=re.DOTALL))


if __name__ == "__main__":
    main(sys.argv[1:])
