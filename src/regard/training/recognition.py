"""Settings that follow from the first examples, where a user names no preset.

Labels, frames, pictures and sounds are recognised by their task later on. What is decided here has
settings of its own: a text without targets, questions whose answers stand in their passage, and
targets that are numbers.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from regard.data import Pair
from regard.data.error_hints import BadLine
from regard.data.lookup_codecs import split_labels
from regard.data.series import recognise_series
from regard.data.shards import is_sharded
from regard.data.stories import Story
from regard.data.table_files import kind_of
from regard.data.text_files import STDIN, format_suffix, media_folder, numbered_lines
from regard.data.tokenizer_selection import find_separator
from regard.errors import DataError
from regard.messages import message
from regard.tasks.inputs.series import SeriesInput
from regard.tasks.inputs.story import why_questions
from regard.tasks.outputs.number import plain_number
from regard.training.config import Config, make_config
from regard.training.run_files import FIRST_EXAMPLES, Examples, PairSource

#: endings of files that may hold plain text
TEXT_SUFFIXES: Final = ("", ".txt", ".text", ".md")
#: settings that say what is read or written, so that nothing is left to recognise
DECIDING: Final = ("preset", "tgt", "tgt_tokenizer", "features", "teacher", "metric")
#: source tokens that passages with questions may have, which are longer than sentences
PASSAGE: Final = 512
#: examples by which labels are told from texts with a comma in them
MANY_EXAMPLES: Final = 1000
#: times that each answer occurs at least, on average, if answers are a few to choose from
EACH_ANSWER: Final = 5


def recognised(config: Config, pairs: PairSource | None, say: Callable[[str], None]) -> Config:
    """Return the settings with those that the first examples ask for; say which and why."""
    given = config.model_fields_set
    if given & {*DECIDING} or config.model or config.task_options:
        return config
    found, why = _of_examples(config, pairs)
    # a length that a user has chosen stays
    found = {name: value for name, value in found.items() if name not in given}
    if not found:
        return config
    if why:
        say(why)
    return make_config(found, config)


def _of_examples(config: Config, pairs: PairSource | None) -> tuple[dict[str, Any], str]:
    """Return settings by name, and a sentence about them or ""."""
    if pairs is None:
        if not isinstance(config.data, str) or config.data in ("", STDIN):
            return {}, ""
        if is_sharded(config.data) or (
            SeriesInput.is_possible(config) and recognise_series(config.data) is not None
        ):
            return {}, ""
        if _is_plain_text(config):
            return {"preset": "lm-transformer"}, message("train.found.text", file=config.data)
    try:
        files = Examples(config, Path(), pairs)
        first = files.first()
    except DataError:  # said where the data are read
        return {}, ""
    if why_questions(first):
        if _stand_in_passages(first):
            return {"preset": "span", "max_src_len": PASSAGE}, message("train.found.spans")
        if EACH_ANSWER * len({pair.tgt for pair in first}) <= len(first):
            return {"preset": "memory-network"}, message("train.found.memory")
        return {"max_src_len": PASSAGE}, ""
    if _are_numbers([pair.tgt for pair in first]):
        return {"numbers": True}, message("train.found.numbers", target=first[0].tgt)
    if separator := find_separator(pair.tgt for pair in files.first(MANY_EXAMPLES)):
        several = (p.tgt for p in first if len(split_labels(p.tgt, separator)) > 1)
        told = {"target": next(several, first[0].tgt), "separator": separator}
        return {"separator": separator}, message("train.found.labels", **told)
    return {}, ""


def _is_plain_text(config: Config) -> bool:
    """Return whether a file of lines has no tabs at its beginning, and columns are not named."""
    name = str(config.data)
    if config.columns or format_suffix(name) not in TEXT_SUFFIXES or media_folder(name):
        return False
    try:
        head = list(itertools.islice(numbered_lines(name), FIRST_EXAMPLES))
    except DataError:
        return False
    if kind_of(name, head) != "tsv":  # columns with other delimiters, or JSON
        return False
    return any(line.strip() for _, line in head) and not any(b"\t" in line for _, line in head)


def _stand_in_passages(pairs: Sequence[Pair]) -> bool:
    """Return whether all answers stand in their passages, and are not a few that come again."""
    inside = all(pair.tgt in Story.of(pair.src).text for pair in pairs)
    return inside and 2 * len({pair.tgt for pair in pairs}) > len(pairs)


def _are_numbers(targets: Sequence[str]) -> bool:
    """Return whether all targets are numbers, some with digits after a point: others are labels."""
    try:
        found = [plain_number(target) for target in targets]
    except BadLine:
        return False
    return any("." in number or float(number) % 1 for number in found)
