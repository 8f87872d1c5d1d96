"""Pack a run as a bundled model, with a card: `regard show NAME` and `regard models NAME`.

    python -m benchmarks.tools.pack_model runs/g2p --name g2p --replace

The run is one of a recipe, whose test sets are in its folder, or any other with --test FILE. It is
scored before and after its weights are stored in fewer bits, and timed on two threads. What is said
of the model comes from benchmarks/tools/box/NAME.toml. Nothing of the machine that it was trained
on is kept.
"""

import argparse
import json
import shlex
import shutil
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from benchmarks.harness import ROOT
from regard import api
from regard.api.bundled_models import BundledCard, CardScore, CardText, render
from regard.api.evaluate_pairs import metric_names, score_predictions
from regard.data import Pair, Tokenizer, read_pairs, require_tokenizer
from regard.errors import ArgumentError, DataError, RegardError
from regard.messages import use_language
from regard.recipes import RECIPE_DIR, load_saved, result_file
from regard.recipes.task_data import RecipeExample, hash_order, read_evaluation
from regard.safe_read import explain
from regard.symbols import SYMBOLS
from regard.training import RunError, RunFolder
from regard.training.config import Config
from regard.training.weights_file import SCALES
from regard.version import __version__

BUNDLED: Final = ROOT / "src" / "regard" / "bundled"
BOX: Final = Path(__file__).resolve().parent / "box"
#: bytes of a bundled model, at most
MOST_BYTES: Final = 12_000_000
#: mistakes that the card shows, and characters of each cell at most
MISTAKES: Final = 8
CELL: Final = 80
#: sources that are timed, each as often, of which the fastest counts
TIMED: Final = 40
REPEATS: Final = 3
#: weights of a matrix from which on it is quantised, and columns, so that scales take little space
LEAST_WEIGHTS: Final = 1 << 12
LEAST_COLUMNS: Final = 16
LARGEST: Final = 127
#: sources that are predicted at a time when a model is scored
BATCH: Final = 128

TestSets = dict[str, list[RecipeExample]]


class BoxEntry(BaseModel):
    """What benchmarks/tools/box/NAME.toml says of a model.

    Attributes:
        licence: of the data, in short.
        attribution: to whom the data are due, in one line.
        notice: text of LICENSE.txt; or
        notice_file: the file in src/regard/bundled that it is copied from.
        credits: file beside the TOML with names that follow the notice.
        examples: sources to try, the best first.
        metrics: metrics of the card, the main one first; those that suit the targets if empty.
        src_case: "upper" or "lower" for a run of letters of one case that shall take both.
        en: sentences in English,
        zh: and in Chinese.
    """

    model_config = ConfigDict(extra="forbid")

    licence: str
    attribution: str
    notice: str = ""
    notice_file: str = ""
    credits: str = ""
    examples: tuple[str, ...]
    metrics: tuple[str, ...] = ()
    src_case: str | None = None
    en: CardText
    zh: CardText

    @staticmethod
    def read(name: str, box: Path = BOX) -> "BoxEntry":
        """Return the entry of a model; raises if it has none."""
        path = box / f"{name}.toml"
        if not path.exists():
            known = ", ".join(sorted(file.stem for file in box.glob("*.toml")))
            fix = f"write benchmarks/tools/box/{name}.toml"
            raise ArgumentError("--name", f"be one of {known}", repr(name), fix)
        try:
            return BoxEntry.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except (ValidationError, tomllib.TOMLDecodeError) as error:
            reason = explain(error) if isinstance(error, ValidationError) else str(error)
            raise DataError(str(path), None, reason, "correct it") from None

    def licence_text(self, box: Path = BOX) -> str:
        """Return the text of LICENSE.txt."""
        if self.notice_file:
            return (BUNDLED / self.notice_file).read_text(encoding="utf-8")
        credits = (box / self.credits).read_text(encoding="utf-8") if self.credits else ""
        return "\n".join(part for part in (self.notice.strip() + "\n", credits) if part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--name", help="name of the model; that of the run's recipe by default")
    parser.add_argument("-o", "--output", type=Path, help="the folder; by default in the package")
    parser.add_argument("--replace", action="store_true", help="replace a model that is there")
    parser.add_argument(
        "--refresh", action="store_true", help="replace it, but keep its scores: texts and time"
    )
    parser.add_argument("--bits", type=int, choices=(8, 16), default=8, help="of a weight")
    parser.add_argument("--test", type=Path, help="test pairs of a run that is not of a recipe")
    parser.add_argument("--test-rows", type=int, help="score fewer rows of each set, to try it out")
    parser.add_argument("--threads", type=int, default=2, help="of a CPU without other work")
    parser.add_argument("--command", help="how the run was made; by default from its settings")
    parser.add_argument("--trained", help="how it was trained; by default from its result.json")
    parser.add_argument("--device", default="auto", help="to score with; it is timed on the CPU")
    options = parser.parse_args()
    try:
        make(options)
    except RegardError as error:
        parser.exit(1, f"{error}\n")


def make(options: argparse.Namespace) -> None:
    """Pack a run, score it before and after, time it, and write the card."""
    run = RunFolder(options.run)
    name = options.name or _recipe_name(run.path)
    entry, sets = BoxEntry.read(name), test_sets(run.path, options.test, options.test_rows)
    output = options.output or BUNDLED / name
    if not (options.replace or options.refresh):
        RunFolder(output).check_new()
    earlier = BundledCard.read(output) if options.refresh else None

    def scored(folder: Path) -> tuple[Sequence[CardScore], Sequence[tuple[str, str, str]]]:
        if earlier is not None:
            kept = earlier.scores_32 if folder == run.path else earlier.scores
            return kept, earlier.mistakes
        return score(api.load_run(folder, device=options.device), sets, entry.metrics)

    before, _ = scored(run.path)
    print(f"{run.path} in 32 bits: {before[0]}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        packed = RunFolder(Path(place) / name)
        pack(run, packed, bits=options.bits, src_case=entry.src_case)
        after, wrong = scored(packed.path)
        card = make_card(name, entry, packed, bits=options.bits).model_copy(
            update={
                "ms_per_source": milliseconds(packed.path, sets, options.threads),
                "threads": options.threads,
                "scores": tuple(after),
                "scores_32": tuple(before),
                "mistakes": tuple(wrong),
                "trained": options.trained or training(run.path),
                "command": options.command or command(run.path),
            }
        )
        licence = entry.licence_text()
        (packed.path / "LICENSE.txt").write_text(licence, encoding="utf-8")
        write_card(packed, card)
        size = _bytes(packed.path)
        if size > MOST_BYTES:
            raise RunError(
                f"a bundled model must have {MOST_BYTES / 1e6:.0f} MB at most, but {name} has "
                f"{size / 1e6:.1f} MB: train a smaller one, or pack it with --bits 8."
            )
        if output.exists():
            shutil.rmtree(output)
        shutil.copytree(packed.path, output)
    cost = f"{size / 1e6:.2f} MB, {card.ms_per_source:.0f} ms per source"
    print(f"{output} in {options.bits} bits: {after[0]}; {cost}")


def test_sets(run: Path, file: Path | None, most: int | None) -> TestSets:
    """Return the test sets of a recipe's run, or the pairs of a file; at most `most` rows each."""
    if file is not None:
        pairs = read_pairs(file, references=True)
        sets = {"test": [RecipeExample(p.src, (p.tgt, *p.more), p.features) for p in pairs]}
    elif (run / RECIPE_DIR).is_dir():
        found = read_evaluation(run / RECIPE_DIR)
        sets = {name: rows for name, rows in found.items() if name.startswith("test")}
    else:
        sets = {}
    if not sets:
        fix = "give a file of test pairs with --test"
        raise ArgumentError("the run", "have test sets of its recipe", f"{run} without", fix)
    return {name: _some(rows, most) for name, rows in sets.items()}


def _some(rows: list[RecipeExample], most: int | None) -> list[RecipeExample]:
    """Return some rows of a set, spread over it."""
    return rows if most is None or len(rows) <= most else rows[:: len(rows) // most][:most]


def score(
    model: api.Model, sets: TestSets, metrics: Sequence[str]
) -> tuple[list[CardScore], list[tuple[str, str, str]]]:
    """Return the scores on each set and on each group of it, and some mistakes of the first."""
    if not model.task.has_sources:
        return [one for name, rows in sets.items() for one in perplexity(model, name, rows)], []
    names = metric_names(model.task.tokens.metrics(), metrics)
    scores: list[CardScore] = []
    wrong: list[tuple[str, str, str]] = []
    for name, rows in sets.items():
        inputs = [row.model_input for row in rows]
        answers = [out.text for out in model.predict(inputs, attention=False, batch=BATCH)]
        scores += _scores(model, name, names, rows, answers)
        groups = sorted({row.group for row in rows})
        for group in groups if len(groups) > 1 else ():
            mine = [i for i, row in enumerate(rows) if row.group == group]
            own = [rows[i] for i in mine], [answers[i] for i in mine]
            scores += _scores(model, f"{name}: {group}", names, *own)
        wrong = wrong or mistakes(model, rows, answers)
    return scores, wrong


def _scores(
    model: api.Model,
    name: str,
    metrics: Sequence[str],
    rows: Sequence[RecipeExample],
    answers: Sequence[str],
) -> list[CardScore]:
    pairs = [Pair(row.src, row.references[0], i, row.references[1:]) for i, row in enumerate(rows)]
    found = score_predictions(model.task, metrics, answers, pairs).rows
    return [
        CardScore(
            set=name,
            rows=len(rows),
            metric=one.name,
            value=one.value,
            low=one.low,
            high=one.high,
            signature=one.signature,
        )
        for one in found
    ]


def perplexity(model: api.Model, name: str, rows: Sequence[RecipeExample]) -> list[CardScore]:
    """Return the perplexity of a language model, per word and per token."""
    found = model.perplexity([row.references[0] for row in rows])
    how = f"eos:counted|unk:{found.unknown}|tok:{model.tgt_tokenizer.kind}|lines:1"
    units = [("perplexity-per-word", "word", found.per_word), ("perplexity", "token", found.value)]
    scores = []
    for metric, unit, value in units[: 1 if found.words == found.tokens else 2]:
        low, high = found.interval(per_word=unit == "word")
        one = {"set": name, "rows": len(rows), "metric": metric, "value": value}
        ends = {"low": low, "high": high, "signature": f"perplexity|per:{unit}|{how}"}
        scores.append(CardScore.model_validate(one | ends))
    return scores


def mistakes(
    model: api.Model, rows: Sequence[RecipeExample], answers: Sequence[str]
) -> list[tuple[str, str, str]]:
    """Return source, prediction and references of some wrong predictions, drawn by a hash."""
    normal = model.tgt_tokenizer.normalize
    wrong = [
        (row.model_input, answer, ", or ".join(row.references))
        for row, answer in zip(rows, answers, strict=True)
        if normal(answer) not in map(normal, row.references)
    ]
    drawn = sorted(wrong, key=lambda row: hash_order(row[0]))
    short = [row for row in drawn if all(len(cell) <= CELL for cell in row)]
    return short[:MISTAKES]


def make_card(name: str, entry: BoxEntry, packed: RunFolder, *, bits: int) -> BundledCard:
    """Return the card without what is measured, or known of the training."""
    model = api.load_run(packed.path, device="cpu")
    return BundledCard(
        name=name,
        text={"en": entry.en, "zh": entry.zh},
        examples=entry.examples,
        answers=answers(model, entry.examples),
        continues=not model.task.has_sources,
        scores=(),
        scores_32=(),
        beam=model.config.beam,
        preset=model.config.preset,
        weights=sum(p.numel() for p in model.module.parameters()),
        bits=bits,
        ms_per_source=0,
        threads=0,
        licence=entry.licence,
        attribution=entry.attribution,
        trained="",
        packed=f"regard {__version__}, torch {torch.__version__.partition('+')[0]}",
        command="",
        settings=changed(model.config),
        mistakes=(),
    )


def answers(model: api.Model, examples: Sequence[str]) -> tuple[str, ...]:
    """Return the answers to the examples; none of a language model."""
    found = model.predict(examples, attention=False) if model.task.has_sources else ()
    return tuple(output.text for output in found)


def milliseconds(run: Path, sets: TestSets, threads: int) -> float:
    """Return milliseconds of a prediction, or of reading a text, one at a time: the median."""
    model, rows = api.load_run(run, device="cpu"), next(iter(sets.values()))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        fastest = [min(_timed(model, row) for _ in range(REPEATS)) for row in _some(rows, TIMED)]
    finally:
        torch.set_num_threads(before)
    return round(1000 * median(fastest), 1)


def _timed(model: api.Model, row: RecipeExample) -> float:
    """Return the seconds of one prediction, or of reading one text."""
    began = time.perf_counter()
    if model.task.has_sources:
        next(model.predict([row.model_input], attention=False))
    else:
        model.trace("", row.references[0])
    return time.perf_counter() - began


def write_card(folder: RunFolder, card: BundledCard) -> None:
    """Write card.json, and README.md from it."""
    card.write(folder.path)
    with use_language("en"):
        for _ in range(2):  # the size on the second counts the first
            folder.card_file.write_text(render(card, _bytes(folder.path)), encoding="utf-8")


def training(run: Path) -> str:
    """Return device, duration and versions of a recipe's run; or what its earlier card says."""
    result = result_file.read(run)
    if result is None or "training" not in result:
        earlier = BundledCard.read(run)
        return "the command below" if earlier is None else earlier.trained
    how = result["training"]
    versions = result["versions"]
    device = "CPU" if result["device"] == "cpu" else result["device"]
    commit = f" at commit {result['commit'][:12]}" if result.get("commit") else ""
    return (
        f"{device}: {how['steps']:,} steps in {how['minutes']:.1f} minutes, torch "
        f"{versions['torch']}, regard {versions['regard']}{commit}"
    )


def command(run: Path) -> str:
    """Return how to reproduce the run: by its recipe, or by its settings."""
    recipe, result = load_saved(run / RECIPE_DIR), result_file.read(run)
    if recipe is not None:
        typed = f"regard train recipes/{recipe.name}" if result is None else result["command"]
        return f"{typed} --data-dir DIR"
    if (earlier := BundledCard.read(run)) is not None:
        return earlier.command
    words: dict[str, Any] = dict(changed(RunFolder(run).read_config()))
    words |= words.pop("model", {})
    settings = (shlex.quote(f"{key}={_word(value)}") for key, value in words.items())
    return " ".join(["regard train pairs.tsv", *settings])


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _recipe_name(run: Path) -> str:
    recipe = load_saved(run / RECIPE_DIR)
    if recipe is None:
        raise ArgumentError("--name", "be given for a run without recipe", "missing", "name it")
    return recipe.name


def changed(config: Config) -> dict[str, Any]:
    """Return the settings that differ from the defaults, without files."""
    return without_places(config).model_dump(exclude_defaults=True, mode="json")


def pack(run: RunFolder, output: RunFolder, *, bits: int = 16, src_case: str | None = None) -> None:
    """Write config, tokenisers and weights of a run to another folder.

    The weights are stored in fewer bits, and are float32 again once they are loaded.

    Args:
        run: what to pack.
        output: a folder that holds no run.
        bits: of a weight of a large matrix; others have 16.
        src_case: "lower" or "upper" for a run that has learned from letters of one case and shall
            take both; as the run has it if None.
    """
    output.check_new()
    saved = run.load()
    src = require_tokenizer(saved.src_tokenizer, "what is packed")
    src = src if src_case is None else in_case(src, src_case)
    config = without_places(saved.config)
    output.path.mkdir(parents=True, exist_ok=True)
    src.save(output.src_tokenizer_file)
    saved.tgt_tokenizer.save(output.tgt_tokenizer_file)
    weights = saved.model.state_dict()
    output.write_model(quantize_rows(check_range(weights)) if bits == 8 else halved(weights))
    output.write_config(config.model_copy(update={"src_case": src.case}))


def in_case(tokenizer: Tokenizer, case: str) -> Tokenizer:
    """Return a tokeniser with case conversion; raises unless all tokens have that case."""
    tokens = tokenizer.tokens(range(len(SYMBOLS), tokenizer.vocab_size))
    for token in tokens:
        if getattr(token, case)() != token:
            rule = "leave all tokens as they are"
            raise ArgumentError("case", rule, f"{case}, which turns {token!r}", "keep")
    return Tokenizer.from_json("tokenizer", {**tokenizer.to_json(), "case": case})


def without_places(config: Config) -> Config:
    """Return the settings without files, devices and threads of the machine of the run."""
    own = ("data", "tgt", "dev", "dev_tgt", "device", "threads", "src_vectors", "tgt_vectors")
    own += ("teacher", "teacher_weight")
    return config.model_copy(update={name: Config.model_fields[name].default for name in own})


def quantize_rows(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors to store: large matrices in int8 with a scale for each row, others in float16.

    Every axis of a tensor but the first is part of a row. Integers stay as they are.
    """
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if not weight.is_floating_point():
            found[name] = weight
        elif weight.dim() < 2 or weight.numel() < max(LEAST_WEIGHTS, LEAST_COLUMNS * len(weight)):
            found[name] = weight.to(torch.float16)
        else:
            rows = weight.detach().float().flatten(1)
            scales = (rows.abs().amax(dim=1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
            levels = (rows / scales[:, None]).round().clamp(-LARGEST, LARGEST)
            found[name] = levels.to(torch.int8).view(weight.shape)
            found[name + SCALES] = scales
    return found


def halved(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights in float16; integers stay as they are."""
    return {
        name: weight.to(torch.float16) if weight.is_floating_point() else weight
        for name, weight in check_range(weights).items()
    }


def check_range(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the weights; raises RunError if some are too large for float16."""
    for name, weight in weights.items():
        if weight.is_floating_point() and not weight.to(torch.float16).isfinite().all():
            raise RunError(
                f"weights must be finite in float16 to be packed, but those of {name} reach "
                f"{weight.abs().max().item():g}: train the run again with more weight_decay."
            )
    return weights


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


if __name__ == "__main__":
    main()
