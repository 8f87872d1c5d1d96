# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The CPU kernel of a GRU over few sequences.

torch runs some ten operations for each step of a GRU, which take longer than the arithmetic of a
few rows. Its LSTM is one call of oneDNN and needs no other.
"""

from regard.ops.cpu_math import ONE, add_dots, copy, gru_cell
from regard.ops.cpu_runtime import batch, kernel, row, rows


@kernel(batch, rows, row, rows, row, row, batch)
def gru(inputs, weight, bias, start, gates, saved, out):
    """Run all steps of each sequence; `inputs` are the inputs' part of the gates.

    `gates`, as wide as these, and `saved`, four times as wide as a state, are scratch.
    """
    for b in range(len(out)):
        for t in range(out.shape[1]):
            hidden = start[b] if t == 0 else out[b, t - 1]
            copy(bias, gates)
            add_dots(weight, hidden, ONE, gates)
            gru_cell(inputs[b, t], gates, hidden, saved, out[b, t])
