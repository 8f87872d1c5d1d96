"""Train on vectors in place of tokens, and show what each output attended to.

Sounds are made up: each has a spectrum of 13 numbers, lasts for 3 to 7 frames, grows louder and
fades, and lies in noise. `bahdanau` reads the frames, two joined into one, and writes which sounds
they were. Nobody tells it where a sound begins. Beside it stands what needs no model: name each
frame by the nearest spectrum, and write down what stands there at least twice in a row. (That
cannot tell a sound that comes twice from one.)

    python examples/read_vectors.py
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.decoding import DecodingOptions, Hypothesis, decode
from regard.errors import RegardError
from regard.models import (
    PRESETS,
    EncoderDecoder,
    VectorInput,
    with_input,
)
from regard.symbols import BOS, EOS, PAD, SYMBOLS

FIRST = len(SYMBOLS)
NAMES = "abcdefgh"
FEATURES, STACK, NOISE = 13, 2, 0.8
SPECTRA = torch.randn(len(NAMES), FEATURES, generator=torch.Generator().manual_seed(7))
INK = " ░▒▓█"


class Spoken(NamedTuple):
    """Frames (batch, frames, FEATURES), their number, the sounds, and the sound of each frame.

    Owners are the places of the sounds in their row; -1 beyond the end of a row.
    """

    src: Tensor
    lengths: Tensor
    sounds: list[list[int]]
    owners: Tensor


def speak(rows: int) -> Spoken:
    """Draw rows of 2 to 5 sounds."""
    sounds = [torch.randint(len(NAMES), (int(torch.randint(2, 6, ())),)) for _ in range(rows)]
    frames, owners = zip(*map(_frames, sounds), strict=True)
    # what stands beyond the end of a row does not matter: not even this
    src = pad_sequence(list(frames), batch_first=True, padding_value=math.nan)
    lengths = torch.tensor([len(row) for row in frames])
    places = pad_sequence(list(owners), batch_first=True, padding_value=-1)
    return Spoken(src, lengths, [row.tolist() for row in sounds], places)


def _frames(sounds: Tensor) -> tuple[Tensor, Tensor]:
    lasts = torch.randint(3, 8, sounds.shape)
    owner = torch.arange(len(sounds)).repeat_interleave(lasts)
    since = torch.arange(len(owner)) - (lasts.cumsum(0) - lasts)[owner]
    loudness = torch.sin(math.pi * (since + 0.5) / lasts[owner])
    clean = loudness[:, None] * SPECTRA[sounds[owner]]
    return clean + NOISE * torch.randn_like(clean), owner


def build_listener() -> EncoderDecoder:
    """Build a preset whose encoder reads frames; its source vocabulary is not used."""
    model = PRESETS["bahdanau"](1, FIRST + len(NAMES), "tiny", dropout=0.0)
    assert isinstance(model, EncoderDecoder)
    return with_input(model, VectorInput(FEATURES, 64, stack=STACK))


def listen(model: EncoderDecoder, steps: int, rate: float = 3e-3) -> None:
    """Train on new rows at every step."""
    for _ in _training(model, steps, rate):
        heard = speak(64)
        tgt = [torch.tensor([BOS, *(FIRST + s for s in row), EOS]) for row in heard.sounds]
        targets = pad_sequence(tgt, batch_first=True, padding_value=PAD)
        logits = model(heard.src, heard.lengths, targets[:, :-1]).logits
        F.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=PAD).backward()


def _training(model: torch.nn.Module, steps: int, rate: float) -> Iterator[None]:
    """Run an optimization loop over batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        yield
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def understand(model: EncoderDecoder, heard: Spoken) -> list[Hypothesis]:
    options = DecodingOptions(beam=3)
    found = decode(model, heard.src, heard.lengths, options, need_weights=True)
    return [best for best, *_ in found]


def nearest(heard: Spoken) -> list[list[int]]:
    """Predict without a model: the nearest spectrum of each frame, if it is so twice in a row."""
    answers = []
    for row, length in zip(heard.src, heard.lengths.tolist(), strict=True):
        named = torch.cdist(row[:length], SPECTRA).argmin(dim=1).tolist()
        runs = [(sound, len(list(run))) for sound, run in itertools.groupby(named)]
        answers.append([sound for sound, count in runs if count > 1])
    return answers


def share(answers: list[list[int]], right: list[list[int]]) -> float:
    """Return the share of rows that are entirely correct."""
    return sum(a == b for a, b in zip(answers, right, strict=True)) / len(right)


def own_share(found: list[Hypothesis], heard: Spoken) -> float:
    """Return the attention of outputs to frames of their own sound, in correct rows."""
    looks = []
    for hypothesis, owners, sounds in zip(found, heard.owners, heard.sounds, strict=True):
        if [token - FIRST for token in hypothesis.tokens] == sounds:
            weights = hypothesis.attention["cross"][-1].mean(dim=0)
            joined = _joined(owners)[: weights.shape[1]]
            looks += [float(weights[i, (joined == i).any(dim=1)].sum()) for i in range(len(sounds))]
    return sum(looks) / max(1, len(looks))


def _joined(owners: Tensor) -> Tensor:
    """Return the sounds of the frames of each stack, (length, STACK)."""
    return F.pad(owners, (0, -len(owners) % STACK), value=-1).view(-1, STACK)


def draw(hypothesis: Hypothesis, heard: Spoken) -> None:
    """Print the first row: the sounds of each stack of frames, and the attention of each output."""
    weights = hypothesis.attention["cross"][-1].mean(dim=0)
    spoken = [NAMES[heard.sounds[0][owner]] for owner in _joined(heard.owners[0])[:, 0].tolist()]
    print(f"spoken  |{''.join(spoken[: weights.shape[1]])}|")
    names = [NAMES[token - FIRST] for token in hypothesis.tokens] + [SYMBOLS[EOS]]
    for name, row in zip(names, weights.tolist(), strict=True):
        print(f"{name:>7} |{''.join(ink(weight) for weight in row)}|")


def ink(share: float) -> str:
    """Return a shade: nothing below a twentieth, then darker with each quarter."""
    return INK[0] if share < 0.05 else INK[min(4, 1 + int(4 * share))]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400, help="training steps (400)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.steps < 2:
        parser.error(f"--steps must be at least 2, but it is {options.steps}")
    torch.manual_seed(options.seed)
    began = time.monotonic()
    hear(options.steps)
    print(f"{time.monotonic() - began:.0f} s")


def hear(steps: int) -> None:
    """Train on sounds, and print the accuracy."""
    model, heard = build_listener(), speak(500)
    listen(model, steps)
    found = understand(model, heard)
    answers = [[token - FIRST for token in best.tokens] for best in found]
    print(f"bahdanau: {share(answers, heard.sounds):.1%} of 500 new rows right")
    print(f"nearest spectrum: {share(nearest(heard), heard.sounds):.1%}")
    print(
        f"an output gives {own_share(found, heard):.0%} of its attention to frames of its own sound"
    )
    draw(found[0], heard)


if __name__ == "__main__":
    try:
        main()
    except RegardError as error:
        sys.exit(str(error))
