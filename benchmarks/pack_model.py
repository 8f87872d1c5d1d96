"""Pack a run as the bundled g2p model, with a model card.

    python benchmarks/pack_model.py runs/g2p

The run is one of the CMU pronouncing dictionary. It is scored on all test words before and after
its weights are halved. Nothing of the machine that it was trained on is kept.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

import regard
from provenance import ROOT
from regard import api
from regard.data import Pair, Tokenizer, read_pairs, require_tokenizer
from regard.errors import RegardError
from regard.evaluation import by_length, score
from regard.recipes import RECIPE_DIR, load_saved, result_file
from regard.symbols import SYMBOLS
from regard.training import RunError, RunFolder
from regard.training.config import Config
from regard.version import __version__

BUNDLED: Final = ROOT / "src" / "regard" / "bundled"
CMUDICT: Final = BUNDLED / "cmudict"
TEST: Final = "src/regard/bundled/cmudict/test.tsv.gz"
#: mistakes that the card shows
MISTAKES: Final = 8

CARD: Final = """# {name}

A model that comes with regard: it pronounces English words, and shows where it looked.

| | |
|---|---|
| what it is | English words to phonemes (ARPAbet without stress) |
| score | {score} |
| scored on | {pairs:,} test words that it has not seen, beam {beam} |
| model | preset `{preset}`, {weights:,} weights in float16 ({loss}) |
| data | the CMU pronouncing dictionary, in the split of the literature on g2p |
| licence | Apache-2.0; of the data, BSD-2-Clause, see LICENSE.txt |
| trained by | {trained} |
| packed by | regard {version}, torch {torch} |

## Use it

```
regard show {name} attention
regard show {name} knight
regard show {name} choir
regard show {name} rhythm
regard show {name} bouquet
echo attention | regard predict {name}
regard serve
```

```python
import regard

regard.load("{name}")("attention").text
```

Small letters and capitals are the same to it.

## Make it again

```
{command}
python benchmarks/pack_model.py RUN
```

Settings that are not defaults:

```json
{settings}
```

## Scores

`regard evaluate {name} {test} --by-length` prints them again.
An answer is right if it is any of the pronunciations that the dictionary has.

| letters | words | phoneme error rate |
|---|---|---|
{lengths}

## What it is not good at

- It knows `{letters}`, small or capital, and nothing else: no accents,
  digits, hyphens or other scripts. It reads `<unk>` in their place, and says so.
- It reads one word at a time. It spells no abbreviations out, and cannot tell the verb "read" from
  its past.
- It writes no stress, and American English alone. What is wrong in the dictionary, it has learned.
- It gives an answer to anything. The probability of each phoneme says how sure it was; its
  attention says where it looked, not why it answered.

Some of its mistakes among the test words:

| word | it writes | the dictionary has |
|---|---|---|
{mistakes}

## Licence of the data

The weights were learned from the CMU pronouncing dictionary, Copyright (C) 1993-2015 Carnegie
Mellon University, all rights reserved. Its conditions and its disclaimer are in LICENSE.txt.
"""


class Scores(NamedTuple):
    """Scores of a model on the test words, and its predictions."""

    per: float
    exact: float
    answers: list[str]

    @staticmethod
    def of(model: api.Model, pairs: list[Pair]) -> "Scores":
        """Score a model's predictions."""
        answers = [out.text for out in model.predict([p.src for p in pairs], attention=False)]
        found = [score(name, answers, references(pairs)).value for name in ("per", "exact")]
        return Scores(found[0], found[1], answers)

    def __str__(self) -> str:
        return f"phoneme error rate {self.per:.2%}, {self.exact:.2%} of words right"


def references(pairs: list[Pair]) -> list[list[str]]:
    return [[pair.tgt, *pair.more] for pair in pairs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--name", default="g2p", help="what users will call it")
    parser.add_argument("-o", "--output", type=Path, help="the folder; by default in the package")
    parser.add_argument("--command", help="how the run was made; by default from its settings")
    parser.add_argument("--test-words", type=int, help="score fewer words, to try this out")
    options = parser.parse_args()
    output = RunFolder(options.output or BUNDLED / options.name)
    try:
        make(options.run, output, options)
    except RegardError as error:
        parser.exit(1, f"{error}\n")


def make(run: Path, output: RunFolder, options: argparse.Namespace) -> None:
    """Pack a run, score it before and after, and write the card."""
    pairs = list(read_pairs(CMUDICT / "test.tsv.gz", references=True))[: options.test_words]
    before = Scores.of(regard.load(run), pairs)
    print(f"{run}: {before}")
    pack(RunFolder(run), output, src_case="upper")
    shutil.copyfile(CMUDICT / "LICENSE.txt", output.path / "LICENSE.txt")
    model = regard.load(output.path)
    after = Scores.of(model, pairs)
    made = {"command": options.command or command(run), "trained": training(run)}
    text = card(options.name, model, pairs, before, after, made)
    output.card_file.write_text(text, encoding="utf-8")
    size = sum(file.stat().st_size for file in output.path.iterdir())
    print(f"{output.path}: {after}; {size / 1e6:.2f} MB")


def training(run: Path) -> str:
    """Return what the result of a recipe's run says about its training."""
    result = result_file.read(run)
    if result is None or "training" not in result:
        return "the command below"
    how = result["training"]
    versions = result["versions"]
    return (
        f"{result['device']}: {how['steps']:,} steps in {how['minutes']:.1f} minutes, torch "
        f"{versions['torch']}, regard {versions['regard']} at commit {result['commit'][:12]}"
    )


def card(
    name: str,
    model: api.Model,
    pairs: list[Pair],
    before: Scores,
    after: Scores,
    made: dict[str, str],
) -> str:
    """Return the model card; all its numbers are measured here."""
    known = model.src_tokenizer.tokens(range(len(SYMBOLS), model.src_tokenizer.vocab_size))
    same = after[:2] == before[:2]
    return CARD.format(
        name=name,
        score=after,
        loss="which changed no score" if same else f"in float32: {before}",
        pairs=len(pairs),
        beam=model.config.beam,
        preset=model.config.preset,
        weights=sum(p.numel() for p in model.module.parameters()),
        version=__version__,
        torch=torch.__version__.partition("+")[0],
        **made,
        settings=json.dumps(changed(model.config), indent=2),
        test=TEST,
        lengths=length_rows(model, pairs, after),
        letters="".join(sorted(known)),
        mistakes="\n".join(mistakes(pairs, after)),
    )


def length_rows(model: api.Model, pairs: list[Pair], found: Scores) -> str:
    sizes = [len(model.src_tokenizer.encode(pair.src)) for pair in pairs]
    rows = by_length(["per"], sizes, found.answers, references(pairs))
    return "\n".join(
        f"| {'-'.join(dict.fromkeys(map(str, (row.shortest, row.longest))))} | {row.count:,} "
        f"| {row.values['per']:.2%} |"
        for row in rows
    )


def mistakes(pairs: list[Pair], found: Scores) -> list[str]:
    """Return some wrong predictions, spread over the test words."""
    wrong = [
        f"| {pair.src} | {answer} | {', or '.join([pair.tgt, *pair.more])} |"
        for pair, answer in zip(pairs, found.answers, strict=True)
        if answer not in (pair.tgt, *pair.more)
    ]
    return wrong[:: max(1, len(wrong) // MISTAKES)][:MISTAKES]


def changed(config: Config) -> dict[str, object]:
    """Return the settings that differ from the defaults, without files."""
    return without_places(config).model_dump(exclude_defaults=True)


def command(run: Path) -> str:
    """Return how to reproduce the run: by a recipe, or by its settings."""
    recipe = load_saved(run / RECIPE_DIR)
    if recipe is not None:
        return f"regard train recipes/{recipe.name} --data-dir DIR seed={recipe.seed}"
    words = dict(changed(RunFolder(run).read_config()))
    words |= words.pop("model", {})  # type: ignore[arg-type]
    settings = " ".join(f"{name}={json.dumps(value)}" for name, value in words.items())
    return f"regard train src/regard/bundled/cmudict/train.tsv.gz {settings}".replace('"', "")


def pack(run: RunFolder, output: RunFolder, *, src_case: str | None = None) -> None:
    """Write config, tokenisers and weights of a run to another folder.

    The weights are kept in float16, and are float32 again once they are loaded.

    Args:
        run: what to pack.
        output: a folder that holds no run.
        src_case: "lower" or "upper" for a run that has learned from letters of one case and shall
            take both; as the run has it if None.
    """
    output.check_new()
    saved = run.load()
    src = require_tokenizer(saved.src_tokenizer, "what is packed")
    src = src if src_case is None else src.in_case(src_case)
    config = without_places(saved.config)
    output.path.mkdir(parents=True, exist_ok=True)
    _write_tokenizers(output, src, saved.tgt_tokenizer)
    output.write_model(halved(saved.model.state_dict()))
    output.write_config(config.model_copy(update={"src_case": src.case}))


def without_places(config: Config) -> Config:
    """The settings without files, devices and threads of the machine that the run was made on."""
    own = ("data", "tgt", "dev", "dev_tgt", "device", "threads")
    return config.model_copy(update={name: Config.model_fields[name].default for name in own})


def halved(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights in float16; whole numbers stay as they are."""
    found = {}
    for name, weight in weights.items():
        found[name] = weight.to(torch.float16) if weight.is_floating_point() else weight
        if not found[name].isfinite().all():
            raise RunError(
                f"weights must be finite in float16 to be packed, but those of {name} reach "
                f"{weight.abs().max().item():g}: train the run again with more weight_decay."
            )
    return found


def _write_tokenizers(output: RunFolder, src: Tokenizer, tgt: Tokenizer) -> None:
    src.save(output.src_tokenizer_file)
    tgt.save(output.tgt_tokenizer_file)


if __name__ == "__main__":
    main()
