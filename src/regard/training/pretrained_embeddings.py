"""Embeddings initialised from pretrained word vectors."""

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import nn

from regard.data import SourceEncoder, TargetEncoder, Tokenizer, require_tokenizer
from regard.data.frame_scaler import require_text_target
from regard.data.word_vectors import WordVectorFile, open_word_vectors
from regard.errors import ArgumentError, DataError
from regard.messages import message, translated
from regard.models import PRESETS
from regard.models.embedding import TokenEmbedding
from regard.symbols import SYMBOLS
from regard.tasks import possible_tasks
from regard.training.config import Config, preset_options

Say = Callable[[str], None]

#: what embeddings call their ids, by the setting that names a file for them
NAMES: Final = {"src_vectors": ("src",), "tgt_vectors": ("tgt", "tokens")}
#: kinds of tokenisers whose tokens are words
WHOLE: Final = ("word", "space")


def check_vectors(config: Config) -> None:
    """Raise RegardError if word vectors do not fit the model; opens their files."""
    given = _given(config)
    if not given and config.vectors_rate != 1:
        rule = "be left out where no embedding starts from vectors"
        fix = "name a file with src_vectors or tgt_vectors"
        raise ArgumentError("vectors_rate", rule, f"{config.vectors_rate:g}", fix)
    if not given:
        return
    with torch.device("meta"):  # shapes without numbers
        model = PRESETS[config.preset](8, 8, config.model_size, **config.model)
    found = embeddings(config, model)
    if len({id(embedding.table) for embedding in found.values()}) < len(found):
        rule = "not both be given where source and target share one embedding"
        value = " and ".join(map(repr, given.values()))
        fix = "leave one of them out, or say tied=output"
        raise ArgumentError("src_vectors and tgt_vectors", rule, value, fix)
    for setting, embedding in found.items():
        _opened(config, setting, embedding)


def embeddings(config: Config, model: nn.Module) -> dict[str, TokenEmbedding]:
    """Return the embeddings that start from word vectors, by the setting that names the file."""
    every = {e.name: e for e in model.modules() if isinstance(e, TokenEmbedding)}
    found = {}
    for setting, path in _given(config).items():
        mine = [every[name] for name in NAMES[setting] if name in every]
        if not mine:
            raise _no_embedding(config, setting, path)
        found[setting] = mine[0]
    return found


def start_from_vectors(
    config: Config, model: nn.Module, src: SourceEncoder, tgt: TargetEncoder, say: Say
) -> None:
    """Initialise embeddings from word vectors; other rows stay random."""
    for setting, embedding in embeddings(config, model).items():
        tokenizer = (
            require_tokenizer(src, setting)
            if setting == "src_vectors"
            else require_text_target(tgt, setting)
        )
        file = _opened(config, setting, embedding)
        found, total = fill(embedding, tokenizer, file), tokenizer.vocab_size
        if not found:
            raise _none_found(config, setting, tokenizer, file)
        rate = config.vectors_rate
        learning = (
            message("train.vectors.rate", rate=rate) if rate else message("train.vectors.frozen")
        )
        learning = "" if rate == 1 else learning
        said = message(
            "train.vectors",
            side=translated("train.side", _side(config, setting)),
            found=found,
            total=total,
            file=file.name,
            rate=learning,
        )
        say(said)
        if tokenizer.kind not in WHOLE and found < total / 2:
            say(message("train.vectors.words", kind=tokenizer.kind, setting=_words(setting)))


def fill(embedding: TokenEmbedding, tokenizer: Tokenizer, file: WordVectorFile) -> int:
    """Copy the word vectors of tokens into an embedding; returns how many were found.

    Tokens are looked up as displayed, and then in lower case. Symbols and features have none.
    """
    ids = range(len(SYMBOLS), tokenizer.vocab_size - len(tokenizer.features))
    shown = tokenizer.tokens(ids)
    vectors = file.vectors({*shown, *map(str.lower, shown)})
    names = (word if word in vectors else word.lower() for word in shown)
    found = {i: vectors[name] for i, name in zip(ids, names, strict=True) if name in vectors}
    if found:
        rows = torch.from_numpy(np.stack(list(found.values())))
        with torch.no_grad():  # what the model sees is then the vector itself
            embedding.table.weight[list(found)] = rows / embedding.scale
    return len(found)


def _given(config: Config) -> dict[str, str]:
    """Return the named files by setting."""
    files = {"src_vectors": config.src_vectors, "tgt_vectors": config.tgt_vectors}
    return {setting: path for setting, path in files.items() if path is not None}


def _opened(config: Config, setting: str, embedding: TokenEmbedding) -> WordVectorFile:
    """Open the file of a setting; raises ArgumentError unless it is as wide as the embedding."""
    path = _given(config)[setting]
    if not path:
        raise ArgumentError(setting, "be a file, which is read twice", repr(path), "name one")
    file = open_word_vectors(path)
    if file.width != embedding.dim:
        size = "embed" if "embed" in preset_options(config.preset) else "dim"
        rule = f"be {file.width}, the width of the vectors in {path}"
        fix = f"add {size}={file.width}, or name vectors that are {embedding.dim} wide"
        raise ArgumentError(size, rule, embedding.dim, fix)
    return file


def _no_embedding(config: Config, setting: str, path: str) -> ArgumentError:
    task = possible_tasks(config)[-1]
    if setting not in task.vector_sides:
        rule = f"be left out for {task.input.facts.examples}"
        fix = f"say tgt_vectors={path}, as with tgt_tokenizer"
    else:
        rule = f"be left out for the preset {config.preset}, which has no such embedding"
        fix = "leave it out"
    return ArgumentError(setting, rule, repr(path), fix)


def _none_found(
    config: Config, setting: str, tokenizer: Tokenizer, file: WordVectorFile
) -> DataError:
    fix = "check that language and case are those of the data"
    if tokenizer.kind not in WHOLE:
        fix += f", or add {_words(setting)}"
    reason = f"there is no vector for any of the {_side(config, setting)} tokens"
    return DataError(file.name, None, f"{reason}, which are {tokenizer.kind}", fix)


def _side(config: Config, setting: str) -> str:
    """Return what messages call the tokens."""
    return possible_tasks(config)[-1].vector_sides[setting]


def _words(setting: str) -> str:
    """Return the setting by which tokens are words."""
    return setting.replace("vectors", "tokenizer") + "=word"
