"""Language modelling: the Penn Treebank with the 10,000 words of Mikolov et al. (2010), and the
English sentences of Tatoeba.

Perplexity is per word and per line end. Each line is predicted by itself, unless the run's
`join_lines` lets the model see the lines before it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from regard.api import Model
from regard.data import Pair, join_lines, read_lines
from regard.recipes.paper_metrics import MetricValue
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import RecipeTask, TaskScores, find_file, split_train
from regard.recipes.tasks.tatoeba_files import tatoeba_pairs

FILES: Final = {"train": "train", "dev": "valid", "test": "test"}
#: room for all words of the files and the special symbols
SETTINGS: Final = {"tgt_tokenizer": "space", "vocab_size": 10_100}


def prepare(folder: Path) -> TaskData:
    """Read lines of words in their order."""
    sets = {
        name: [
            RecipeExample("", (line.strip(),))
            for line in read_lines(find_file(folder, "ptb", f"ptb.{file}.txt"))
            if line.strip()
        ]
        for name, file in FILES.items()
    }
    return split_train(sets, SETTINGS)


def prepare_tatoeba(folder: Path) -> TaskData:
    """Read the English sides of all pairs, each sentence once, in the split of the German ones."""
    pairs = {tgt: tatoeba_pairs(folder, tgt) for tgt in ("deu", "fra", "cmn")}
    sets = {
        name: list(dict.fromkeys(english for english, _ in pairs["deu"][name]))
        for name in ("dev", "test")
    }
    held = {english.lower() for name in sets for english in sets[name]}
    every = (pair for splits in pairs.values() for found in splits.values() for pair in found)
    train = dict.fromkeys(english for english, _ in every if english.lower() not in held)
    examples = {
        name: [RecipeExample("", (english,)) for english in found]
        for name, found in {"train": train, **sets}.items()
    }
    return split_train(examples, {"tgt_tokenizer": "word"})


def evaluate(
    model: Model, examples: Sequence[RecipeExample], decoding: Mapping[str, Any]
) -> TaskScores:
    """Return the perplexity of all lines together."""
    lines = (Pair("", example.references[0], i) for i, example in enumerate(examples, start=1))
    join = model.config.join_lines
    found = model.perplexity([pair.tgt for pair in join_lines(lines, join)])
    signature = f"perplexity|per:word|eos:counted|words:{found.words}|lines:{join}"
    return TaskScores([MetricValue("perplexity", found.per_word, signature, False)], [])


TASK: Final = RecipeTask(prepare, evaluate)
TATOEBA: Final = RecipeTask(prepare_tatoeba, evaluate)
