"""Tokenizers of transformers in the language of the library `tokenizers`.

Most are described in it already. Those of Marian and of M2M-100 are files of sentencepiece and a
vocabulary, and that of ByT5 has no file at all: these are described anew.
"""

import re
from pathlib import Path
from typing import Any, Final

from regard import extras, safe_read
from regard.imported.families import ImportRefusedError

#: before a piece that no text contains: one of the other side, or a control symbol
ABSENT: Final = "\uffff"
SPACE: Final = "▁"
#: type of the pieces of sentencepiece that texts are cut into
NORMAL: Final = 1
#: types of models of sentencepiece
UNIGRAM, BPE = 1, 2
#: files of sentencepiece, of sources and of targets
PIECES: Final = {
    "MarianTokenizer": ("source.spm", "target.spm"),
    "M2M100Tokenizer": ("sentencepiece.bpe.model",) * 2,
}
#: tokens of these that name a language
LANGUAGE: Final = re.compile(r">>.*<<|__[a-z]{2,3}__")
#: bytes of ByT5 come after this many special tokens
FIRST_BYTE: Final = 3

Described = dict[str, Any]


def described(tokenizer: Any, folder: Path, inside: Path, *, target: bool) -> Described:
    """Return the description of a tokenizer, of sources or of targets.

    Raises ImportRefusedError for one of another kind.
    """
    kind = type(tokenizer).__name__.removeprefix("Guarded")
    if hasattr(tokenizer, "backend_tokenizer"):
        found: Described = safe_read.parse_json(tokenizer.backend_tokenizer.to_str())
        return found | {"padding": None, "truncation": None}
    if kind in PIECES:
        content = safe_read.read_bytes(folder / PIECES[kind][target], inside=inside)
        return _of_sentencepiece(content, tokenizer.get_vocab())
    if kind == "ByT5Tokenizer":
        return _of_bytes(tokenizer.get_vocab())
    raise ImportRefusedError(f"its tokenizer is a {kind} without tokenizer.json")


def _of_sentencepiece(content: bytes, vocabulary: dict[str, int]) -> Described:
    """Describe a model whose pieces have other ids; the name of a language is a token."""
    extras.require("sentencepiece", extra="hf", for_="a tokenizer of sentencepiece")
    from sentencepiece import sentencepiece_model_pb2 as untyped
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    files: Any = untyped
    file = files.ModelProto()
    file.ParseFromString(content)
    kind = file.trainer_spec.model_type
    if kind not in (UNIGRAM, BPE):
        raise ImportRefusedError("its tokenizer is neither a unigram model nor one of merges")
    scores = {one.piece: one.score for one in file.pieces if one.type == NORMAL}
    names = {number: piece for piece, number in vocabulary.items()}
    rows = [names.get(number, "") for number in range(max(names) + 1)]
    languages = {p: n for p, n in vocabulary.items() if LANGUAGE.fullmatch(p)}
    known = scores | dict.fromkeys(languages, 0.0)
    pairs = [
        (piece, known[piece]) if piece in known else (f"{ABSENT}{number}{piece}", 0.0)
        for number, piece in enumerate(rows)
    ]
    unknown = vocabulary["<unk>"]
    model: Any
    if kind == UNIGRAM:
        model = models.Unigram(pairs, unk_id=unknown)
    else:  # whose pieces are listed in the order in which they are made
        ids = {piece: number for number, (piece, _) in enumerate(pairs)}
        splits = [(p[:i], p[i:]) for p in scores for i in range(1, len(p)) if p in ids]
        merges = [split for split in splits if ids.keys() >= {*split}]
        model = models.BPE(ids, merges, unk_token=pairs[unknown][0], fuse_unk=True)
    made: Any = Tokenizer(model)
    steps: list[Any] = [normalizers.Strip(left=False), normalizers.Replace(Regex(" {2,}"), SPACE)]
    charsmap = file.normalizer_spec.precompiled_charsmap
    made.normalizer = normalizers.Sequence(
        [*([normalizers.Precompiled(charsmap)] if charsmap else []), *steps]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    absent = decoders.Replace(Regex(f"{ABSENT}[0-9]+"), "")
    made.decoder = decoders.Sequence([absent, decoders.Metaspace(replacement=SPACE)])
    found: Described = safe_read.parse_json(made.to_str())
    return found | {"added_tokens": [_special(n, p) for p, n in languages.items()]}


def _of_bytes(vocabulary: dict[str, int]) -> Described:
    """Describe a tokenizer of bytes, each by the character that byte-level tokenizers write."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    chars = {byte: chr(byte) for byte in printed}
    chars |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    special = {p: n for p, n in vocabulary.items() if not FIRST_BYTE <= n < FIRST_BYTE + 256}
    bytes_ = {char: FIRST_BYTE + byte for byte, char in chars.items()}
    made: Any = Tokenizer(models.BPE({**special, **bytes_}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    found: Described = safe_read.parse_json(made.to_str())
    return found | {"added_tokens": [_special(n, p) for p, n in special.items()]}


def _special(number: int, piece: str) -> Described:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": piece, "special": True, **flags}
