"""Decoding, written once for all models: it talks to `encode`, `start` and `step` alone."""

from regard.decoding.candidates import Candidates, select
from regard.decoding.ensemble import Ensemble
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.search import decode, force_decode, stream
from regard.decoding.search_history import Hypothesis
from regard.decoding.search_steps import Streamed
from regard.decoding_options import DecodingOptions

__all__ = [
    "Candidates",
    "DecodingGraphs",
    "DecodingOptions",
    "Ensemble",
    "Hypothesis",
    "Streamed",
    "decode",
    "force_decode",
    "select",
    "stream",
]
