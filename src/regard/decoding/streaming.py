"""Streaming: the tokens of targets as they are written."""

from collections.abc import Collection, Generator, Iterator
from dataclasses import replace

from regard.decoding.constraints import check_prefix
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.search import beam_plan, run_search
from regard.decoding.search_steps import SearchSettings, Streamed
from regard.decoding_options import DEFAULT, DecodingOptions
from regard.errors import ArgumentError
from regard.models.protocol import Lengths, SequenceModel, Src, check_batch, inference


def stream(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
) -> Iterator[Streamed]:
    """Search greedily and yield each token at once; `eos` comes last.

    The model is set to evaluation at each step and set back before the token is yielded, so
    an abandoned stream leaves nothing behind.

    Args:
        model: any model.
        src: one source.
        lengths: its number of real tokens; all are real if None.
        options: the limits, the prefix and the constraints count; the others are ignored.
    """
    check_batch(src, lengths)
    if len(src) != 1:
        raise ArgumentError("src", "be one source to be streamed", len(src), "use decode")
    check_prefix(options.prefix, rows=1)
    return stream_batch(model, src, lengths, options)


def stream_batch(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions,
    *,
    kinds: Collection[str] = (),
    graphs: DecodingGraphs | None = None,
    alternatives: int = 0,
) -> Generator[Streamed, None, list[list[Hypothesis]]]:
    """Search a batch greedily, yield each token at once, and return the hypotheses at the end.

    Args:
        model: any model.
        src: the sources.
        lengths: number of real tokens of each.
        options: as in `stream`.
        kinds: of the maps that hypotheses carry.
        graphs: of this model, to replay the steps on a GPU in blocks.
        alternatives: likeliest tokens at each place that hypotheses carry.
    """
    options = replace(
        options,
        beam=1,
        nbest=1,
        coverage_penalty=0.0,
        num_samples=0,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
    )
    settings = SearchSettings(
        model, options, beam_plan(options), tuple(kinds), alternatives, stream=True
    )
    steps = run_search(settings, src, lengths, graphs)
    while True:
        try:
            with inference(model):
                written = next(steps)
        except StopIteration as end:
            found: list[list[Hypothesis]] = end.value
            return found
        yield from written
