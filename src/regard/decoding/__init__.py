"""Decoding, written once for all models: it talks to `encode`, `start` and `step` alone."""

from regard.decoding.candidates import Candidates, select
from regard.decoding.ensemble import Ensemble
from regard.decoding.forced_decoding import force_decode
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.hypothesis import Hypothesis, replace_unknown
from regard.decoding.search import beam_search, decode, greedy, sample
from regard.decoding.session import DecodingSession, WrittenToken, refuse_session
from regard.decoding.streaming import Streamed, stream
from regard.decoding_options import DecodingOptions

__all__ = [
    "Candidates",
    "DecodingGraphs",
    "DecodingOptions",
    "DecodingSession",
    "Ensemble",
    "Hypothesis",
    "Streamed",
    "WrittenToken",
    "beam_search",
    "decode",
    "force_decode",
    "greedy",
    "refuse_session",
    "replace_unknown",
    "sample",
    "select",
    "stream",
]
