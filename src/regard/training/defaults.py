"""Default settings that follow from the size of the data, the budget and the device.

The whole policy is here. `fill_settings` chooses what a user leaves open before the model is built:
its size and learning rate, the tokens of a batch, and the number of dev pairs to decode.
`steps_limit` and `evaluation_interval` count in steps, once batches are planned. A given setting is
never changed, and what is chosen is recorded with the settings, so that a resumed run keeps it.

docs/results/small_data.md has what was measured with them.

Settings that follow from the first examples, where a user names no preset.

Labels, frames, pictures and sounds are recognised by their task later on. What is decided here has
settings of its own: a text without targets, questions whose answers stand in their passage, and
targets that are numbers.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard.data import Pair
from regard.data.error_hints import BadLine
from regard.data.lookup_codecs import split_labels
from regard.data.series import recognise_series
from regard.data.shards import is_sharded
from regard.data.stories import Story
from regard.data.table_files import in_columns, kind_of
from regard.data.text_files import STDIN, format_suffix, media_folder, numbered_lines
from regard.data.tokenizers import EACH_LABEL, FEW_LABELS, find_separator
from regard.errors import DataError
from regard.messages import message, translated
from regard.models.preset_parts import CONVOLUTIONAL, RECURRENT, TRANSFORMER
from regard.tasks.inputs.series import SeriesInput
from regard.tasks.inputs.story import why_questions
from regard.tasks.outputs.number import plain_number
from regard.training.config import Config, make_config
from regard.training.run_files import FIRST_EXAMPLES, Examples, PairSource
from regard.training.schedule import (
    EVALUATION_COST,
    EVALUATION_SHARE,
    EVALUATIONS,
    MOST_DECODED,
    WARMUP,
    WARMUP_SHARE,
)

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
#: sentences of a story on average: a memory network chooses among them, and has nothing to choose
#: where two texts are compared, of which the first counts as the story
SENTENCES: Final = 2


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
    data = config.data
    if pairs is None:
        if not isinstance(data, str) or data in ("", STDIN) or is_sharded(data):
            return {}, ""
        if SeriesInput.is_possible(config) and recognise_series(data) is not None:
            return {}, ""
        if not config.columns and _is_plain_text(data):
            return {"preset": "lm-transformer"}, message("train.found.text", file=data)
    try:
        files = Examples(config, Path(), pairs)
        first = files.first()
    except DataError:  # said where the data are read
        return {}, ""
    if why_questions(first):
        if _stand_in_passages(first):
            return {"preset": "span", "max_src_len": PASSAGE}, message("train.found.spans")
        if EACH_ANSWER * len({pair.tgt for pair in first}) <= len(first):
            if sum(len(Story.of(pair.src).sentences) for pair in first) >= SENTENCES * len(first):
                return {"preset": "memory-network"}, message("train.found.memory")
            found = {"preset": "classifier-transformer", "max_src_len": PASSAGE}
            return found, message("train.found.compared")
        return {"max_src_len": PASSAGE}, ""
    if _are_tags(files.first(MANY_EXAMPLES)):
        cut = {"src_tokenizer": "space", "tgt_tokenizer": "space"}
        return {"preset": "rnn", "bidirectional": True, **cut}, message("train.found.tags")
    targets = [pair.tgt for pair in first]
    # where sources are rows of numbers, targets that hardly come again are no labels
    of_rows = isinstance(first[0].frames, Mapping) and 2 * len({*targets}) > len(first)
    if _are_numbers(targets, whole=of_rows):
        return {"numbers": True}, message("train.found.numbers", target=first[0].tgt)
    if separator := find_separator(pair.tgt for pair in files.first(MANY_EXAMPLES)):
        several = (p.tgt for p in first if len(split_labels(p.tgt, separator)) > 1)
        told = {"target": next(several, first[0].tgt), "separator": separator}
        return {"separator": separator}, message("train.found.labels", **told)
    return {}, ""


def _is_plain_text(name: str) -> bool:
    """Return whether a file of lines has no columns at its beginning."""
    if format_suffix(name) not in TEXT_SUFFIXES or media_folder(name):
        return False
    try:
        head = list(itertools.islice(numbered_lines(name), FIRST_EXAMPLES))
    except DataError:
        return False
    if kind_of(name, head) != "tsv":  # columns with other delimiters, or JSON
        return False
    lines = [line for _, line in head if line.strip()]
    return bool(lines) and not in_columns(lines)


def _stand_in_passages(pairs: Sequence[Pair]) -> bool:
    """Return whether all answers stand in their passages, and are not a few that come again."""
    inside = all(pair.tgt in Story.of(pair.src).text for pair in pairs)
    return inside and 2 * len({pair.tgt for pair in pairs}) > len(pairs)


def _are_tags(pairs: Sequence[Pair]) -> bool:
    """Return whether targets have a tag for each word of sources of several lengths: tags are few
    that come again, and most words are no tags, or they would be copied or moved."""
    both = [(pair.src.split(), pair.tgt.split()) for pair in pairs]
    words, tags = (Counter(word for row in both for word in row[side]) for side in (0, 1))
    aligned = all(len(src) == len(tgt) for src, tgt in both)
    several = len({len(src) for src, _ in both}) > 2 and not any(pair.features for pair in pairs)
    few = len(tags) <= FEW_LABELS and tags.total() >= EACH_LABEL * len(tags)
    return aligned and several and few and 2 * sum(words[tag] for tag in tags) <= words.total()


def _are_numbers(targets: Sequence[str], *, whole: bool) -> bool:
    """Return whether all targets are numbers, `whole` or some with digits after a point.

    Others are labels.
    """
    try:
        found = [plain_number(target) for target in targets]
    except BadLine:
        return False
    return whole or any("." in number or float(number) % 1 for number in found)


#: Tokens of a batch at most.
BATCH_TOKENS: Final = 4096
#: Pairs of a batch. Few pairs are worth many steps, and a CPU needs hardly more time for a pair in
#: a small batch than in a large one.
BATCH_PAIRS: Final = 32
#: A GPU takes a step with 32 pairs in the time of one with 256: its batches grow with the data, as
#: long as an epoch has this many of them.
GPU_BATCHES: Final = 64

#: Presets of several layers or long sources, of which a CPU takes few steps in a minute, and the
#: minutes of a CPU below which they are `tiny`.
DEEP: Final = frozenset({"transformer", "conv", "classifier-transformer", "lm-transformer", "span"})
TINY_BELOW: Final = 10.0
#: Peak learning rates by preset, and of all others, from small sweeps on dev sets.
PEAK_RATES: Final = {"transformer": 1e-3, "conv": 1e-3, "classifier-transformer": 1e-3}
PEAK_RATE: Final = 3e-3
#: Peak learning rates of presets that are `tiny` for lack of time, where others did better.
TINY_RATES: Final = {"transformer": 2e-3, "lm-transformer": 6e-3}
#: Tokens of a batch of texts then, which give more steps;
TEXT_TOKENS: Final = 1024
#: pairs of which those minutes are a pass or two, and rates at which other presets learn most then.
ONE_PASS: Final = 10_000
ONE_PASS_RATES: Final = {"bahdanau": 5e-3}
#: Weights of R-Drop by preset, and presets whose output layer has the table of the target
#: embeddings, where a GPU reads so few pairs at most, so often at least, as far as is known before.
#: In the same time both lower the dev loss there, though R-Drop reads a batch twice; where pairs
#: are read 15 times it raises it.
RDROP: Final = {"transformer": 3.0, "bahdanau": 3.0}
TIED: Final = frozenset({"transformer"})
MANY_PAIRS, MANY_PASSES = 50_000, 20
#: Tokens of a second, both sides, that a GPU is taken to read.
GPU_SPEED: Final = 100_000
#: Options that a size stands for. A user who gives one of them has chosen a size.
SIZE_OPTIONS: Final = frozenset(
    name for table in (RECURRENT, TRANSFORMER, CONVOLUTIONAL) for name in table["small"]._fields
)

#: Share of the peak learning rate for a run that starts from a model, its epochs and fewest steps,
#: from small sweeps on dev sets of 300 to 2,000 examples. New symbols need the steps: from 500
#: Dutch words, g2p has 20.6% of the phonemes wrong after 200, a new network 15.5% after 1,000.
STARTED_RATE, STARTED_EPOCHS, STARTED_STEPS = 0.5, 10, 1000
#: Epochs of a run that has no limit, and its steps at least and at most.
EPOCHS, FEWEST_STEPS, MOST_STEPS = 30, 3_000, 100_000
#: The limit on steps of a run that has another limit.
UNLIMITED: Final = 10**9

#: Steps between evaluations: those of an epoch, within these bounds.
SHORTEST_INTERVAL, LONGEST_INTERVAL = 200, 2_000
#: With a budget in minutes, an evaluation may take this share of them, and reads no more of the dev
#: set than that.
ONE_EVALUATION: Final = 0.02
#: Steps that a budget in minutes has at least, if batches can be so small,
FEWEST_TIMED_STEPS: Final = 300
#: and tokens of the smallest.
FEWEST_BATCH_TOKENS: Final = 256
#: Dev sources that are decoded at an evaluation; a CPU with a budget decodes so many for each of
#: its minutes, between the two bounds.
DECODED_PER_MINUTE, FEWEST_DECODED = 100, 200
#: Dev examples that are evaluated, however slow that is.
FEWEST_EVALUATED: Final = 50


class Facts(NamedTuple):
    """Facts that defaults depend on, besides the settings.

    Attributes:
        examples: training pairs, or texts.
        tokens: mean number of tokens of an example, both sides, `eos` included; frames count too.
        on_gpu: whether a GPU trains.
        scales_batches: whether batches grow with the data. Those of texts do not: each token of a
            text is predicted, so that few texts teach much.
        has_sources: whether examples have sources to decode.
        labels: whether what is decoded is one label, which takes one step.
        writes: whether it is written token by token.
    """

    examples: int
    tokens: float
    on_gpu: bool
    scales_batches: bool = True
    has_sources: bool = True
    labels: bool = False
    writes: bool = True


def fill_settings(config: Config, facts: Facts) -> Config:
    """Return the settings with the defaults that follow from the facts."""
    chosen: dict[str, Any] = {}
    if config.size == "auto":
        chosen["size"] = _size(config, facts)
    tiny = chosen.get("size") == "tiny"
    if config.lr is None and _hurried(config, facts):
        passed = ONE_PASS_RATES if facts.examples >= ONE_PASS else {}
        chosen["lr"] = (TINY_RATES if tiny else passed).get(config.preset)
    if config.lr is None and config.start is not None:
        chosen["lr"] = STARTED_RATE * peak_rate(config)
    if config.batch_tokens is None and config.batch_sentences is None:
        chosen["batch_tokens"] = _batch_tokens(facts, TEXT_TOKENS if tiny else BATCH_TOKENS)
    if config.eval_pairs is None and facts.has_sources:
        chosen["eval_pairs"] = _decoded(config, facts)
    values = config.model_copy(update=chosen)
    # a run that is resumed has all settings
    if "rdrop" in config.model_fields_set or not _repeats(values, facts):
        return values
    several: dict[str, Any] = {"rdrop": RDROP.get(config.preset, 0.0)}
    if config.preset in TIED:
        several["model"] = {"tied": "output", **config.model}
    return values.model_copy(update=several)


def peak_rate(config: Config) -> float:
    """Return the peak learning rate of filled settings."""
    return config.lr or PEAK_RATES.get(config.preset, PEAK_RATE)


def _size(config: Config, facts: Facts) -> str:
    if config.preset not in DEEP or SIZE_OPTIONS & config.model.keys():
        return "small"
    return "tiny" if _hurried(config, facts) else "small"


def _hurried(config: Config, facts: Facts) -> bool:
    return config.minutes is not None and config.minutes < TINY_BELOW and not facts.on_gpu


def _repeats(values: Config, facts: Facts) -> bool:
    """Return whether a GPU reads few pairs so often that a new network needs more than dropout."""
    if not (facts.on_gpu and facts.writes and facts.examples <= MANY_PAIRS):
        return False
    if values.start or values.teacher:
        return False
    tokens = facts.examples * facts.tokens
    limits = [
        values.epochs,
        values.minutes and 60 * values.minutes * GPU_SPEED / tokens,
        values.steps and values.batch_tokens and values.steps * values.batch_tokens / tokens,
    ]
    passes = min((limit for limit in limits if limit is not None), default=EPOCHS)
    return passes >= MANY_PASSES


def starts_from_counts(config: Config, facts: Facts) -> bool:
    """Return whether embeddings begin with what tokens occur together: minutes are a pass or two.

    In 600 steps on 26,000 pairs, English to Chinese, the dev loss fell to 2.98, else to 3.34.
    """
    hurried = _hurried(config, facts) and facts.examples >= ONE_PASS
    given = config.src_vectors or config.tgt_vectors or config.model.get("tied") == "all"
    return hurried and config.preset in ONE_PASS_RATES and not given


def _batch_tokens(facts: Facts, tokens: int) -> int:
    if not facts.scales_batches:
        return tokens
    pairs = max(BATCH_PAIRS, facts.examples // GPU_BATCHES) if facts.on_gpu else BATCH_PAIRS
    return min(BATCH_TOKENS, ceil(pairs * facts.tokens))


def _decoded(config: Config, facts: Facts) -> int:
    if facts.on_gpu or facts.labels or config.minutes is None:
        return MOST_DECODED
    return min(max(int(DECODED_PER_MINUTE * config.minutes), FEWEST_DECODED), MOST_DECODED)


def steps_limit(config: Config, per_epoch: int) -> int:
    """Return the maximum number of steps: without any limit about `EPOCHS` epochs, neither too few
    steps to learn anything nor days of them."""
    if config.steps is not None:
        return config.steps
    if config.epochs is not None or config.minutes is not None:
        return UNLIMITED
    if config.start is not None:
        return min(max(STARTED_EPOCHS * per_epoch, STARTED_STEPS), MOST_STEPS)
    return min(max(EPOCHS * per_epoch, FEWEST_STEPS), MOST_STEPS)


def evaluation_limits(minutes: float, loss: float, decoding: float) -> tuple[int, int]:
    """Return how many dev examples and decoded sources an evaluation has time for.

    Args:
        minutes: the budget.
        loss: seconds that the loss of an example takes,
        decoding: and that decoding a source takes.
    """
    seconds = 60 * minutes * ONE_EVALUATION / 2
    counts = (seconds / max(cost, 1e-9) for cost in (loss, decoding))
    examples, sources = (max(FEWEST_EVALUATED, int(count)) for count in counts)
    return examples, sources


def timed_batch_tokens(tokens: int, minutes: float, seconds: float) -> int:
    """Return the tokens of a batch with which the minutes are enough for some steps.

    Args:
        tokens: of a batch, by default.
        minutes: the budget.
        seconds: that a token takes.
    """
    affordable = 60 * minutes / FEWEST_TIMED_STEPS / seconds
    return min(tokens, max(FEWEST_BATCH_TOKENS, int(affordable)))


def evaluation_interval(config: Config, per_epoch: int, dev_share: float) -> int:
    """Return the steps between evaluations.

    Args:
        config: the settings.
        per_epoch: steps of an epoch.
        dev_share: dev pairs that are evaluated, as a share of the training pairs.
    """
    if isinstance(config.eval_every, int):
        return config.eval_every
    epoch = min(max(per_epoch, SHORTEST_INTERVAL), LONGEST_INTERVAL)
    if config.eval_every == "epoch" or config.minutes is not None:
        return epoch
    total = steps_limit(config, per_epoch)
    if config.epochs is not None:
        total = min(total, config.epochs * per_epoch)
    affordable = ceil(per_epoch * dev_share * EVALUATION_COST / EVALUATION_SHARE)
    return max(1, affordable, min(epoch, total // EVALUATIONS))


def describe_defaults(
    given: Config, used: Config, facts: Facts, interval: int, per_epoch: int, examples: str
) -> str | None:
    """Return a sentence about the settings that were chosen here, if any were."""
    parts = []
    if given.batch_tokens is None and given.batch_sentences is None:
        tokens = used.batch_tokens or BATCH_TOKENS
        each = max(1, round(tokens / facts.tokens))
        parts.append(message("train.defaults.batch", each=each, tokens=tokens))
    if given.size == "auto":
        parts.append(message("train.defaults.size", size=used.size))
    if given.lr is None and used.lr is not None:
        parts.append(message("train.defaults.rate", rate=used.lr))
    if used.rdrop and "rdrop" not in given.model_fields_set:
        parts.append(message("train.defaults.rdrop", weight=used.rdrop))
    limits = (given.steps, given.epochs, given.minutes)
    if given.start is not None and not any(limits):
        parts.append(message("train.defaults.steps", steps=steps_limit(given, per_epoch)))
    if given.warmup is None:
        parts.append(message("train.defaults.warmup", steps=WARMUP, share=WARMUP_SHARE))
    if given.eval_every is None:
        often = message("train.defaults.interval", interval=interval)
        if given.minutes is not None:
            seconds = 60 * given.minutes / EVALUATIONS
            values = {"interval": interval, "seconds": seconds}
            often = message("train.defaults.interval-seconds", **values)
        parts.append(often)
    if not parts:
        return None
    what = translated("train.examples", examples)
    listed = message("train.comma").join(parts)
    return message("train.defaults", count=facts.examples, what=what, parts=listed)
