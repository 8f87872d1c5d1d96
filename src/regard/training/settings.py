"""Every setting with its default and what it is for, to be shown."""

from inspect import Parameter
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from regard.models.preset_parts import CONVOLUTIONAL, RECURRENT, TRANSFORMER
from regard.training.config import DEFAULTS, Config, preset_options

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
