"""What a training run is made from: one flat table of settings, each with its default."""

import difflib
import inspect
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from regard.errors import ArgumentError
from regard.models import PRESETS

TokenizerKind = Literal["auto", "char", "space", "word", "bpe", "unigram"]
Metric = Literal["auto", "loss", "bleu", "chrf", "wer", "cer", "per", "exact"]
Schedule = Literal["auto", "cosine", "linear", "inverse-sqrt", "constant"]
Precision = Literal["auto", "32", "bf16", "fp16"]

#: what the sizes and options of a preset may hold
Setting = int | float | bool | str


class Config(BaseModel):
    """The settings of a run. `model` holds what goes to the preset: `hidden`, `layers`, ..."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    data: str = Field("", description="training pairs: TSV, JSONL, Parquet, '-'; .gz anywhere")
    tgt: str | None = Field(None, description="target side, if the sides are two parallel files")
    dev: str | None = Field(None, description="dev pairs; held out of the data if not given")
    dev_tgt: str | None = Field(None, description="target side of dev, if parallel files")
    columns: tuple[str, str] | None = Field(None, description="columns to use, by name or number")
    features: bool | None = Field(None, description="third column joins the source; None looks")
    skip_bad: bool = Field(False, description="count bad lines instead of stopping at the first")

    preset: str = Field("bahdanau", description="the model, by name: see `regard presets`")
    size: Literal["tiny", "small", "base"] = Field("small", description="row of the preset's sizes")
    model: dict[str, Setting] = Field({}, description="sizes and options of the preset, by name")

    src_tokenizer: TokenizerKind = Field("auto", description="how the source becomes tokens")
    tgt_tokenizer: TokenizerKind = Field("auto", description="how the target becomes tokens")
    vocab_size: int = Field(8000, ge=8, description="entries of a vocabulary at most")
    max_src_len: int = Field(256, ge=1, description="longer sources are left out")
    max_tgt_len: int = Field(256, ge=1, description="longer targets are left out")

    batch_tokens: int = Field(4096, ge=1, description="source and target tokens of a batch")
    batch_sentences: int | None = Field(None, ge=1, description="pairs of a batch, instead")
    accumulate: int = Field(1, ge=1, description="batches whose gradients make one step")
    lr: float | None = Field(None, gt=0, description="highest learning rate; None asks the preset")
    schedule: Schedule = Field("auto", description="auto: cosine with a budget, else inverse-sqrt")
    warmup: int = Field(200, ge=0, description="steps until the learning rate is at its highest")
    weight_decay: float = Field(0.01, ge=0, description="of AdamW")
    clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="share of probability given away")

    steps: int | None = Field(None, ge=1, description="optimiser steps at most")
    epochs: int | None = Field(None, ge=1, description="passes over the data at most")
    minutes: float | None = Field(None, gt=0, description="minutes of training at most")
    eval_every: int | None = Field(None, ge=1, description="steps between evaluations; None picks")
    eval_pairs: int = Field(1000, ge=1, description="dev pairs that are decoded at an evaluation")
    metric: Metric = Field("auto", description="what decides which checkpoint is best")
    patience: int = Field(10, ge=1, description="evaluations without a better one until the end")
    average: int = Field(5, ge=1, description="best checkpoints that are averaged at the end")
    save_every: int = Field(500, ge=1, description="steps between checkpoints")

    seed: int = Field(1, ge=0, description="of the weights, the order of the data and dropout")
    device: str = Field("auto", description="cpu, cuda, or auto")
    precision: Precision = Field("auto", description="auto: bf16 where the chip is fast in it")
    threads: int | None = Field(None, ge=1, description="CPU threads; None leaves it to torch")
    beam: int = Field(5, ge=1, description="width of the search when the run is used")
    tensorboard: bool = Field(False, description="also write TensorBoard events")

    @field_validator("precision", mode="before")
    @classmethod
    def _number_or_name(cls, value: object) -> object:
        """`precision=32` on a command line is a number."""
        return str(value) if isinstance(value, int) else value


def make_config(settings: Mapping[str, Any], base: Config | None = None) -> Config:
    """A config from settings by name, on top of `base`; a preset's sizes may be among them."""
    values = {} if base is None else base.model_dump(exclude_unset=True)
    preset = str(settings.get("preset", values.get("preset", "bahdanau")))
    if preset not in PRESETS:
        raise ArgumentError(
            "preset", f"be one of {', '.join(PRESETS)}", repr(preset), _nearest(preset, PRESETS)
        )
    options = _preset_options(preset)
    model = dict(values.pop("model", {}))
    for name, value in settings.items():
        if name == "model":
            model.update(value)
        elif name in Config.model_fields:
            values[name] = value
        elif name in options:
            model[name] = value
        else:
            known = [*Config.model_fields, *options]
            raise ArgumentError(
                "setting", "have a name that regard knows", repr(name), _nearest(name, known)
            )
    for name in model:
        if name not in options:
            raise ArgumentError(
                "model",
                f"hold settings of the preset {preset}",
                repr(name),
                _nearest(name, options),
            )
    try:
        return Config(**values, model=model)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArgumentError(
            where, _rule(first["msg"]), repr(first["input"]), "see `regard train --help`"
        ) from None


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
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(str(path), "be TOML", str(error), "mend that line") from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _preset_options(preset: str) -> list[str]:
    """What can be given to a preset by name, beyond what every preset takes."""
    names = inspect.signature(PRESETS[preset]).parameters
    return [name for name in names if name not in ("src_vocab", "tgt_vocab", "size")]


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(known))}"


def _rule(message: str) -> str:
    """What pydantic says, "Input should be ...", as it follows "must"."""
    lowered = message[:1].lower() + message[1:]
    return lowered.removeprefix("input should ").removeprefix("value error, ")
