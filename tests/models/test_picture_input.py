"""Pictures as an encoder reads them."""

import pytest
import torch

from regard.errors import ArgumentError
from regard.layers import GridPositions
from regard.models import PictureInput
from regard.models.adapters import SplitStem, augmented, patch_stem

ROWS, COLUMNS, PATCH, CHANNELS, DIM = 3, 5, 2, 3, 7


def adapter(stem=None, **options):
    torch.manual_seed(0)
    stem = stem or patch_stem(CHANNELS, PATCH, DIM)
    return PictureInput(stem, (ROWS, COLUMNS), PATCH, CHANNELS, DIM, **options).eval()


def patches(batch=2, cells=ROWS * COLUMNS):
    torch.manual_seed(1)
    return torch.randn(batch, cells, PATCH * PATCH * CHANNELS)


def test_patches_are_put_together_to_the_picture():
    src = patches()
    picture = adapter().picture(src)
    assert picture.shape == (2, CHANNELS, ROWS * PATCH, COLUMNS * PATCH)
    # row 1, column 3 of patches; pixel 0, 1 of it; channel 2
    expected = src[1, 1 * COLUMNS + 3].reshape(PATCH, PATCH, CHANNELS)[0, 1, 2]
    assert picture[1, 2, 1 * PATCH + 0, 3 * PATCH + 1] == expected


def test_a_linear_stem_sees_its_patch_alone():
    model, src = adapter(), patches(1)
    weight = model.stem.weight.reshape(DIM, CHANNELS, PATCH, PATCH).permute(0, 2, 3, 1).flatten(1)
    by_hand = src[0] @ weight.T + model.stem.bias
    row = model.positions.rows[1] + model.positions.columns[3]
    found = model(src)[0]
    assert torch.allclose(found[8], by_hand[8] + row, atol=1e-5)
    changed = src.clone()
    changed[0, 4] += 1
    differs = (model(changed)[0] - found).abs().amax(dim=1) > 0
    assert differs.nonzero().flatten().tolist() == [4]


def test_a_class_token_stands_before_the_patches():
    model, src = adapter(class_token=True), patches(2, 1 + ROWS * COLUMNS)
    model.class_token.data.normal_()
    found = model(src)
    places = model.positions.table
    assert torch.equal(found[:, 0], (model.class_token + places[0]).expand(2, -1))
    plain = model.stem(adapter().picture(src[:, 1:])).flatten(2).mT
    assert torch.allclose(found[:, 1:], plain + places[1:])


@pytest.mark.parametrize("patch", [1, 2, 6])
def test_form_and_colour_are_seen_apart(patch):
    torch.manual_seed(0)
    stem = SplitStem(CHANNELS, patch, 8)
    given = torch.full((1, CHANNELS, 2 * patch, 3 * patch), -1.0)
    found = stem(given)
    assert found.shape == (1, 8, 2, 3)
    given[:, 0] = 1.5
    red = stem(given)
    other = given.flip(1)  # the same largest level in another channel
    blue = stem(other)
    assert torch.equal(red[:, :4], blue[:, :4])  # form
    assert not torch.equal(red[:, 4:], blue[:, 4:])
    with pytest.raises(ArgumentError, match="be even"):
        SplitStem(CHANNELS, patch, 7)


def test_positions_are_sums_of_rows_and_columns():
    grid = GridPositions(ROWS, COLUMNS, DIM)
    found = grid(torch.zeros(1, ROWS * COLUMNS, DIM))[0].reshape(ROWS, COLUMNS, DIM)
    assert torch.equal(found[2, 3], grid.rows[2] + grid.columns[3])
    assert grid.max_len == 15
    later = grid(torch.zeros(1, 2, DIM), start=8)[0, 0]
    assert torch.equal(later, grid.rows[1] + grid.columns[3])
    with pytest.raises(ArgumentError, match="end at cell 15"):
        grid(torch.zeros(1, 16, DIM))


def test_padding_of_fixed_shapes_does_not_matter():
    model, src = adapter(), patches()
    lengths = torch.tensor([15, 15])
    padded = torch.cat([src, torch.full_like(src[:, :3], torch.nan)], dim=1)
    assert torch.equal(model(padded, lengths), model(src, lengths))


def test_pictures_are_shifted_and_the_border_is_repeated():
    picture = torch.arange(2 * 1 * 3 * 4.0).reshape(2, 1, 3, 4)
    torch.manual_seed(3)
    down, across = torch.randint(3, (2, 2, 1))[..., 0]
    torch.manual_seed(3)
    found = augmented(picture, 1, flip=False)
    for i in range(2):
        rows = (torch.arange(3) + down[i] - 1).clamp(0, 2)
        columns = (torch.arange(4) + across[i] - 1).clamp(0, 3)
        assert torch.equal(found[i, 0], picture[i, 0][rows][:, columns])


def test_pictures_change_in_training_alone():
    model, src = adapter(shift=1, flip=True), patches()
    assert torch.equal(model(src), model(src))
    model.train()
    torch.manual_seed(5)
    first = model(src)
    assert not torch.equal(first, model(src))
    torch.manual_seed(5)
    assert torch.equal(first, model(src))  # what a resumed run draws
