"""Newspaper text, word by word: the Penn Treebank with the 10,000 words of Mikolov et al. (2010).

Perplexity is per word and per line end. Each line is foreseen by itself, unless the run's
`join_lines` lets the model see the lines before it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from regard.api import Model
from regard.data import Pair, join_lines, read_lines
from regard.recipes.examples import Example, Prepared
from regard.recipes.figures import Figure
from regard.recipes.tasks.reading import find
from regard.recipes.tasks.task import Task, Verdict

FOLDER: Final = "ptb"
FILES: Final = {"train": "train", "dev": "valid", "test": "test"}
#: room for all words of the files, and for the special symbols
SETTINGS: Final = {"tgt_tokenizer": "space", "vocab_size": 10_100}


def prepare(folder: Path) -> Prepared:
    """Lines of words, in their order."""
    sets = {
        name: [
            Example("", (line.strip(),))
            for line in read_lines(find(folder, FOLDER, f"ptb.{file}.txt"))
            if line.strip()
        ]
        for name, file in FILES.items()
    }
    train = sets.pop("train")
    return Prepared(train, sets, SETTINGS)


def judge(model: Model, examples: Sequence[Example], decoding: Mapping[str, Any]) -> Verdict:
    """The perplexity of all lines together."""
    lines = (Pair("", example.references[0], i) for i, example in enumerate(examples, start=1))
    join = model.config.join_lines
    found = model.perplexity([pair.tgt for pair in join_lines(lines, join)])
    signature = f"perplexity|per:word|eos:counted|words:{found.words}|lines:{join}"
    return Verdict([Figure("perplexity", found.per_word, signature, False)], [])


TASK: Final = Task(prepare, judge)
