"""From a file of pairs to batches of token ids."""

from regard.data.batches import Batch, Batches, BatchPlan, BatchShape, collate, pad, pad_frames
from regard.data.bpe_dropout import BPEDropout, Resegmenter
from regard.data.corpus import Corpus, EncodedPairs, FrameRows
from regard.data.dev_set import dev_share, is_held_out
from regard.data.encode_corpus import build_corpus
from regard.data.error_hints import BadLines
from regard.data.frame_scaler import FrameScaler
from regard.data.frame_tables import FrameReader, as_frames, base_folder, read_frame_sources
from regard.data.number_targets import (
    NumberTargets,
    TargetEncoder,
    load_target,
    require_text_target,
)
from regard.data.pair_reader import (
    PairReader,
    join_lines,
    keep_source,
    read_lines,
    read_pairs,
    read_texts,
    require_text,
    save_stdin,
)
from regard.data.pairs import Format, Pair
from regard.data.pictures import PictureEncoder, PictureReader
from regard.data.row_parsers import parse_features
from regard.data.sharded_corpus import ShardedCorpus
from regard.data.sounds import LogMel, SoundEncoder, SoundReader
from regard.data.source_encoders import SourceEncoder, require_tokenizer
from regard.data.stories import Story
from regard.data.story_encoder import StoryEncoder
from regard.data.text_files import fingerprint
from regard.data.tokenizer_selection import (
    TokenizerChoice,
    choose_label_tokenizer,
    choose_tokenizer,
)
from regard.data.tokenizers import TOKENIZER_KINDS, Tokenizer, source_ids, target_ids
from regard.data.word_vectors import WordVectorFile, open_word_vectors

__all__ = [
    "TOKENIZER_KINDS",
    "BPEDropout",
    "BadLines",
    "Batch",
    "BatchPlan",
    "BatchShape",
    "Batches",
    "Corpus",
    "EncodedPairs",
    "Format",
    "FrameReader",
    "FrameRows",
    "FrameScaler",
    "LogMel",
    "NumberTargets",
    "Pair",
    "PairReader",
    "PictureEncoder",
    "PictureReader",
    "Resegmenter",
    "ShardedCorpus",
    "SoundEncoder",
    "SoundReader",
    "SourceEncoder",
    "Story",
    "StoryEncoder",
    "TargetEncoder",
    "Tokenizer",
    "TokenizerChoice",
    "WordVectorFile",
    "as_frames",
    "base_folder",
    "build_corpus",
    "choose_label_tokenizer",
    "choose_tokenizer",
    "collate",
    "dev_share",
    "fingerprint",
    "is_held_out",
    "join_lines",
    "keep_source",
    "load_target",
    "open_word_vectors",
    "pad",
    "pad_frames",
    "parse_features",
    "read_frame_sources",
    "read_lines",
    "read_pairs",
    "read_texts",
    "require_text",
    "require_text_target",
    "require_tokenizer",
    "save_stdin",
    "source_ids",
    "target_ids",
]
