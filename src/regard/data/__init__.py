"""From a file of pairs to batches of token ids."""

from regard.data.batches import Batches, BatchPlan
from regard.data.building import build_corpus, open_or_build_corpus
from regard.data.choice import Choice, choose_kind
from regard.data.collate import Batch, Shape, collate, pad, pad_frames
from regard.data.corpus import Corpus, EncodedPairs, FrameRows
from regard.data.files import fingerprint
from regard.data.frames import Frames
from regard.data.merge_dropout import MergeDropout, Recutter
from regard.data.pairs import BadLines, Format, Pair
from regard.data.parsing import parse_features
from regard.data.read_tables import read_tables
from regard.data.reading import PairReader, keep_stdin, read_lines, read_pairs
from regard.data.source import SourceSide, load_side, source_ids, target_ids, text_side
from regard.data.split import dev_share, held_out
from regard.data.tables import Tables, as_given, as_table, folder_of, only_text
from regard.data.texts import joined, read_texts
from regard.data.tokenizers import KINDS, Tokenizer
from regard.data.vectors import VectorFile, open_vectors

__all__ = [
    "KINDS",
    "BadLines",
    "Batch",
    "BatchPlan",
    "Batches",
    "Choice",
    "Corpus",
    "EncodedPairs",
    "Format",
    "FrameRows",
    "Frames",
    "MergeDropout",
    "Pair",
    "PairReader",
    "Recutter",
    "Shape",
    "SourceSide",
    "Tables",
    "Tokenizer",
    "VectorFile",
    "as_given",
    "as_table",
    "build_corpus",
    "choose_kind",
    "collate",
    "dev_share",
    "fingerprint",
    "folder_of",
    "held_out",
    "joined",
    "keep_stdin",
    "load_side",
    "only_text",
    "open_or_build_corpus",
    "open_vectors",
    "pad",
    "pad_frames",
    "parse_features",
    "read_lines",
    "read_pairs",
    "read_tables",
    "read_texts",
    "source_ids",
    "target_ids",
    "text_side",
]
