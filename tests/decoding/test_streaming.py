import pytest
import torch

from decoding.toys import Toy, greedy, sources
from regard.decoding import DecodingGraphs, DecodingOptions, stream
from regard.symbols import EOS


@pytest.mark.parametrize("graphs", [False, True])
def test_a_batch_is_streamed_row_by_row_and_ends_with_the_greedy_hypotheses(graphs):
    toy = Toy(7, 6, src_len=8)
    toy.logits[..., EOS] += 1.5  # so that sources end at different steps
    src, lengths = sources(0, 3, 5, 1, 2)
    options = DecodingOptions(max_len=6)
    recorder = DecodingGraphs(toy, records=False) if graphs else None
    steps = stream(toy, src, lengths, options, kinds=("cross",), graphs=recorder)
    written, found = [], None
    while found is None:
        try:
            written.append(next(steps))
        except StopIteration as end:
            found = end.value
    expected = greedy(toy, src, lengths, options, need_weights=True)
    assert len({len(one.tokens) for (one,) in expected}) > 1
    for row, ((one,), (other,)) in enumerate(zip(found, expected, strict=True)):
        mine = [step for step in written if step.row == row]
        assert one == other
        assert [step.token for step in mine] == [*other.tokens, EOS]
        assert mine[-1].finished == other.finished
        seen = torch.stack([step.cross for step in mine])
        torch.testing.assert_close(seen, other.attention["cross"][-1].mean(0))
