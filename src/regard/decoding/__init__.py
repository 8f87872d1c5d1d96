"""Decoding, written once for all models: it talks to `encode`, `start` and `step` alone."""

from regard.decoding.candidates import Candidates, select
from regard.decoding.ensemble import Ensemble
from regard.decoding.forced_decoding import force_decode
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.hypothesis import Hypothesis, replace_unknown
from regard.decoding.search import beam_search, decode, greedy, sample
from regard.decoding.search_steps import Streamed
from regard.decoding.streaming import stream
from regard.decoding_options import DecodingOptions

__all__ = [
    "Candidates",
    "DecodingGraphs",
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
