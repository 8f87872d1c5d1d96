"""From a file of pairs to batches of token ids."""

from regard.data.batches import BatchPlan, BatchShape, collate, pad, pad_frames
from regard.data.corpus import Corpus, EncodedPairs
from regard.data.encode_corpus import SourceEncoder, build_corpus, require_tokenizer
from regard.data.error_hints import BadLines
from regard.data.frame_scaler import FrameScaler, NumberTargets, TargetEncoder, load_target
from regard.data.frame_tables import base_folder
from regard.data.pair_reader import PairReader, read_lines, read_pairs, read_texts
from regard.data.pairs import Pair
from regard.data.pictures import PictureEncoder
from regard.data.sounds import LogMel, SoundEncoder
from regard.data.stories import Story
from regard.data.story_encoder import StoryEncoder
from regard.data.tokenizers import TOKENIZER_KINDS, Tokenizer, source_ids

__all__ = [
    "TOKENIZER_KINDS",
    "BadLines",
    "BatchPlan",
    "BatchShape",
    "Corpus",
    "EncodedPairs",
    "FrameScaler",
    "LogMel",
    "NumberTargets",
    "Pair",
    "PairReader",
    "PictureEncoder",
    "SoundEncoder",
    "SourceEncoder",
    "Story",
    "StoryEncoder",
    "TargetEncoder",
    "Tokenizer",
    "base_folder",
    "build_corpus",
    "collate",
    "load_target",
    "pad",
    "pad_frames",
    "read_lines",
    "read_pairs",
    "read_texts",
    "require_tokenizer",
    "source_ids",
]
