"""Examples for `regard compare` and `regard heads`: pairs, texts of a file, or one text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard import api
from regard.api.evaluate_pairs import references_of
from regard.api.word_alignment import Places
from regard.cli.commands import CompareArgs, HeadsArgs
from regard.cli.input_lines import (
    OPTIONS,
    named_columns,
    one_source,
    pairs_for,
    sources_of,
    texts_for,
)
from regard.data import Pair, read_pairs
from regard.pretrained import PretrainedModel

#: endings of files with a text on each line, and of other files of data
TEXT_ENDINGS: Final = (".txt",)
PAIR_ENDINGS: Final = (".tsv", ".csv", ".jsonl", ".json", ".parquet", ".npy", ".gz")


class ExampleFile(NamedTuple):
    """Sources of a model and, if they come from pairs, their targets.

    Attributes:
        sources: as the model reads them; of a language model, texts.
        pairs: None if there are no targets.
        places: lines of the file that the pairs come from.
    """

    sources: list[Any]
    pairs: list[Pair] | None = None
    places: Places | None = None

    @property
    def references(self) -> list[list[str]] | None:
        """The accepted targets of each source."""
        return None if self.pairs is None else references_of(self.pairs)

    def some(self, rows: Sequence[int]) -> "ExampleFile":
        """Return the examples of these numbers, from 0."""
        pairs = None if self.pairs is None else [self.pairs[i] for i in rows]
        return ExampleFile([self.sources[i] for i in rows], pairs, self.places)


def read_examples(
    model: api.Model | PretrainedModel, file: str, args: CompareArgs | HeadsArgs
) -> ExampleFile:
    """Read a file by its ending (.txt has texts, others pairs), stdin as texts, or a text itself.

    Args:
        model: a run, which says how its data are laid out; or a model of transformers.
        file: name of a file, `-` for stdin, or a text.
        args: targets in another file, columns, and whether bad lines are left out.
    """
    ending = Path(file).suffix.lower()
    is_file = Path(file).is_file() or ending in (*TEXT_ENDINGS, *PAIR_ENDINGS)
    if isinstance(model, PretrainedModel):
        if is_file and ending not in TEXT_ENDINGS and model.task == "text2text-generation":
            return _plain_pairs(file, args)
        return ExampleFile(list(sources_of(model, file)) if is_file or file == "-" else [file])
    if not model.task.has_sources:
        texts = texts_for(model, file, skip_bad=args.skip_bad) if is_file or file == "-" else [file]
        return ExampleFile(texts)
    if args.tgt is None and (file == "-" or ending in TEXT_ENDINGS):
        return ExampleFile(list(sources_of(model, file)))
    if not is_file and args.tgt is None:
        return ExampleFile([one_source(model, file)])
    bad: list[int] = []
    pairs = pairs_for(model, file, args, bad)
    return ExampleFile([model.task.input.of_pair(p) for p in pairs], pairs, Places.of(pairs, bad))


def _plain_pairs(file: str, args: CompareArgs | HeadsArgs) -> ExampleFile:
    """Read pairs for a model of transformers, whose own data are not known."""
    bad: list[int] = []
    reader = read_pairs(
        file,
        tgt_file=args.tgt,
        columns=named_columns(args.columns),
        skip_bad=args.skip_bad,
        on_bad=lambda error: bad.append(error.line or 0),
        advice=OPTIONS,
    )
    pairs = list(reader)
    return ExampleFile([pair.src for pair in pairs], pairs, Places.of(pairs, bad))
