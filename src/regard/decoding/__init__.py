"""Decoding, written once for all models: it talks to `encode`, `start` and `step` alone."""

from regard.decoding.ensemble import Ensemble
from regard.decoding.force import force_decode
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.options import DecodingOptions
from regard.decoding.select import Choice, select
from regard.decoding.strategies import beam_search, decode, greedy, sample
from regard.decoding.streaming import Streamed, stream
from regard.decoding.unknown import replace_unknown

__all__ = [
    "Choice",
    "DecodingOptions",
    "Ensemble",
    "Hypothesis",
    "Streamed",
    "beam_search",
    "decode",
    "force_decode",
    "greedy",
    "replace_unknown",
    "sample",
    "select",
    "stream",
]
