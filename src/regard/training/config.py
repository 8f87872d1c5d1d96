"""Settings of a training run: one flat table with defaults, and how to read and show them."""

import difflib
import inspect
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticKnownError

from regard import safe_read
from regard.data import TOKENIZER_KINDS
from regard.decoding_options import MAX_BEAM
from regard.device import shapes_only
from regard.errors import ArgumentError, DataError, RegardError
from regard.evaluation import METRICS
from regard.messages import help_text, message
from regard.models import COPY_PRESETS, PRESETS, SPAN_PRESETS, STORY_PRESETS, TEXT_PRESETS
from regard.models.preset_parts import (
    CONVOLUTIONAL,
    MEMORY_NETWORK,
    RECURRENT,
    STORY_TRANSFORMER,
    TRANSFORMER,
)
from regard.tasks import Task, TaskType, output_of_options, source_kinds, task_options
from regard.tasks import check_settings as check_task_settings


class OneOf(NamedTuple):
    """A check that a setting is one of some names, to which inputs and outputs may add theirs."""

    names: Callable[[], Iterable[str]]

    def __call__(self, value: str) -> str:
        """Return the value; raises an error of pydantic if it is no such name."""
        known = list(map(repr, self.names()))
        if repr(value) not in known:
            expected = f"{', '.join(known[:-1])} or {known[-1]}"
            raise PydanticKnownError("literal_error", {"expected": expected})
        return value


#: "auto" among them
TOKENIZERS: Final = OneOf(lambda: ("auto", *TOKENIZER_KINDS))
SOURCE_KINDS: Final = OneOf(lambda: ("auto", *source_kinds()))
METRIC_NAMES: Final = OneOf(lambda: ("auto", *(n for n in METRICS if not n.startswith("bleu-"))))
Case = Literal["keep", "lower", "upper"]
Schedule = Literal["auto", "cosine", "linear", "inverse-sqrt", "constant"]
Precision = Literal["auto", "32", "bf16", "fp16"]
Strategy = Literal["auto", "ddp", "fsdp"]

#: maximum number of bytes of a TOML file
MAX_TOML: Final = 1 << 20
#: values of a preset's sizes and options
Setting = int | float | bool | str | list[float]

#: The preset of a run that names none, until its output is known to have another.
GENERAL: Final = "bahdanau"

#: Defaults of presets that differ from the table below. Perplexity ranks language models, which
#: label smoothing ruins, and beam search makes dull continuations. Copying tokens needs one
#: vocabulary.
DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    **{n: {"label_smoothing": 0.0, "metric": "perplexity", "beam": 1} for n in TEXT_PRESETS},
    **{n: {"shared_vocab": True} for n in COPY_PRESETS},
    **{n: {"label_smoothing": 0.0, "beam": 1} for n in STORY_PRESETS},
    **{n: {"shared_vocab": True, "label_smoothing": 0.0} for n in SPAN_PRESETS},
}

#: Parameters of presets that are not options: the size, and what follows from the data.
TOLD: Final = ("src_vocab", "tgt_vocab", "classes", "size", "src_only", "folded")


def _setting(default: Any, description: str, **rules: Any) -> Any:
    """Return the field of a setting that may change when a run is resumed."""
    return Field(default, description=description, **rules)


def _fixed(default: Any, description: str, **rules: Any) -> Any:
    """Return the field of a setting that may not: the weights, the position in the data or the best
    scores so far depend on it."""
    return Field(
        default, description=description, json_schema_extra={"fixed_on_resume": True}, **rules
    )


class _Settings(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False
    )


class DataSettings(_Settings):
    """Settings of the data, and of the model that a run starts from."""

    data: str | tuple[str, ...] = _fixed(
        "",
        "training pairs: TSV, JSONL, Parquet, '-'; .gz anywhere; or texts; or shards: a folder, a "
        "glob, a list",
    )
    tgt: str | None = _fixed(None, "target file, if source and target are parallel files")
    dev: str | None = _fixed(None, "dev pairs; default: held out of the data")
    dev_tgt: str | None = _fixed(None, "target file of dev, if these are parallel files")
    columns: tuple[str, ...] | None = _fixed(
        None,
        "source, target and, if any, features: by name, or by number from 0, as in 0,2",
        min_length=2,
        max_length=3,
    )
    features: bool | None = _fixed(
        None, "whether a third column joins the source, as V;PST; none detects it"
    )
    skip_bad: bool = _fixed(False, "skip and count bad lines instead of stopping at the first")
    max_chars: int = _fixed(
        10_000, "maximum number of characters of a side; longer lines are bad lines", ge=1
    )

    start: str | None = _fixed(
        None,
        "model to start from: a run folder, RUN@STEP or a bundled model; its network, tokenisers "
        "and weights are taken",
    )
    start_checksum: str | None = _fixed(
        None, "checksum that the model to start from must have; filled in by the run"
    )
    adapter: Literal["lora", "full"] | None = _fixed(
        None,
        "what is trained of a causal language model of transformers, in its own layers: low-rank "
        "additions by the library peft (lora), or all of its weights (full)",
    )
    adapter_rank: int = _fixed(16, "rank of the additions", ge=1)
    adapter_targets: str | None = _fixed(
        None, "regular expression of the names of the layers that have additions; default: linear"
    )
    freeze: tuple[str, ...] = _fixed(
        (), "parts of the network that stay as they were: embeddings,encoder,layers:0-5"
    )
    replay: str | None = _fixed(
        None, "examples of what the model knew before, which are mixed into the batches"
    )
    replay_share: float = _fixed(0.2, "share of a pass that replayed examples have", gt=0, lt=1)


class NetworkSettings(_Settings):
    """Settings of the network and of what it reads and writes."""

    preset: str = _fixed(
        GENERAL, "name of the model: see `regard presets`; labels have another default"
    )
    size: Literal["auto", "tiny", "small", "base"] = _fixed(
        "auto", "size of the preset; auto follows from data, budget and device"
    )
    model: dict[str, Setting] = _fixed({}, "sizes and options of the preset, by name")
    task_options: dict[str, Any] = _fixed({}, "settings that only some kinds of data have, by name")

    src_tokenizer: Annotated[str, AfterValidator(SOURCE_KINDS)] = _fixed(
        "auto", "tokeniser of the source; or vectors (numbers and .npy files), pictures, sound"
    )
    tgt_tokenizer: Annotated[str, AfterValidator(TOKENIZERS)] = _fixed(
        "auto", "tokeniser of the target; label for whole targets, such as classes"
    )
    src_case: Case = _fixed("keep", "case that the source is converted to")
    stack: int = _fixed(1, "consecutive frames that are stacked to one", ge=1)
    scale_vectors: bool = _fixed(True, "whether frames are standardised to mean 0 and deviation 1")
    shared_vocab: bool = _fixed(False, "one tokeniser for both sides, trained on both")
    vocab_size: int = _fixed(8000, "maximum size of a vocabulary", ge=8)
    src_vectors: str | None = _fixed(
        None,
        "pretrained word vectors for the source embedding: a text file of GloVe, "
        "word2vec or fastText; .gz too",
    )
    tgt_vectors: str | None = _fixed(
        None, "the same for the target embedding, and for that of a language model"
    )
    vectors_rate: float = _setting(
        1.0,
        "learning rate of pretrained embeddings, as a share of that of all other "
        "weights; 0 freezes them",
        ge=0,
    )
    max_src_len: int = _fixed(
        256, "maximum number of source tokens, or frames; longer examples are left out", ge=1
    )
    max_tgt_len: int = _fixed(
        256, "maximum number of target tokens; longer examples are left out", ge=1
    )


class OptimisationSettings(_Settings):
    """Settings of batches, steps and losses."""

    batch_tokens: int | None = _fixed(
        None, "source and target tokens of a batch, or frames; default from the data", ge=1
    )
    batch_sentences: int | None = _fixed(None, "pairs per batch, instead of tokens", ge=1)
    accumulate: int = _setting(1, "batches per optimiser step (gradient accumulation)", ge=1)
    lr: float | None = _setting(None, "peak learning rate; default from the preset", gt=0)
    schedule: Schedule = _setting("auto", "learning-rate schedule; auto is cosine")
    warmup: int | None = _setting(
        None, "steps until the peak learning rate; default 200, or a tenth of the budget", ge=0
    )
    weight_decay: float = _setting(0.01, "of AdamW", ge=0)
    clip: float = _setting(1.0, "maximum norm of the gradients, which are clipped to it", gt=0)
    label_smoothing: float = _setting(
        0.1, "label smoothing: share of the probability spread over the vocabulary", ge=0, lt=1
    )

    rdrop: float = _setting(0.0, "weight of R-Drop; 0 disables it", ge=0)
    teacher: tuple[str, ...] = _fixed(
        (), "runs to distil: their ensemble's probabilities are learned; RUN,RUN"
    )
    teacher_weight: float = _setting(
        0.5, "share of the loss that follows the teacher, not the targets", gt=0, le=1
    )
    guide: Literal["words"] | None = _fixed(
        None, "what a head of the cross-attention learns besides: alignments of words by statistics"
    )
    guide_weight: float = _setting(0.05, "weight of the loss of guide", gt=0)
    ema: float = _fixed(
        0.0, "decay of the exponential moving average of the weights; 0 disables it", ge=0, lt=1
    )

    steps: int | None = _setting(None, "maximum number of optimiser steps", ge=1)
    epochs: int | None = _setting(None, "maximum number of passes over the data", ge=1)
    minutes: float | None = _setting(None, "maximum minutes of training", gt=0)


class ProcessSettings(_Settings):
    """Settings of evaluations, checkpoints and of the machine."""

    eval_every: Annotated[int, Field(ge=1)] | Literal["epoch"] | None = _setting(
        None,
        "steps between evaluations, or epoch (200 to 2,000 steps); default from the "
        "data and the budget",
    )
    eval_pairs: int | None = _setting(
        None,
        "dev sources to decode at an evaluation; default 1,000, or fewer for few minutes on a CPU",
        ge=1,
    )
    baseline: bool = _setting(
        True, "fit a simple baseline first, such as TF-IDF, to compare the model with"
    )
    metric: Annotated[str, AfterValidator(METRIC_NAMES)] = _fixed(
        "auto", "metric that selects the best checkpoint; auto follows from the target"
    )
    patience: int | None = _setting(
        None,
        "evaluations without a better one until the run ends; default: two fifths of "
        "the budget without a better score or dev loss",
        ge=1,
    )
    average: int = _setting(5, "number of best checkpoints that are averaged at the end", ge=1)
    save_every: int = _setting(500, "steps between checkpoints", ge=1)

    seed: int = _fixed(1, "random seed of weights, order of the data and dropout", ge=0, lt=2**63)
    device: str = _setting("auto", "cpu, cuda, cuda:1 or auto")
    precision: Precision = _setting("auto", "auto is bf16 on chips that are fast in it")
    strategy: Strategy = _setting(
        "auto", "of several processes: ddp replicates the weights, fsdp shards them; auto is ddp"
    )
    recompute: bool = _setting(
        False, "recompute the activations of layers in the backward pass, to save memory"
    )
    graphs: bool = _setting(True, "replay steps from CUDA graphs when training on one GPU")
    threads: int | None = _setting(None, "CPU threads; default from torch", ge=1)
    beam: int = _setting(5, "beam width when the model is used", ge=1, le=MAX_BEAM)
    report: bool = _setting(True, "write report.html after each evaluation")
    tensorboard: bool = _setting(False, "also write TensorBoard events")


class Config(ProcessSettings, OptimisationSettings, NetworkSettings, DataSettings):
    """The settings of a run. `model` holds those of the preset: `hidden`, `layers`, ..."""

    @classmethod
    def fixed_on_resume(cls) -> list[str]:
        """Return the settings that may not change when a run is resumed."""
        return [name for name, field in cls.model_fields.items() if field.json_schema_extra]

    @property
    def model_size(self) -> Literal["tiny", "small", "base"]:
        """The size; small until the data are known."""
        return "small" if self.size == "auto" else self.size

    @property
    def max_tokens(self) -> int | None:
        """Maximum number of tokens of a batch, unless its pairs are counted."""
        return None if self.batch_sentences else self.batch_tokens

    @field_validator("columns", mode="before")
    @classmethod
    def _split_columns(cls, value: Any) -> Any:
        """Read `0,2` as a list; a single name is a list that is then found to be too short."""
        if isinstance(value, str):
            return [part.strip() for part in value.split(",")]
        return [value] if isinstance(value, int) else value

    @field_validator("teacher", "freeze", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        """Read `RUN,RUN` as a list."""
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return [str(value)] if isinstance(value, Path) else value

    @field_validator("src_vectors", "tgt_vectors", "start", "replay", mode="before")
    @classmethod
    def _name_of_path(cls, value: object) -> object:
        return str(value) if isinstance(value, Path) else value

    @field_validator("precision", mode="before")
    @classmethod
    def _number_or_name(cls, value: object) -> object:
        """`precision=32` on a command line is a number."""
        return str(value) if isinstance(value, int) else value


def make_config(settings: Mapping[str, Any], base: Config | None = None) -> Config:
    """Return a config with these settings, on top of `base`; they may include a preset's sizes."""
    values = {} if base is None else base.model_dump(exclude_unset=True)
    of_kinds = {name: field for fields in task_options().values() for name, field in fields.items()}
    table = settings.get("task_options")
    asked = {*values.get("task_options", {}), *settings}
    asked |= {*(table if isinstance(table, Mapping) else ())}
    owner = output_of_options(asked & of_kinds.keys() - Config.model_fields.keys())
    given = settings.get("preset", values.get("preset"))
    preset = check_preset(str(owner.default_preset if given is None else given))
    if given is None:
        settings = {**settings, **_unless_given(owner.starter, settings, values)}
    values = {**DEFAULTS.get(preset, {}), **owner.defaults, **values}
    if given is not None or preset != GENERAL:
        values["preset"] = preset
    options = preset_options(preset)
    model = dict(values.get("model", {}))
    of_data = dict(values.get("task_options", {}))
    for name, value in settings.items():
        if name == "model":
            model.update(_table(name, value, "the preset", "hidden=256"))
        elif name in ("task_options", "kind_options"):  # as it was called before
            of_data.update(_table(name, value, "a kind of data", "horizon=96"))
        elif name in Config.model_fields:
            values[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
        elif name in of_kinds and name not in options:
            of_data[name] = value
        else:
            model[name] = value
    for name in model:
        if name not in options:
            raise _unknown(name, preset)
        model[name] = _checked(name, model[name], options[name].annotation)
    for name in of_data:
        if name not in of_kinds:
            raise _unknown(name, preset)
        field = of_kinds[name]
        kind: Any = field.annotation
        if field.metadata:  # rules such as the least value
            kind = Annotated[kind, *field.metadata]
        of_data[name] = _checked(name, of_data[name], kind)
    chosen = {name: value for name, value in model.items() if value is not None}
    try:
        config = Config(**{**values, "model": chosen, "task_options": of_data})
    except ValidationError as error:
        raise _broken_rule(error) from None
    if given is None:  # it is that of the output: `with_preset_of` may choose another one
        config.model_fields_set.discard("preset")
    return config


def _unless_given(
    starter: Mapping[str, Any], settings: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what settings leave open of those of a run that names no preset.

    Sizes fit each other: a given one leaves all of them to the preset.
    """
    tables = (table.get(name) for table in (settings, values) for name in ("model", "task_options"))
    known = {*settings, *values}.union(*(table for table in tables if isinstance(table, Mapping)))
    sizes = {name for table in SIZE_TABLES for name in table["small"]._fields}
    closed = known | (sizes if known & {"size", *sizes} else set())
    return {name: value for name, value in starter.items() if name not in closed}


def check_preset(name: str) -> str:
    """Return `name`; raises ArgumentError if there is no such preset."""
    if name not in PRESETS:
        close = _nearest(name, PRESETS)
        fix = f"perhaps {close!r} is meant" if close else "`regard presets` says what they are"
        raise ArgumentError("preset", f"be one of {', '.join(PRESETS)}", repr(name), fix)
    return name


def with_preset_of(config: Config, task: Task | TaskType) -> Config:
    """Return the settings with the preset that suits the task, if they name none, and its sizes.

    Options that the preset does not know leave the general one.
    """
    preset = task.starter["preset"]
    if (
        "preset" in config.model_fields_set
        or not config.model.keys() <= preset_options(preset).keys()
    ):
        return config
    values = config.model_dump(exclude_unset=True)
    return make_config(_unless_given(task.starter, {}, values), config)


def check_model(config: Config) -> None:
    """Raise ArgumentError if a preset cannot be built with its settings; reads no data."""
    _check_positions(config)
    check_task_settings(config)
    try:
        with shapes_only():
            PRESETS[config.preset](8, 8, config.model_size, **config.model)
    except RegardError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"the settings of the preset {config.preset}",
            "fit together",
            f"{config.model} ({str(error).splitlines()[0]})",
            f"see `regard settings {config.preset}`",
        ) from None


def _check_positions(config: Config) -> None:
    learned = config.model.get("positions") == "learned"
    name, options = "max_positions" if learned else "max_len", preset_options(config.preset)
    if name not in options:
        return
    positions, longest = (
        int(config.model.get(name, options[name].default)),
        max(config.max_src_len, config.max_tgt_len),
    )
    if positions <= longest:
        rule = f"be more than max_src_len and max_tgt_len, {longest}"
        raise ArgumentError(name, rule, positions, "raise it, or lower them")


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """Return settings from `key=value` words; values are parsed as JSON if they can be."""
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            rule = "have the form key=value"
            raise ArgumentError("setting", rule, repr(word), "for example hidden=256")
        settings[name.strip().replace("-", "_")] = _value(value)
    return settings


def read_toml(path: Path) -> dict[str, Any]:
    """Return settings from a TOML file."""
    content = safe_read.read_bytes(path, MAX_TOML)
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # of TOML, of UTF-8 or of a number
        reason = f"settings must be TOML, but this is not ({error})"
        raise DataError(str(path), None, reason, "mend that line") from None


def preset_options(preset: str) -> dict[str, inspect.Parameter]:
    """Return the sizes and options of a preset, without those that follow from the data."""
    parameters = inspect.signature(PRESETS[preset], eval_str=True).parameters
    return {n: p for n, p in parameters.items() if n not in TOLD}


def all_options(preset: str, size: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of every size and option of a preset, of which some are given."""
    options = preset_options(preset)
    found = {name: given.get(name, option.default) for name, option in options.items()}
    row = {} if (table := size_table(preset)) is None else table[size]._asdict()
    return found | {name: row[name] for name in row if found[name] is None}


def size_table(preset: str) -> Mapping[str, Any] | None:
    """Return the table of the sizes of a preset."""
    names = preset_options(preset).keys()
    return next((table for table in SIZE_TABLES if {*table["small"]._fields} <= names), None)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None, "none": None}.get(text, text)


def _table(name: str, value: Any, owner: str, example: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        rule = f"be a table of settings of {owner}"
        raise ArgumentError(name, rule, repr(value), f"give them by name, as in {example}")
    return value


def _checked(name: str, value: Any, annotation: Any) -> Any:
    if value is None and "none" in get_args(annotation):
        value = "none"  # as it is written on a command line
    try:
        return TypeAdapter(annotation).validate_python(value)
    except ValidationError as error:
        raise _broken_rule(error, name) from None


def _unknown(name: str, preset: str) -> ArgumentError:
    owners = [p for p in PRESETS if name in preset_options(p)]
    if owners:
        rule = f"be known to the preset {preset}"
        value = f"{name!r}, which {', '.join(owners)} know{'s' if len(owners) == 1 else ''}"
        return ArgumentError("setting", rule, value, f"`regard settings {preset}` lists its own")
    of_kinds = [option for fields in task_options().values() for option in fields]
    close = _nearest(name, [*Config.model_fields, *preset_options(preset), *of_kinds])
    fix = f"perhaps {close!r} is meant" if close else f"`regard settings {preset}` lists them all"
    return ArgumentError("setting", "have a name that regard knows", repr(name), fix)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


#: rules by pydantic's error types, worded to follow "must"
RULES: Final = {
    "int_parsing": "be a whole number",
    "int_type": "be a whole number",
    "int_from_float": "be a whole number",
    "float_parsing": "be a number",
    "float_type": "be a number",
    "finite_number": "be a finite number",
    "bool_parsing": "be true or false",
    "bool_type": "be true or false",
    "string_type": "be a text",
    "greater_than": "be more than {gt:g}",
    "greater_than_equal": "be at least {ge:g}",
    "less_than": "be less than {lt:g}",
    "literal_error": "be {expected}",
    "too_short": "name two or three columns",
    "too_long": "name two or three columns",
}


def _broken_rule(error: ValidationError, name: str | None = None) -> ArgumentError:
    """Return the first of pydantic's errors as an ArgumentError."""
    first = error.errors()[0]
    where = name or str(first["loc"][0])
    message = first["msg"].removeprefix("Input should ")
    rule = RULES.get(first["type"], message[:1].lower() + message[1:])
    value = repr(first["input"])
    return ArgumentError(where, rule.format(**first.get("ctx", {})), value, "see `regard settings`")


#: descriptions of the presets' options
OPTIONS: Final = {
    "embed": "width of the token embeddings",
    "hidden": "width of the recurrent layers and of the memory; even",
    "layers": "layers of the encoder, and of the decoder",
    "cell": "the recurrence",
    "dropout": "dropout rate",
    "encoder_layers": "layers of the encoder; default: as many as the decoder has",
    "channels": "filters over the weights of the step before, which location-aware attention sees",
    "attention_dropout": "dropout rate of attention weights; default: dropout",
    "word_dropout": "share of tokens whose embeddings are dropped",
    "tied": "layers that share the target embedding: the output layer, the source's, or both",
    "coverage": "weight of the coverage loss on attending twice to a source token; 0 disables it",
    "score": "score function of attention",
    "slots": "slots of the external memory",
    "summary": "whether the decoder starts from the mean of the source",
    "half_width": "half width of the window of local attention, in tokens",
    "dim": "width of the layers",
    "heads": "heads of each attention; they divide dim",
    "feed_forward": "width inside the feed-forward layers",
    "norm_first": "whether to normalise before each sublayer (pre-norm), not after it",
    "norm": "normalisation of the layers: with a mean (layer) or without one (rms)",
    "eps": "what the norms add to the variance",
    "activation": "activation inside the feed-forward layers",
    "gated": "whether a third map multiplies the activation of the feed-forward layers",
    "bias": "whether linear maps and norms have a bias",
    "qkv_bias": "whether the maps to queries, keys and values have a bias; default: bias",
    "kv_heads": "heads of keys and values in self-attention; default: heads",
    "head_dim": "width of a head; default: dim / heads",
    "window": "nearest keys that self-attention sees; default: all",
    "positions": "what tells the order of tokens",
    "max_positions": "number of learned positions: maximum tokens of a side",
    "buckets": "number of buckets of relative positions",
    "max_distance": "distance from which on relative positions are one bucket",
    "rotary_base": "base of the wavelengths of rotary positions",
    "rotary_scaling": "factor, low, high and length of rotary positions for longer texts",
    "embed_scale": "factor of the token embeddings; default: sqrt(dim)",
    "embed_norm": "whether token embeddings with their positions are normalised",
    "output_bias": "whether the biases of the logits are learned",
    "reads_bos": "whether texts begin with a symbol that all tokens know of",
    "bos_as_eos": "whether the first symbol has the embedding of the last one",
    "repeats": "times that the layers of the encoder are run, with the same weights",
    "kernel": "kernel size of the convolutions",
    "hops": "times that the question reads the story",
    "sharing": "embedding tables that hops share: adjacent ones, or all of them (layerwise)",
    "times": "sentences back that temporal encoding tells apart",
    "noise": "share of empty sentences that temporal encoding counts in training",
    "longest": "most tokens of an answer",
    "linear_start": "training steps before the hops have a softmax",
    "ngrams": "tokens of the longest n-grams that have a share of the answer; 0 disables them",
    "max_len": "number of learned positions: maximum tokens of a side",
}


class SettingRow(NamedTuple):
    """A setting as `regard settings` shows it."""

    name: str
    default: str
    description: str


def config_settings(preset: str = "bahdanau") -> list[SettingRow]:
    """Return the settings of every run, with their defaults for a preset."""
    own = DEFAULTS.get(preset, {})
    fields = Config.model_fields.items()
    return [_row(n, f, own) for n, f in fields if n not in ("model", "task_options")]


def task_settings() -> dict[str, list[SettingRow]]:
    """Return the settings that only some kinds of data have, by kind."""
    kinds = task_options().items()
    return {kind: [_row(*one, {}) for one in fields.items()] for kind, fields in kinds}


def _row(name: str, field: FieldInfo, defaults: Mapping[str, Any]) -> SettingRow:
    checks = [one.func for one in field.metadata if isinstance(one, AfterValidator)]
    names = [name for check in checks if isinstance(check, OneOf) for name in check.names()]
    said = _described(field.description or "", field.annotation, names)
    return SettingRow(name, _shown(defaults.get(name, field.default)), said)


def preset_settings(preset: str) -> list[SettingRow]:
    """Return the settings that a preset adds: its sizes and options."""
    options = preset_options(preset)
    return [SettingRow(name, *_option(one, options.keys())) for name, one in options.items()]


#: tables of sizes; one whose fields are a part of another's comes after it
SIZE_TABLES: Final[tuple[Mapping[str, Any], ...]] = (
    RECURRENT,
    TRANSFORMER,
    CONVOLUTIONAL,
    STORY_TRANSFORMER,
    MEMORY_NETWORK,
)


def _option(option: Parameter, names: Any) -> tuple[str, str]:
    """Return default and description of an option; the default of a size is that of `small`."""
    description = _described(OPTIONS[option.name], option.annotation)
    for table in SIZE_TABLES:
        fields = table["small"]._fields
        if option.default is None and option.name in fields and set(fields) <= set(names):
            sizes = {size: getattr(row, option.name) for size, row in table.items()}
            by_size = message("check.comma").join(f"{name} {n}" for name, n in sizes.items())
            return str(sizes["small"]), message("settings.sizes", text=description, sizes=by_size)
    return _shown(option.default), description


def _described(description: str, annotation: Any, names: Sequence[str] = ()) -> str:
    """Return a description in the current language, with the choices that a setting has."""
    choices = get_args(annotation) if get_origin(annotation) is Literal else names
    text, names = help_text(description), message("check.comma").join(choices)
    return message("settings.choices", text=text, choices=names) if choices else text


def _shown(value: object) -> str:
    """Return a value as it is written in key=value."""
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    words = {"True": "true", "False": "false", "None": "none"}
    return words.get(str(value), str(value))
