"""What a training run is made from: one flat table of settings, each with its default."""

import difflib
import inspect
import json
import tomllib
from collections.abc import Iterable, Mapping
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import torch
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from regard import safe_read
from regard.errors import ArgumentError, DataError, RegardError
from regard.kinds import check_settings
from regard.models import COPY_PRESETS, PRESETS, TAG_PRESETS, TEXT_PRESETS
from regard.models.preset_parts import CONVOLUTIONAL, RECURRENT, TRANSFORMER

TokenizerKind = Literal["auto", "char", "space", "word", "bpe", "unigram"]
SourceKind = Literal["auto", "char", "space", "word", "bpe", "unigram", "vectors"]
MetricName = Literal[
    "auto", "loss", "bleu", "chrf", "ter", "wer", "cer", "per", "exact", "perplexity"
]
Case = Literal["keep", "lower", "upper"]
Schedule = Literal["auto", "cosine", "linear", "inverse-sqrt", "constant"]
Precision = Literal["auto", "32", "bf16", "fp16"]

#: bytes of a file of settings at most
MAX_TOML: Final = 1 << 20
#: what the sizes and options of a preset may hold
Setting = int | float | bool | str

#: Where a preset has another default than the table below. Perplexity is what a language model is
#: judged by, which smoothing ruins, and the likeliest continuation of a text is a dull one. What
#: copies tokens cannot do without one vocabulary.
DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    **{n: {"label_smoothing": 0.0, "metric": "perplexity", "beam": 1} for n in TEXT_PRESETS},
    **{n: {"shared_vocab": True} for n in COPY_PRESETS},
}


#: What a preset takes that is no option of its own: a row of sizes, and what tokenisers know.
TOLD: Final = ("src_vocab", "tgt_vocab", "size", "src_only")


class Config(BaseModel):
    """The settings of a run. `model` holds what goes to the preset: `hidden`, `layers`, ..."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False
    )

    data: str = Field(
        "", description="training pairs: TSV, JSONL, Parquet, '-'; .gz anywhere; or texts"
    )
    tgt: str | None = Field(None, description="target side, if the sides are two parallel files")
    dev: str | None = Field(None, description="dev pairs; held out of the data if not given")
    dev_tgt: str | None = Field(None, description="target side of dev, if parallel files")
    columns: tuple[str, ...] | None = Field(
        None,
        min_length=2,
        max_length=3,
        description="source, target and, if any, features: by name, or by number from 0, as in 0,2",
    )
    features: bool | None = Field(
        None, description="whether a third column joins the source, as V;PST; none looks"
    )
    skip_bad: bool = Field(False, description="count bad lines instead of stopping at the first")
    max_chars: int = Field(10_000, ge=1, description="a line with a longer side is a bad line")

    join_lines: int = Field(
        1, ge=1, description="lines of a text that a language model sees as one"
    )

    preset: str = Field("bahdanau", description="the model, by name: see `regard presets`")
    size: Literal["auto", "tiny", "small", "base"] = Field(
        "auto", description="row of the preset's sizes; auto follows data, budget and device"
    )
    model: dict[str, Setting] = Field({}, description="sizes and options of the preset, by name")

    src_tokenizer: SourceKind = Field(
        "auto",
        description="how the source becomes tokens; vectors for numbers and .npy files",
    )
    tgt_tokenizer: TokenizerKind = Field("auto", description="how the target becomes tokens")
    src_case: Case = Field("keep", description="what the source's letters are brought to")
    stack: int = Field(1, ge=1, description="frames of vectors that are joined to one")
    scale_vectors: bool = Field(
        True, description="whether features of vectors are brought to mean 0 and deviation 1"
    )
    shared_vocab: bool = Field(False, description="one tokeniser, learned from both sides")
    vocab_size: int = Field(8000, ge=8, description="entries of a vocabulary at most")
    src_vectors: str | None = Field(
        None,
        description="word vectors that the source's embedding starts from: a text file of GloVe, "
        "word2vec or fastText; .gz too",
    )
    tgt_vectors: str | None = Field(
        None, description="the same for the target's embedding, and for a language model's"
    )
    vectors_rate: float = Field(
        1.0,
        ge=0,
        description="learning rate of embeddings that started from vectors, as a share of that of "
        "all other weights; 0 keeps them as they are",
    )
    bpe_dropout: float = Field(
        0.0, ge=0, lt=1, description="share of bpe's merges that are left out, anew in each epoch"
    )
    max_src_len: int = Field(
        256, ge=1, description="longer sources are left out; vectors count frames"
    )
    max_tgt_len: int = Field(256, ge=1, description="longer targets, or lines, are left out")

    batch_tokens: int | None = Field(
        None,
        ge=1,
        description="source and target tokens of a batch, or frames; default from the data",
    )
    batch_sentences: int | None = Field(None, ge=1, description="pairs of a batch, instead")
    accumulate: int = Field(1, ge=1, description="batches whose gradients make one step")
    lr: float | None = Field(None, gt=0, description="highest learning rate; none asks the preset")
    schedule: Schedule = Field("auto", description="how the learning rate falls, auto being cosine")
    warmup: int | None = Field(
        None,
        ge=0,
        description="steps until the learning rate is at its highest; default 200, or a tenth of "
        "the budget",
    )
    weight_decay: float = Field(0.01, ge=0, description="of AdamW")
    clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="share of probability given away")

    rdrop: float = Field(
        0.0, ge=0, description="weight of R-Drop, where two passes are to agree; 0 is one pass"
    )
    ema: float = Field(
        0.0, ge=0, lt=1, description="decay of the moving average of the weights; 0 has none"
    )

    steps: int | None = Field(None, ge=1, description="optimiser steps at most")
    epochs: int | None = Field(None, ge=1, description="passes over the data at most")
    minutes: float | None = Field(None, gt=0, description="minutes of training at most")
    eval_every: Annotated[int, Field(ge=1)] | Literal["epoch"] | None = Field(
        None,
        description="steps between evaluations, or epoch (200 to 2,000 steps); default from the "
        "data and the budget",
    )
    eval_pairs: int | None = Field(
        None,
        ge=1,
        description="dev sources that are decoded at an evaluation; default 1,000, or fewer for "
        "few minutes of a CPU",
    )
    metric: MetricName = Field(
        "auto", description="decides which checkpoint is best; auto asks the target"
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="evaluations without a better one until the end; by default two fifths of the "
        "budget without a better score or dev loss",
    )
    average: int = Field(5, ge=1, description="best checkpoints that are averaged at the end")
    save_every: int = Field(500, ge=1, description="steps between checkpoints")

    seed: int = Field(1, ge=0, lt=2**63, description="of weights, order of the data, and dropout")
    device: str = Field("auto", description="cpu, cuda, or auto")
    precision: Precision = Field("auto", description="auto is bf16 where the chip is fast in it")
    graphs: bool = Field(True, description="replay steps from CUDA graphs, where one GPU trains")
    threads: int | None = Field(None, ge=1, description="CPU threads; none leaves it to torch")
    beam: int = Field(5, ge=1, description="width of the search when the run is used")
    report: bool = Field(True, description="write report.html after each evaluation")
    tensorboard: bool = Field(False, description="also write TensorBoard events")

    @property
    def reads_texts(self) -> bool:
        """Whether the data are texts, for a language model, and not pairs."""
        return self.preset in TEXT_PRESETS

    @property
    def copies(self) -> bool:
        """Whether the model writes tokens of its source, by their ids."""
        return self.preset in COPY_PRESETS

    @property
    def tags(self) -> bool:
        """Whether the model writes one token for each of its source."""
        return self.preset in TAG_PRESETS

    @property
    def longest_tgt(self) -> int:
        """Tokens of a target at most, `eos` not counted; joined lines are one target."""
        return self.max_tgt_len * self.join_lines

    @property
    def model_size(self) -> Literal["tiny", "small", "base"]:
        """The size, which is small until the data are known."""
        return "small" if self.size == "auto" else self.size

    @property
    def max_tokens(self) -> int | None:
        """Tokens of a batch at most, unless it is its pairs that are counted."""
        return None if self.batch_sentences else self.batch_tokens

    @property
    def examples(self) -> str:
        """What the user calls the data."""
        return "texts" if self.reads_texts else "pairs"

    @field_validator("columns", mode="before")
    @classmethod
    def _split_columns(cls, value: Any) -> Any:
        """`0,2` is a list, and so is a lone name, which is then found to be too short."""
        if isinstance(value, str):
            return [part.strip() for part in value.split(",")]
        return [value] if isinstance(value, int) else value

    @field_validator("src_vectors", "tgt_vectors", mode="before")
    @classmethod
    def _name_of_path(cls, value: object) -> object:
        return str(value) if isinstance(value, Path) else value

    @field_validator("precision", mode="before")
    @classmethod
    def _number_or_name(cls, value: object) -> object:
        """`precision=32` on a command line is a number."""
        return str(value) if isinstance(value, int) else value


def make_config(settings: Mapping[str, Any], base: Config | None = None) -> Config:
    """A config from settings by name, on top of `base`; a preset's sizes may be among them."""
    values = {} if base is None else base.model_dump(exclude_unset=True)
    preset = check_preset(str(settings.get("preset", values.get("preset", "bahdanau"))))
    values = {**DEFAULTS.get(preset, {}), **values}
    options = preset_options(preset)
    model = dict(values.get("model", {}))
    for name, value in settings.items():
        if name == "model":
            model.update(_table(value))
        elif name in Config.model_fields:
            values[name] = value
        else:
            model[name] = value
    for name in model:
        if name not in options:
            raise _unknown(name, preset)
        model[name] = _checked(name, model[name], options[name])
    chosen = {name: value for name, value in model.items() if value is not None}
    try:
        return Config(**{**values, "model": chosen})
    except ValidationError as error:
        raise _broken_rule(error) from None


def check_preset(name: str) -> str:
    """`name`, if there is such a preset."""
    if name not in PRESETS:
        close = _nearest(name, PRESETS)
        fix = f"perhaps {close!r} is meant" if close else "`regard presets` says what they are"
        raise ArgumentError("preset", f"be one of {', '.join(PRESETS)}", repr(name), fix)
    return name


def check_model(config: Config) -> None:
    """Raises where a preset cannot be made of its settings, before anything is read or written."""
    check_settings(config)
    _check_positions(config)
    try:
        with torch.device("meta"):  # shapes without numbers
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
    option = preset_options(config.preset).get("max_len")
    if option is None:
        return
    positions, longest = (
        int(config.model.get("max_len", option.default)),
        max(config.max_src_len, config.max_tgt_len),
    )
    if positions <= longest:
        raise ArgumentError(
            "max_len",
            f"be more than max_src_len and max_tgt_len, {longest}",
            positions,
            "raise it, or lower them",
        )


def no_bpe(config: Config, src: str, tgt: str) -> ArgumentError:
    """What to say where merges are to be left out, and there are none."""
    return ArgumentError(
        "bpe_dropout",
        "be 0 where no side is cut by bpe",
        f"{config.bpe_dropout:g} with {src} and {tgt}",
        "add src_tokenizer=bpe and tgt_tokenizer=bpe, or leave it out",
    )


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` words as settings; values are read as JSON where they can be."""
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ArgumentError(
                "setting", "have the form key=value", repr(word), "for example hidden=256"
            )
        settings[name.strip().replace("-", "_")] = _value(value)
    return settings


def read_toml(path: Path) -> dict[str, Any]:
    """Settings from a TOML file."""
    content = safe_read.read_bytes(path, MAX_TOML)
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except RecursionError:
        reason = "settings must be TOML, but this is nested too deeply"
        raise DataError(str(path), None, reason, "mend it") from None
    except ValueError as error:  # of TOML, of UTF-8 or of a number
        raise DataError(
            str(path), None, f"settings must be TOML, but this is not ({error})", "mend that line"
        ) from None


def preset_options(preset: str) -> dict[str, inspect.Parameter]:
    """What can be given to a preset by name, beyond what every preset takes or the data tell."""
    parameters = inspect.signature(PRESETS[preset], eval_str=True).parameters
    return {n: p for n, p in parameters.items() if n not in TOLD}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None, "none": None}.get(text, text)


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ArgumentError(
            "model",
            "be a table of settings of the preset",
            repr(value),
            "give them by name, as in hidden=256",
        )
    return value


def _checked(name: str, value: Any, option: inspect.Parameter) -> Any:
    if value is None and "none" in get_args(option.annotation):
        value = "none"  # as it is written on a command line
    try:
        return TypeAdapter(option.annotation).validate_python(value)
    except ValidationError as error:
        raise _broken_rule(error, name) from None


def _unknown(name: str, preset: str) -> ArgumentError:
    owners = [p for p in PRESETS if name in preset_options(p)]
    if owners:
        return ArgumentError(
            "setting",
            f"be known to the preset {preset}",
            f"{name!r}, which {', '.join(owners)} know{'s' if len(owners) == 1 else ''}",
            f"`regard settings {preset}` lists its own",
        )
    close = _nearest(name, [*Config.model_fields, *preset_options(preset)])
    fix = f"perhaps {close!r} is meant" if close else f"`regard settings {preset}` lists them all"
    return ArgumentError("setting", "have a name that regard knows", repr(name), fix)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


#: pydantic's kinds of errors, as they follow "must"
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
    """The first of pydantic's complaints in our form."""
    first = error.errors()[0]
    where = name or str(first["loc"][0])
    message = first["msg"].removeprefix("Input should ")
    rule = RULES.get(first["type"], message[:1].lower() + message[1:])
    return ArgumentError(
        where, rule.format(**first.get("ctx", {})), repr(first["input"]), "see `regard settings`"
    )


#: what the options of the presets are for
OPTIONS: Final = {
    "embed": "width of the token embeddings",
    "hidden": "width of the recurrent layers and of the memory; even",
    "layers": "layers of the encoder, and of the decoder",
    "cell": "the recurrence",
    "bidirectional": "half of the encoder reads the source from its end",
    "dropout": "share of features that are left out in training",
    "attention_dropout": "share of attention weights that are left out; none is as dropout",
    "word_dropout": "share of tokens whose vectors are left out in training",
    "tied": "what shares the target's embedding: the output layer, or the source's as well",
    "coverage": "weight of the loss on looking twice at a source token; 0 has none",
    "score": "how a state is scored against the memory",
    "slots": "vectors that the external memory holds",
    "half_width": "tokens to either side that local attention sees",
    "dim": "width of the layers",
    "heads": "heads of each attention; they divide dim",
    "feed_forward": "width inside the feed-forward layers",
    "norm_first": "normalise before each part of a layer, not after it",
    "kernel": "tokens that a convolution sees at once",
    "max_len": "positions that are learned: tokens of a side at most",
}


class SettingRow(NamedTuple):
    """A setting as it is shown."""

    name: str
    default: str
    description: str


def config_settings(preset: str = "bahdanau") -> list[SettingRow]:
    """The settings of every run, with the defaults that they have for a preset."""
    own = DEFAULTS.get(preset, {})
    return [
        SettingRow(
            name,
            _shown(own.get(name, field.default)),
            _described(field.description or "", field.annotation),
        )
        for name, field in Config.model_fields.items()
        if name != "model"
    ]


def preset_settings(preset: str) -> list[SettingRow]:
    """The settings that a preset adds: its sizes and its options."""
    return [
        SettingRow(name, *_option(option, preset_options(preset).keys()))
        for name, option in preset_options(preset).items()
    ]


def _option(option: Parameter, names: Any) -> tuple[str, str]:
    """The default and the description; that of a size is the row called `small`."""
    description = _described(OPTIONS[option.name], option.annotation)
    for table in (RECURRENT, TRANSFORMER, CONVOLUTIONAL):
        fields = table["small"]._fields
        if option.default is None and option.name in fields and set(fields) <= set(names):
            sizes = {size: getattr(row, option.name) for size, row in table.items()}
            by_size = ", ".join(f"{size} {value}" for size, value in sizes.items())
            return str(sizes["small"]), f"{description} ({by_size})"
    return _shown(option.default), description


def _described(description: str, annotation: Any) -> str:
    choices = _choices(annotation)
    return f"{description}: {', '.join(choices)}" if choices else description


def _choices(annotation: Any) -> tuple[str, ...]:
    """What a setting may be, where it is one of a few words."""
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _shown(value: object) -> str:
    """A value as it is written in key=value."""
    words = {"True": "true", "False": "false", "None": "none"}
    return words.get(str(value), str(value))
