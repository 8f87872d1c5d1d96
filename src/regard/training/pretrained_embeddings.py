"""Embeddings initialised from pretrained word vectors, or from counts of the training data."""

from collections.abc import Callable, Iterator
from typing import Final, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.data import EncodedPairs, SourceEncoder, TargetEncoder, Tokenizer, require_tokenizer
from regard.data.corpus import Ids
from regard.data.story_encoder import StoryEncoder
from regard.data.word_vectors import WordVectorFile, open_word_vectors
from regard.device import shapes_only
from regard.errors import ArgumentError, DataError
from regard.messages import message, translated
from regard.models import PRESETS
from regard.models.embedding import TokenEmbedding
from regard.symbols import SYMBOLS
from regard.tasks import possible_tasks
from regard.tasks.task import require_text_target
from regard.training.config import Config, preset_options

Say = Callable[[str], None]

#: what embeddings call their ids, by the setting that names a file for them
NAMES: Final = {"src_vectors": ("src",), "tgt_vectors": ("tgt", "tokens")}
#: products of tokens that occur together which are counted, at most
COUNTED: Final = 10_000_000
#: vectors shorter than this share of the mean stay shorter than others
SHORTEST: Final = 0.3
#: kinds of tokenisers whose tokens are words
WHOLE: Final = ("word", "space")


def check_vectors(config: Config) -> None:
    """Raise RegardError if word vectors do not fit the model; opens their files."""
    given = _given(config)
    if not given:
        return
    with shapes_only():
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
        read = src.tokenizer if isinstance(src, StoryEncoder) else src
        tokenizer = (
            require_tokenizer(read, setting)
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


def start_from_counts(model: nn.Module, train: EncodedPairs, say: Say) -> None:
    """Initialise the embeddings of both sides by which tokens occur together in training pairs.

    Their rows are singular vectors of the positive pointwise mutual information (Levy and Goldberg,
    2014) of source and target tokens: words of like translations begin alike. Others stay random,
    and so do all of a small vocabulary, such as letters, which is learned soon.
    """
    tables = {e.name: e for e in model.modules() if isinstance(e, TokenEmbedding)}
    large = {name: e for name, e in tables.items() if e.vocab >= e.dim}
    if not {"src", "tgt"} <= large.keys():
        return
    found = _associations(train, tables["src"].vocab, tables["tgt"].vocab)
    width = min(embedding.dim for embedding in large.values())
    left, values, right = torch.svd_lowrank(found, width, niter=4)
    for name, side, tokens in zip(("src", "tgt"), (left, right), found._indices(), strict=True):
        known = tokens.unique()
        vectors = side[known] * values.sqrt()
        norms = vectors.norm(dim=1, keepdim=True)
        scaled = vectors / norms.clamp(min=SHORTEST * float(norms.mean()))
        with torch.no_grad():
            tables[name].table.weight[known, :width] = scaled / tables[name].scale
    say(message("train.counted"))


def _associations(train: EncodedPairs, src_vocab: int, tgt_vocab: int) -> Tensor:
    """Return the sparse mutual information of tokens that occur together more than once."""
    rows = np.random.default_rng(0).permutation(len(train.src_lengths))
    cost = np.cumsum(train.src_lengths[rows].astype(np.int64) * train.tgt_lengths[rows])
    rows = rows[: 1 + int(np.searchsorted(cost, COUNTED))]
    sides = (cast(Ids, train.gather(side, rows)) for side in ("src", "tgt"))
    src, tgt = (
        [np.unique(ids[ids >= len(SYMBOLS)]).astype(np.int64) for ids in _each(side)]
        for side in sides
    )
    pairs = [(s[:, None] * tgt_vocab + t).ravel() for s, t in zip(src, tgt, strict=True)]
    keys, together = np.unique(np.concatenate(pairs), return_counts=True)
    keys, together = keys[together > 1], together[together > 1]
    place = np.stack([keys // tgt_vocab, keys % tgt_vocab])
    of_src, of_tgt = (
        np.bincount(np.concatenate(side), minlength=size)[at]
        for side, size, at in zip((src, tgt), (src_vocab, tgt_vocab), place, strict=True)
    )
    count = len(rows)
    information = np.log((together * count + 1) / (of_src * of_tgt + count)).clip(min=0)
    return torch.sparse_coo_tensor(
        torch.from_numpy(place),
        torch.from_numpy(information.astype(np.float32)),
        (src_vocab, tgt_vocab),
        check_invariants=False,
    )


def _each(side: Ids) -> Iterator[np.ndarray]:
    for start, length in zip(side.starts, side.lengths, strict=True):
        yield side.values[start : start + length]


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
