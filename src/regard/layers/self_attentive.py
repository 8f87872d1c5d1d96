"""Self-attentive RNN: a context vector takes the place of the hidden state.

Cheng et al., 2016, "Long Short-Term Memory-Networks for Machine Reading",
https://arxiv.org/abs/1601.06733.
"""

from typing import final

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import ops
from regard.attention import AdditiveAttention, ScaledDotProductAttention, Scorer
from regard.layers.padding import real_steps
from regard.ops import History, SelfAttentiveOutput
from regard.ops.check import check_axes, check_choice, check_positive, check_width
from regard.ops.self_attentive_rnn import GATES, Cell, empty_history


@final
class SelfAttentiveRNN(nn.Module):
    """An RNN in which every step attends to all steps before it.

    The cell `rnn` is `h_t = tanh(A [x_t, c_{t-1}] + b)`; h_t scores h_1 to h_t, and their mixture
    c_t goes to step t + 1. The cell `gru` gates the same recurrence. The cell `lstm` is the LSTMN
    of the paper: it attends to h_1 to h_{t-1} with a query from x_t and its last mixture, and mixes
    hidden states and memories.

    Args:
        input_size: width of the inputs.
        hidden_size: width of h and c.
        cell: "rnn", "gru" or "lstm".
        attention: scores of steps: any mechanism with the methods of `Scorer`, of queries and
            keys of width `hidden_size`. If None, scaled dot-product, and additive for `lstm` as in
            the paper.

    Examples:
        >>> rnn = regard.layers.SelfAttentiveRNN(5, 7, cell="gru")
        >>> out = rnn(torch.randn(2, 3, 5), need_weights=True)
        >>> out.hidden.shape, out.weights.shape
        (torch.Size([2, 3, 7]), torch.Size([2, 1, 3, 3]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        cell: Cell = "rnn",
        attention: Scorer | None = None,
    ) -> None:
        super().__init__()
        check_positive(input_size=input_size, hidden_size=hidden_size)
        check_choice("cell", cell, GATES)
        self.input_size, self.hidden_size, self.cell = input_size, hidden_size, cell
        gates = GATES[cell] * hidden_size
        self.input_proj = nn.Linear(input_size, gates)
        self.recurrent_proj = nn.Linear(hidden_size, gates, bias=cell == "gru")
        if attention is None:
            default = AdditiveAttention if cell == "lstm" else ScaledDotProductAttention
            attention = default(hidden_size, hidden_size, hidden_size)
        self.attention = attention
        self.query_proj = None
        if cell == "lstm":
            self.query_proj = nn.Linear(input_size, self._score_dim(), bias=False)

    def _score_dim(self) -> int:
        probe = self.recurrent_proj.weight.new_zeros(1, self.hidden_size)
        return self.attention.as_score().key(probe).shape[-1]

    def init_state(self, batch: int, like: Tensor) -> History:
        """The empty history, with the device and dtype of `like`."""
        return empty_history(
            like, batch, self.hidden_size, self._score_dim(), with_memory=self.cell == "lstm"
        )

    def forward(
        self,
        x: Float[Tensor, "batch length input_size"],
        lengths: Int[Tensor, " batch"] | None = None,
        state: History | None = None,
        *,
        need_weights: bool = False,
    ) -> SelfAttentiveOutput:
        """Run a sequence, or a continuation of it.

        Args:
            x: the inputs.
            lengths: number of real steps of each row; all of them if None.
            state: the history to continue; empty if None.
            need_weights: whether to return the weights, (batch, 1, length, steps).
        """
        check_width("x", x, self.input_size)
        if lengths is not None:
            # a NaN in the padding would reach the gradients of the projections, even times zero
            x = x.where(real_steps(x, lengths), 0.0)
        return ops.self_attentive_rnn(
            self.input_proj(x),
            self.recurrent_proj.weight,
            self.attention.as_score(),
            state,
            cell=self.cell,
            recurrent_bias=self.recurrent_proj.bias,
            query_inputs=None if self.query_proj is None else self.query_proj(x),
            lengths=lengths,
            need_weights=need_weights,
        )

    def step(
        self,
        x: Float[Tensor, "batch input_size"],
        state: History | None = None,
        *,
        need_weights: bool = False,
    ) -> SelfAttentiveOutput:
        """Run one step, for decoding and streaming: `hidden` and `context` are (batch, hidden)."""
        check_axes("x", x, "batch input_size")
        output: SelfAttentiveOutput = self(x[:, None], None, state, need_weights=need_weights)
        return output._replace(hidden=output.hidden[:, 0], context=output.context[:, 0])
