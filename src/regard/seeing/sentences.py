"""A view in sentences, for readers who listen and for programs that search."""

import numpy as np

from regard.seeing.labels import fit, plain_ascii, safe, told_apart
from regard.seeing.view import View

#: mass that is not worth a word
NOTHING = 0.005
#: inputs that a sentence names at most
NAMED = 3
#: cells of a label at most
LABEL = 40


def sentences(view: View, *, most_rows: int) -> list[str]:
    """One about the map, one for each output, and the notes."""
    lines = [f"Where each output looked: {view.title.replace(' · ', ', ')}."]
    inputs = told_apart([fit(safe(label), LABEL) for label in view.columns])
    lines += [_sentence(view, i, inputs) for i in range(min(len(view.rows), most_rows))]
    more = len(view.rows) - most_rows
    if more > 0:
        lines.append(f"{more} more outputs are not told: save all with -o x.html.")
    return lines + [f"Note: {safe(note)}." for note in view.notes]


def in_ascii(lines: list[str]) -> list[str]:
    """The same in ASCII alone."""
    return [plain_ascii(line) for line in lines]


def _sentence(view: View, i: int, inputs: list[str]) -> str:
    weights = view.weights[i]
    order = [int(j) for j in np.argsort(-weights, kind="stable")[:NAMED]]
    named = [j for j in order if weights[j] >= NOTHING]
    prob, hidden = view.probs[i], float(view.hidden[i])
    rest = float(weights.sum()) - float(weights[named].sum())
    output = fit(safe(view.rows[i]), LABEL)
    parts = [f'Output {i + 1}, "{output}", looked {_where(view, i, named, inputs)}']
    if rest >= NOTHING:
        parts.append(f"the other inputs got {rest:.2f}")
    if hidden >= NOTHING:
        parts.append(f"{hidden:.2f} is hidden")
    if prob is not None:
        parts.append(f"its probability is {prob:.2f}")
    return "; ".join(parts) + "."


def _where(view: View, i: int, named: list[int], inputs: list[str]) -> str:
    if not named:
        return "at no input that is shown"
    first, *others = [f'"{inputs[j]}" ({view.weights[i, j]:.2f})' for j in named]
    mostly = "mostly at" if view.weights[i, named[0]] >= 0.5 else "at"
    return f"{mostly} {first}" + "".join(f", then {other}" for other in others)
