"""Cases of the toolkit comparison: data, sizes, batches; plain Python for every toolkit."""

from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

#: the most frequent words of each side; the four special symbols come on top
WORDS: Final = 10_000
#: steps that are not timed
WARM_UP: Final = 10
#: sentences to predict, how many at a time, the width of the beam, the length of every output
SENTENCES: Final = 500
PREDICT_BATCH: Final = 32
BEAM: Final = 5
LENGTH: Final = 20
#: Adam's rate, and the largest norm of the gradient
RATE: Final = 1e-3
CLIP: Final = 1.0


class Recurrent(NamedTuple):
    """A bidirectional encoder of one layer and half of the width for each direction, a decoder
    of one layer with input feeding, additive attention."""

    cell: Literal["gru", "lstm"]
    embed: int
    hidden: int


class Attentive(NamedTuple):
    """A Transformer."""

    dim: int
    heads: int
    layers: int
    feed_forward: int


class Case(NamedTuple):
    """A model and its data.

    Attributes:
        title: in words.
        train: file of the training pairs,
        dev: of a few others,
        test: and of the sources to predict.
        tokenizers: of source and target, by regard's names.
        columns: of source and target in the files.
        batch: pairs of a batch in training.
        sizes: of the model.
    """

    title: str
    train: str
    dev: str
    test: str
    tokenizers: tuple[str, str]
    columns: tuple[int, int]
    batch: int
    sizes: Recurrent | Attentive


MULTI30K: Final[dict[str, Any]] = {
    "train": "multi30k/train.en-de-fr-cs.tsv.gz",
    "dev": "multi30k/val.en-de-fr-cs.tsv.gz",
    "test": "multi30k/test_2016_flickr.en-de-fr-cs.tsv.gz",
    "tokenizers": ("word", "word"),
    "columns": (0, 1),
    "batch": 64,
}
CASES: Final = {
    "a": Case("Multi30k en-de, GRU", sizes=Recurrent("gru", 256, 512), **MULTI30K),
    "b": Case("Multi30k en-de, Transformer", sizes=Attentive(256, 4, 3, 1024), **MULTI30K),
    "c": Case(
        "CMUdict letters to phonemes, LSTM",
        "cmudict_07b_cntk/train.tsv.gz",
        "cmudict_07b_cntk/dev.tsv.gz",
        "cmudict_07b_cntk/test.tsv.gz",
        ("char", "space"),
        (0, 1),
        128,
        Recurrent("lstm", 128, 256),
    ),
}


def missing(data: Path, names: list[str]) -> str | None:
    """Return one sentence about missing data, or None."""
    for name in names:
        case = CASES[name]
        for file in (case.train, case.dev, case.test):
            if not (data / file).is_file():
                return f"{data} must hold {file}, but it does not: name its folder with --data."
    return None


def record(
    case: str,
    mode: str,
    *,
    system: str,
    version: str,
    precision: str,
    threads: int,
    seconds: float,
    cpu_seconds: float,
    sentences: int,
    src_tokens: int,
    tgt_tokens: int,
    **more: Any,
) -> dict[str, Any]:
    """One measurement. Tokens are those of the text and the target's eos: a source's eos, which
    some systems add, counts for nobody, and padding does not, either. `cpu_seconds` are those of
    all threads of the process: on one thread they hardly change when others use the machine."""
    return {
        "system": system,
        "version": version,
        "case": case,
        "mode": mode,
        "precision": precision,
        "threads": threads,
        "tokens_per_s": (src_tokens + tgt_tokens) / seconds,
        "target_tokens_per_s": tgt_tokens / seconds,
        "sentences_per_s": sentences / seconds,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "sentences": sentences,
        **more,
    }
