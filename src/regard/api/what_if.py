"""Interventions on runs: a what-if of the source, the prefix, the heads and the maps."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from regard.api.predictor import Predictor
from regard.errors import ArgumentError
from regard.models.encoders import Encoder
from regard.preemption import is_preemptible, preemptible
from regard.seeing.attribution.interventions import transformer_switches
from regard.seeing.attribution.what_if import (
    Intervention,
    WhatIf,
    intervened,
)
from regard.seeing.capture.capture_result import CapturedModule
from regard.seeing.trace import Text, Trace
from regard.symbols import UNK
from regard.tasks import Source


def run_what_if(
    predictor: Predictor,
    trace: Callable[..., Trace],
    text: Any,
    change: Intervention,
    options: dict[str, Any],
) -> WhatIf:
    """Decode a source as it is and with changes, and compare the two."""
    read, changed = changed_source(predictor, text, change)
    more = dict(options)
    if change.prefix is not None and predictor.task.has_sources:
        more["prefix"] = [_prefix_ids(predictor, change.prefix)]
    before = trace(text, **options)
    modules = _modules(predictor, trace, text, before) if change.heads_off or change.cells else {}
    encoders = [part for part in predictor.module.modules() if isinstance(part, Encoder)]
    switches = partial(transformer_switches, predictor.module)
    with intervened(change, predictor.module, modules, switches, encoders) as notes:
        after = trace(changed, **more)
    return WhatIf.of(change, (before, after), notes=notes, read=read)


def changed_source(predictor: Predictor, source: Any, change: Intervention) -> tuple[Text, Any]:
    """Return a source as it is read, and with its tokens replaced; features after its text stay.

    A model that continues texts reads the prefix of its output, too.
    """
    (row,) = predictor.task.input.rows([source])
    read, changed = predictor.task.input.text(source, row), source
    if change.replace:
        text = change.replaced(read)
        if isinstance(source, Source):
            changed = source._replace(text=text)
        else:
            rest = source[len(read.text) :] if str(source).startswith(read.text) else ""
            changed = f"{text}{rest}"
    if change.prefix is not None and not predictor.task.has_sources:
        changed = f"{changed}{change.prefix}"
    return read, changed


def _prefix_ids(predictor: Predictor, prefix: str) -> list[int]:
    ids = predictor.target_ids(prefix)
    if not ids or UNK in ids:
        value = f"{prefix!r} ({' '.join(predictor.task.target.tokens(ids)) or 'nothing'})"
        rule = "have a token or more, and only such as the model can write"
        raise ArgumentError("prefix", rule, value, "choose another beginning")
    return ids


def _modules(
    predictor: Predictor, trace: Callable[..., Trace], text: Any, before: Trace
) -> dict[tuple[str, int], CapturedModule]:
    """Return the attention modules of a model, found by running it once on what it wrote."""
    from regard.seeing.capture.recorder import capture  # loads torch's compiler

    steps = nullcontext() if is_preemptible() else preemptible(lambda: None)
    with steps, capture(predictor.module) as seen:  # recurrent decoders attend step by step
        trace(text, before.target.text)
    names = seen.modules()
    if not predictor.task.has_sources:  # capture cannot tell a decoder's past from an encoder's
        names = {
            (kind.replace("encoder-history", "decoder-history"), layer): found
            for (kind, layer), found in names.items()
        }
    return names
