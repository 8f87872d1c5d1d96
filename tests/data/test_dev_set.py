import hashlib

import pytest

from regard.data.corpus import dev_share, is_held_out


@pytest.mark.parametrize(
    ("count", "share"),
    [
        (10, 0.2),
        (100, 0.2),
        (200, 0.1),
        (400, 0.05),
        (40_000, 0.05),
        (100_000, 0.02),
        (5_000_000, 0.0004),
    ],
)
def test_share(count, share):
    assert dev_share(count) == pytest.approx(share)


def test_the_hash_is_frozen():
    """A change here would move pairs from the training data of old runs to the dev set of new."""
    digest = hashlib.blake2b("été".encode(), digest_size=8).hexdigest()
    place = int(digest, 16) / 2**64
    assert is_held_out("été", share=place + 1e-9)
    assert not is_held_out("été", share=place - 1e-9)
    chosen = [word for word in map(str, range(60)) if is_held_out(word, share=0.1)]
    assert chosen == ["18", "29", "47", "55"]


def test_spellings_of_one_source_stay_together():
    for i in range(50):
        assert is_held_out(f"e\u0301{i}", share=0.5) == is_held_out(f" é{i} ", share=0.5)
