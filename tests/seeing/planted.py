"""Models of one-hot vectors whose heads are set by hand, so that each has one known habit."""

import torch
from torch import nn

from regard.attention import MultiHeadAttention

#: tokens, positions, and the width of a head
VOCAB, PLACES, WIDE = 7, 13, 13
HEADS = 4
DIM = HEADS * WIDE
TOKEN, PLACE, BEFORE, ANSWER = 0, VOCAB, VOCAB + PLACES, 2 * VOCAB + PLACES
#: scores differ by this much, so that a softmax is all or nothing
SHARP = 400.0
TOKENS = ("<s>", ",", "a", "b", "c", "d", "e")
SEPARATOR = TOKENS.index(",")


def part(start, count, offset=0, into=0):
    """A matrix (WIDE, DIM) that copies features `start + i` to `into + i + offset`."""
    matrix = torch.zeros(WIDE, DIM)
    for i in range(count):
        if 0 <= i + offset < WIDE:
            matrix[into + i + offset, start + i] = 1.0
    return matrix


def constant():
    """The first feature is 1 at every position."""
    matrix = torch.zeros(WIDE, DIM)
    matrix[0, PLACE : PLACE + PLACES] = 1.0
    return matrix


def only(feature):
    matrix = torch.zeros(WIDE, DIM)
    matrix[0, feature] = 1.0
    return matrix


NOTHING = torch.zeros(WIDE, DIM)
SAME_PLACE = part(PLACE, PLACES)
#: queries and keys of each habit
PREVIOUS = part(PLACE, PLACES, -1), SAME_PLACE
NEXT = part(PLACE, PLACES, 1), SAME_PLACE
FIRST = constant(), only(PLACE)
SAME = part(TOKEN, VOCAB), part(TOKEN, VOCAB)
SEPARATORS = constant(), only(TOKEN + SEPARATOR)
POSITION = constant(), only(PLACE + 3)
INDUCTION = part(TOKEN, VOCAB), part(BEFORE, VOCAB)
EVEN = NOTHING, NOTHING
#: values, and where they are written to
COPIES_TOKEN = part(TOKEN, VOCAB)


def attention(heads, moves=None):
    """An attention whose heads have these queries and keys; `moves` says what they write where."""
    made = MultiHeadAttention(DIM, HEADS, bias=False)
    with torch.no_grad():
        for linear in (made.query_proj, made.key_proj, made.value_proj, made.out_proj):
            linear.weight.zero_()
        for i, (query, key) in enumerate(heads):
            at = slice(i * WIDE, (i + 1) * WIDE)
            made.query_proj.weight[at] = SHARP * query
            made.key_proj.weight[at] = key
            if moves and i in moves:
                made.value_proj.weight[at] = COPIES_TOKEN
                made.out_proj.weight[moves[i] : moves[i] + VOCAB, at] = torch.eye(VOCAB, WIDE)
    return made


def embedded(ids):
    """One-hot tokens and positions."""
    x = torch.zeros(*ids.shape, DIM)
    x.scatter_(-1, ids[..., None] + TOKEN, 1.0)
    x[..., range(ids.shape[1]), [PLACE + i for i in range(ids.shape[1])]] = 1.0
    return x


class Planted(nn.Module):
    """Attention layers with a residual; it answers with the token that is written as the answer.

    The first layer has a head that writes the previous token beside each, and the second an
    induction head that reads it: the circuit of Olsson et al. (2022).
    """

    def __init__(self, *layers, causal=True):
        super().__init__()
        self.layers, self.causal = nn.ModuleList(layers), causal

    def forward(self, ids):
        x = embedded(ids)
        for layer in self.layers:
            x = x + layer(x, x, x, causal=self.causal, need_weights=False).context
        return 5.0 * x[..., ANSWER : ANSWER + VOCAB]


def induction_model():
    return Planted(
        attention([PREVIOUS, FIRST, SAME, SEPARATORS], {0: BEFORE}),
        attention([INDUCTION, POSITION, EVEN, (SAME_PLACE, SAME_PLACE)], {0: ANSWER}),
    ).eval()


def encoder_model():
    return Planted(attention([NEXT, PREVIOUS, FIRST, SEPARATORS]), causal=False).eval()


class PlantedCross(nn.Module):
    """Cross-attention: the diagonal of 5 outputs over 7 inputs by hand, its reverse, a copy."""

    DIAGONAL = (0, 2, 3, 4, 6)

    def __init__(self):
        super().__init__()
        turned, straight = torch.zeros(WIDE, DIM), torch.zeros(WIDE, DIM)
        for i, j in enumerate(self.DIAGONAL):
            straight[j, PLACE + i] = 1.0
            turned[6 - j, PLACE + i] = 1.0
        self.cross = attention([(straight, SAME_PLACE), (turned, SAME_PLACE), FIRST, SAME])

    def forward(self, src, tgt):
        memory = embedded(src)
        return self.cross(embedded(tgt), memory, memory, need_weights=False).context


def repeated(count, seed=0):
    """Texts of 13 tokens after `<s>`: six that differ, then the same six again."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        half = 1 + torch.randperm(VOCAB - 1, generator=draw)
        rows.append(torch.cat([torch.tensor([0]), half, half]))
    return torch.stack(rows)


def labels(ids):
    return [[TOKENS[i] for i in row] for row in ids.tolist()]
