import pytest
import torch
from torch import nn

from ops.messages import refuses
from regard import masks

BATCH, HEADS, Q_LEN, KV_LEN, HEAD_DIM = 2, 3, 5, 7, 11


def rows(mask):
    """The map of one head as text: x where a query may attend."""
    return ["".join("x" if allowed else "." for allowed in row) for row in mask.tolist()]


def test_padding_shows_the_first_tokens_of_each_row():
    mask = masks.padding(torch.tensor([2, 0, 5]), 5)
    assert mask.shape == (3, 1, 1, 5)
    assert rows(mask[:, 0, 0]) == ["xx...", ".....", "xxxxx"]


@pytest.mark.parametrize("lengths", [[4, 9], [6]])
def test_padding_is_for_rows_that_hold_all_of_their_tokens(lengths):
    with refuses("lengths", "be at most max_len = 5", str(max(lengths))):
        masks.padding(torch.tensor(lengths), 5)
    assert masks.padding(torch.tensor([5, 0]), 5).sum() == 5
    assert masks.padding(torch.zeros(0, dtype=torch.long), 5).shape == (0, 1, 1, 5)


def test_padding_looks_at_no_length_that_it_would_have_to_wait_for():
    elsewhere = torch.tensor([4, 9], device="meta")
    assert masks.padding(elsewhere, 5).shape == (2, 1, 1, 5)


def test_causal_is_aligned_at_the_bottom_right():
    assert rows(masks.causal(2, 5)[0, 0]) == ["xxxx.", "xxxxx"]
    assert rows(masks.causal(1, 5)[0, 0]) == ["xxxxx"]
    # the two oldest queries stand before the first key
    assert rows(masks.causal(5, 3)[0, 0]) == ["...", "...", "x..", "xx.", "xxx"]


def test_window_reaches_to_both_sides():
    assert rows(masks.window(5, size=2)[0, 0]) == ["xx...", "xxx..", ".xxx.", "..xxx", "...xx"]
    assert rows(masks.window(2, 5, size=2)[0, 0]) == ["..xxx", "...xx"]
    assert rows(masks.window(3, size=1)[0, 0]) == ["x..", ".x.", "..x"]


def test_chunk_cuts_the_keys():
    assert rows(masks.chunk(5, size=2)[0, 0]) == ["xx...", "xx...", "..xx.", "..xx.", "....x"]
    # a query stands where the key of its position does: chunks are cut from the first key on
    assert rows(masks.chunk(2, 5, size=3)[0, 0]) == ["...xx", "...xx"]
    assert rows(masks.chunk(3, 5, size=3)[0, 0]) == ["xxx..", "...xx", "...xx"]
    # positions before the first key are in no chunk of keys
    assert rows(masks.chunk(4, 3, size=2)[0, 0]) == ["...", "xx.", "xx.", "..x"]


def test_document_keeps_packed_sequences_apart():
    mask = masks.document(torch.tensor([[0, 0, 1], [4, 2, 4]]))
    assert mask.shape == (2, 1, 3, 3)
    assert rows(mask[0, 0]) == ["xx.", "xx.", "..x"]
    assert rows(mask[1, 0]) == ["x.x", ".x.", "x.x"]
    cross = masks.document(torch.tensor([[1, 0]]), torch.tensor([[0, 1, 1]]))
    assert rows(cross[0, 0]) == [".xx", "x.."]


def mha_weights(**kwargs):
    """What nn.MultiheadAttention looks at, per head, and what it answers."""
    mha = nn.MultiheadAttention(HEADS * HEAD_DIM, HEADS, batch_first=True)
    query = torch.randn(BATCH, Q_LEN, HEADS * HEAD_DIM)
    key = torch.randn(BATCH, KV_LEN, HEADS * HEAD_DIM)
    context, weights = mha(query, key, key, average_attn_weights=False, **kwargs)
    return context, weights


# torch's meaning: True is forbidden
PADDING = torch.arange(KV_LEN) >= torch.tensor([[4], [7]])
ORDER = torch.ones(Q_LEN, KV_LEN, dtype=torch.bool).triu(diagonal=1)
PER_HEAD = torch.rand(BATCH * HEADS, Q_LEN, KV_LEN, generator=torch.Generator().manual_seed(3)).gt(
    0.5
) & (torch.arange(KV_LEN) > 0)


@pytest.mark.parametrize("float_masks", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {"key_padding_mask": PADDING},
        {"attn_mask": ORDER},
        {"attn_mask": PER_HEAD},
        {"key_padding_mask": PADDING, "attn_mask": ORDER},
        {"key_padding_mask": PADDING, "attn_mask": PER_HEAD},
    ],
    ids=lambda given: "+".join(given),
)
def test_from_torch_allows_what_multihead_attention_looks_at(given, float_masks):
    if float_masks:
        given = {
            name: torch.zeros(mask.shape).masked_fill(mask, float("-inf"))
            for name, mask in given.items()
        }
    _, weights = mha_weights(**given)
    mask = masks.from_torch(**given, num_heads=HEADS)
    assert torch.equal(mask.expand_as(weights), weights > 0)


@pytest.mark.parametrize(
    "mask",
    [
        masks.padding(torch.tensor([4, 7]), KV_LEN),
        masks.causal(Q_LEN, KV_LEN),
        masks.padding(torch.tensor([4, 7]), KV_LEN) & masks.window(Q_LEN, KV_LEN, size=5),
        ~PER_HEAD.unflatten(0, (BATCH, HEADS)),
    ],
    ids=["padding", "causal", "padding+window", "per head"],
)
def test_multihead_attention_looks_where_to_torch_allows(mask):
    attn_mask = masks.to_torch(mask, batch=BATCH, num_heads=HEADS, q_len=Q_LEN)
    _, weights = mha_weights(attn_mask=attn_mask)
    assert torch.equal(weights > 0, mask.expand_as(weights))


@pytest.mark.plain
def test_errors_name_the_argument_the_rule_and_the_value():
    with refuses("lengths", "1-D integer", "(2, 1)"):
        masks.padding(torch.ones(2, 1, dtype=torch.long), 3)
    with refuses("lengths", "1-D integer", "torch.float32"):
        masks.padding(torch.ones(2), 3)
    with refuses("lengths", "1-D integer", "torch.bool"):
        masks.padding(torch.ones(2, dtype=torch.bool), 3)
    with refuses("max_len", "at least 1", "0"):
        masks.padding(torch.tensor([0]), 0)
    with refuses("q_len", "at least 1", "0"):
        masks.causal(0, 3)
    with refuses("kv_len", "at least 1", "-1"):
        masks.causal(3, -1)
    with refuses("size", "at least 1", "0"):
        masks.window(3, size=0)
    with refuses("size", "at least 1", "0"):
        masks.chunk(3, size=0)
    with refuses("query_ids", "(batch, length)", "(5,)"):
        masks.document(torch.arange(5))
    with refuses("key_ids", "(batch, length)", "(5,)"):
        masks.document(torch.zeros(2, 3, dtype=torch.long), torch.arange(5))


@pytest.mark.plain
def test_errors_of_the_border_to_torch():
    with refuses("attn_mask", "boolean or float", "torch.int64"):
        masks.from_torch(attn_mask=torch.ones(2, 3, dtype=torch.long))
    with refuses("key_padding_mask", "only 0 and -inf", "other values"):
        masks.from_torch(torch.tensor([[0.0, 1.0]]))
    with refuses("attn_mask", "batch * num_heads (num_heads = 3)", "4"):
        masks.from_torch(attn_mask=torch.zeros(4, 2, 5, dtype=torch.bool), num_heads=3)


@pytest.mark.plain
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7, 5), (3, 3, 5, 7), (2, 2, 5, 7)])
def test_check_names_the_shape_that_was_wanted(shape):
    with refuses("mask", "(batch, heads, q_len, kv_len) = (2, 3, 5, 7)", str(shape)):
        masks.check(torch.ones(shape, dtype=torch.bool), 2, 3, 5, 7)


@pytest.mark.plain
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_check_takes_no_numbers(dtype):
    with refuses("mask", "be boolean", str(dtype)):
        masks.check(torch.ones(2, 3, 5, 7, dtype=dtype), 2, 3, 5, 7)
