"""Measure the faithfulness of attribution methods on three models, for docs/attribution.md.

The models are the bundled `g2p`, an RNN with attention that reads words of the test set of CMUdict;
the bundled `reader`, a self-attentive language model that reads test sentences of its recipe; and a
Transformer language model that is trained here, on the letters of Tiny Shakespeare, in a few
minutes on a CPU. Questions are about the token that a model holds likeliest, and, as a contrast,
why not the second likeliest. `shuffled` is planted: the scores of ablation in random order.
`summed` is no method of regard: the sum of gradient times input over the numbers of a vector, where
`input-gradient` takes their norm.

    python benchmarks/faithfulness.py --data-dir DIR --json benchmarks/results/faithfulness.json
    python benchmarks/faithfulness.py --render
"""

import argparse
import gzip
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import provenance
import regard
from regard.models.protocol import inference
from regard.recipes import TASKS
from regard.seeing.attribution.faithfulness import as_numbers, measure, summarize
from regard.seeing.attribution.input_scorer import InputScorer, PrefixScorer, Question, SourceScorer
from regard.seeing.attribution.methods import METHODS, attribute, method_title, vector_gradients
from regard.seeing.attribution.replacements import token_replacements
from regard.symbols import BOS

RESULTS: Final = provenance.ROOT / "benchmarks" / "results" / "faithfulness.json"
PAGE: Final = provenance.ROOT / "docs" / "attribution.md"
BUNDLED: Final = Path(regard.__file__).parent / "bundled"
HEADING: Final = "## Measured on three models"
SHUFFLED: Final = "shuffled"
SUMMED: Final = "summed"
TITLES: Final = {
    **{name: method_title(name) for name in METHODS},
    SHUFFLED: "shuffled scores of ablation (planted)",
    SUMMED: "gradient x input, summed (not offered)",
    "random": "random order",
}
#: letters of a line that are read, words of a sentence, and outputs at its end that are asked about
LINE, SENTENCE, ASKED = 40, 10, 5


def words(count: int) -> tuple[dict[str, Any], Iterator[InputScorer]]:
    """Return the bundled model's description and a scorer for each of some test words."""
    model = regard.load("g2p", device="cpu")
    with gzip.open(BUNDLED / "cmudict" / "test.tsv.gz", "rt", encoding="utf-8") as file:
        known = sorted({line.split("\t")[0] for line in file})
    chosen = random.Random(1).sample([word for word in known if 5 <= len(word) <= 12], count)

    def scorers() -> Iterator[InputScorer]:
        for word in chosen:
            (row,) = model.source_ids([word])
            tgt = model.tgt_tokenizer.encode(model(word, beam=1).text)
            yield SourceScorer(model.module, row, tgt, model.kind.sources.replacements(row))

    about = {"model": "g2p", "preset": model.config.preset, "texts": "test words of CMUdict"}
    return about, scorers()


def sentences(count: int, data: Path) -> tuple[dict[str, Any], Iterator[InputScorer]]:
    """Return the bundled reader's description and scorers of some test sentences."""
    model = regard.load("reader", device="cpu")
    test = TASKS["tatoeba-english"].prepare(data).evaluation["test"]
    rows = [model.tgt_tokenizer.encode(example.references[0]) for example in test]
    chosen = random.Random(1).sample([row for row in rows if len(row) >= SENTENCE], count)
    texts = "test sentences of Tatoeba"
    about = {"model": "reader", "preset": model.config.preset, "texts": texts}
    return about, _prefix_scorers(model, [row[:SENTENCE] for row in chosen])


def _prefix_scorers(model: regard.Model, rows: Sequence[list[int]]) -> Iterator[InputScorer]:
    """Yield a scorer for the last outputs of each text."""
    for ids in rows:
        read = [BOS, *ids]
        others = [[BOS], *model.kind.sources.replacements(ids).others]
        yield PrefixScorer(model.module, read, [0] * ASKED, token_replacements(read, others))


def lines(count: int, steps: int) -> tuple[dict[str, Any], Iterator[InputScorer]]:
    """Train a language model; return its description and scorers of some held-out lines."""
    with gzip.open(BUNDLED / "tinyshakespeare" / "input.txt.gz", "rt", encoding="utf-8") as file:
        whole = [line.strip() for line in file if line.strip()]
    cut = len(whole) * 9 // 10
    settings = {"size": "tiny", "tgt_tokenizer": "char", "steps": steps, "seed": 1}
    held_out = whole[cut:]
    with tempfile.TemporaryDirectory() as folder:
        dev = Path(folder) / "dev.txt"
        dev.write_text("\n".join(held_out[:500]), encoding="utf-8")
        model = regard.fit(
            whole[:cut],
            "lm-transformer",
            dev=str(dev),
            output=Path(folder) / "run",
            device="cpu",
            quiet=True,
            **settings,
        )
        perplexity = model.perplexity(held_out[:1000]).value
    long_enough = [line for line in held_out[1000:] if len(line) >= LINE]
    chosen = random.Random(1).sample(long_enough, count)
    about = {
        "model": "lm-transformer",
        "preset": "lm-transformer",
        "texts": "held-out lines of Tiny Shakespeare",
        "settings": settings,
        "weights": sum(weight.numel() for weight in model.module.parameters()),
        "perplexity_per_letter": round(perplexity, 3),
    }
    rows = [model.tgt_tokenizer.encode(line[:LINE]) for line in chosen]
    return about, _prefix_scorers(model, rows)


def likeliest(scorer: InputScorer) -> list[Question]:
    """Return a question about the likeliest token of each output, with the second as `versus`."""
    with inference(scorer.model):
        best = scorer.replaced_logits([{}])[0].topk(2).indices.tolist()
    return [Question(t, first, second) for t, (first, second) in enumerate(best)]


def summed(scorer: InputScorer, questions: list[Question]) -> np.ndarray:
    """Return the sum of gradient times input, with its sign."""
    vectors = scorer.vectors()
    slopes = vector_gradients(scorer, questions, vectors)
    return np.einsum("qid,id->qi", slopes, (vectors - scorer.origin()).double().numpy())


def judged(scorers: Iterator[InputScorer]) -> dict[str, Any]:
    """Return the faithfulness of each method, alone and in contrast."""
    rng, found = np.random.default_rng(1), {"plain": [], "contrast": []}
    outputs, unavailable = 0, {}
    for number, scorer in enumerate(scorers):
        contrasts = likeliest(scorer)
        outputs += len(contrasts)
        for kind, asked in (
            ("plain", [question._replace(versus=None) for question in contrasts]),
            ("contrast", contrasts),
        ):
            given = attribute(scorer, asked)
            scores = dict(given.scores)
            scores[SHUFFLED] = rng.permuted(scores["ablation"], axis=1)
            scores[SUMMED] = summed(scorer, asked)
            found[kind].append(measure(scorer, asked, scores, seed=number))
            if kind == "plain":
                unavailable = given.unavailable
        print(f"{len(found['plain'])} texts", end="\r", file=sys.stderr)
    tables = {
        kind: {name: as_numbers(measures) for name, measures in summarize(texts).items()}
        for kind, texts in found.items()
    }
    return {"outputs": outputs, "unavailable": unavailable, **tables}


def run(count: int, steps: int, data: Path) -> dict[str, Any]:
    """Return the figures of all models."""
    torch.set_num_threads(1)
    made = []
    for prepare in (
        lambda: words(count),
        lambda: sentences(count, data),
        lambda: lines(count, steps),
    ):
        start = time.perf_counter()
        about, scorers = prepare()
        ready = time.perf_counter()
        table = judged(scorers)
        seconds = {"train": round(ready - start), "judge": round(time.perf_counter() - ready)}
        made.append({**about, "count": count, "seconds": seconds, **table})
    return {
        "command": provenance.command(["python", *sys.argv]),
        "machine": provenance.machine(),
        "source": provenance.source(),
        "versions": {"torch": torch.__version__, "regard": regard.__version__},
        "models": made,
    }


def page(text: str, result: dict[str, Any]) -> str:
    """Return docs/attribution.md with its last section made of the results."""
    parts = [text.partition(HEADING)[0] + HEADING, "", provenance.made_by(result), ""]
    for model in result["models"]:
        parts += [*_section(model), ""]
    return "\n".join(parts).rstrip() + "\n"


def _section(model: dict[str, Any]) -> Iterator[str]:
    title = f"### `{model['model']}`"
    size = f", {model['outputs']} outputs of {model['count']} {model['texts']}"
    if "weights" in model:
        steps = model["settings"]["steps"]
        title += f", trained for {steps:,} steps"
        size += (
            f"; {model['weights']:,} weights, perplexity {model['perplexity_per_letter']:.2f} "
            "per letter"
        )
    yield title
    yield ""
    yield f"Preset `{model['preset']}`{size}."
    yield ""
    yield _found(model)
    yield ""
    columns = (
        "gain",
        "insertion",
        "deletion",
        "comprehensiveness",
        "sufficiency",
        "contrast: gain",
    )
    yield f"| method | {' | '.join(columns)} |"
    yield "|---|" + "--:|" * len(columns)
    for name, row in model["plain"].items():
        cells = [_interval(row, "gain")]
        cells += [f"{row[key]:.3f}" for key in ("insertion", "deletion")]
        cells += [f"{row[key]:.3f}" for key in ("comprehensiveness", "sufficiency")]
        contrast = model["contrast"].get(name)
        cells.append("–" if contrast is None else _interval(contrast, "gain"))
        yield f"| {TITLES[name]} | {' | '.join(cells)} |"


def _interval(row: dict[str, float], key: str) -> str:
    return f"{row[key]:.3f} ({row[f'{key}_low']:.3f} to {row[f'{key}_high']:.3f})"


def _found(model: dict[str, Any]) -> str:
    """Return the findings in sentences."""
    table = model["plain"]
    real = [name for name in table if name in METHODS]
    best, rest = real[0], real[1:]
    close = [n for n in rest if table[n]["gain_high"] >= table[best]["gain_low"]]
    clear = [n for n in rest if n not in close]
    said = [f"The most faithful method is {TITLES[best]}"]
    if close:
        said[0] += f"; intervals that overlap its own: {_listed(close)}."
    else:
        said[0] += ", and no other interval overlaps its own."
    if best == "ablation" and rest:
        said.append(
            "Ablation takes inputs away in the manner of the measures, which favours it; of the "
            f"others, {TITLES[rest[0]]} is best."
        )
    if clear:
        said.append(f"Clearly less faithful: {_listed(clear)}.")
    useless = [n for n in real if table[n]["gain_low"] <= 0]
    if useless:
        said.append(f"No better than a random order: {_listed(useless)}.")
    planted = [n for n in real if table[n]["gain"] <= table[SHUFFLED]["gain"]]
    if planted:
        said.append(f"By their gain not above the planted wrong method: {_listed(planted)}.")
    else:
        said.append("The planted wrong method comes out worst.")
    said += [f"No {TITLES[name]}: {reason}." for name, reason in model["unavailable"].items()]
    return " ".join(said)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(TITLES[name] for name in names)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--texts", type=int, default=30)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("REGARD_DATA", "data"))
    parser.add_argument(
        "--render", action="store_true", help="write the last section of docs/attribution.md"
    )
    args = parser.parse_args()
    if args.render:
        before = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(page(before, json.loads(RESULTS.read_text())), encoding="utf-8")
    else:
        provenance.write(args.json, run(args.texts, args.steps, Path(args.data_dir)))
