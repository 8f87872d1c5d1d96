"""Guided attention: a head of the cross-attention learns word alignments beside the task.

Garg et al. (2019), https://aclanthology.org/D19-1453: one head of the layer before the last learns
the links of a statistical aligner. With A its weights and G the share of each source token in the
links of a target token, a batch adds `-weight * sum(G * log A)` to the sum of its losses. A head
among several is read where a target word is the input, so that it knows the word; the only one,
where the word is written, since it is what the decoder translates from.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from regard.atomic_files import atomic_output
from regard.data import Corpus, Tokenizer, require_tokenizer
from regard.data import lazy_pyarrow as arrow
from regard.data.corpus import FINGERPRINT, corpus_problem, crc32_of_file, write_note
from regard.data.encode_corpus import id_lists
from regard.data.text_files import fingerprint
from regard.data.word_aligner import align_texts, unit_links
from regard.errors import ArgumentError
from regard.models import ModelOutput
from regard.tasks import Task

#: added to weights before their logarithm
TINY: Final = 1e-6
#: pairs that are written at once
ROWS: Final = 1 << 16
#: the layout of the file, and the version of the aligner
LINKS: Final = 1


def guided_head(heads: Sequence[int]) -> str:
    """Return the name of the guided head, as in `regard align --by`, given the heads of layers."""
    layer = max(0, len(heads) - 2)
    return f"{layer}:0{'+1' if heads[layer] > 1 else ''}"


def guide_loss(
    out: ModelOutput, links: Float[Tensor, "batch tgt_len src_len"]
) -> Float[Tensor, ""]:
    """Return the summed cross entropy of the guided head, given the shares of the links."""
    maps = out.maps.get("cross")
    if not maps or maps[0].shape[-2:] != links.shape[-2:]:
        raise ArgumentError(
            "guide",
            "be given to models that attend to the tokens of the source",
            "given to another",
            "leave it out, or choose bahdanau, transformer or another preset",
        )
    weights = maps[max(0, len(maps) - 2)]
    log = (weights[:, 0].float() + TINY).log()
    return -((links.roll(1, dims=1) if weights.shape[1] > 1 else links) * log).sum()


def corpus_texts(
    corpus: Corpus, source: Tokenizer, target: Tokenizer, most: int
) -> list[tuple[str, str]]:
    """Return the first pairs of a corpus as text."""
    rows = range(min(len(corpus), most))
    return [(source.decode(corpus.src(row)), target.decode(corpus.tgt(row))) for row in rows]


def open_links(path: Path, corpus: Corpus, task: Task) -> Corpus:
    """Return the links of tokens of each pair of a corpus, which are estimated once.

    Link k of a pair joins the source token with number `src[k]` and the target token `tgt[k]`.
    """
    sides = require_tokenizer(task.input.encoder, "guide=words"), task.target
    key = fingerprint(links=LINKS, corpus=corpus.fingerprint)
    if path.exists() and corpus_problem(path) is None and Corpus(path).fingerprint == key:
        return Corpus(path)
    texts = corpus_texts(corpus, *sides, len(corpus))
    found = []
    for row, (pair, spans) in enumerate(zip(texts, align_texts(texts), strict=True)):
        units = [side.spans(text) for side, text in zip(sides, pair, strict=True)]
        # a text with unknown tokens is cut in another way than it was
        same = [len(units[0]) + 1, len(units[1])] == [
            corpus.src_lengths[row],
            corpus.tgt_lengths[row],
        ]
        found.append(sorted(unit_links(spans, *units)) if same else [])
    ids = arrow.list_(arrow.uint16())
    schema = arrow.schema([("src", ids), ("tgt", ids)]).with_metadata({FINGERPRINT: key})
    with atomic_output(path) as file, arrow.ipc.new_file(file, schema) as writer:
        for first in range(0, len(found), ROWS):
            some = found[first : first + ROWS]
            rows = ([[link[side] for link in own] for own in some] for side in (0, 1))
            arrays = [id_lists(own, np.dtype(np.uint16)) for own in rows]
            writer.write_batch(arrow.RecordBatch.from_arrays(arrays, schema=schema))
    write_note(
        path, {"pairs": len(found), "dropped": 0, "longest": [0, 0], "crc32": crc32_of_file(path)}
    )
    return Corpus(path)
