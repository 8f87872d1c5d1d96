"""Make the gallery: saved pages of regard, each one file, from the bundled model."""

import sys
from pathlib import Path
from typing import Final

import torch

import regard
from regard.layers import SelfAttentiveRNN

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = "gallery"
#: name of each page, its title, and what can be done there
ENTRIES: Final = {
    "attention": (
        "A word and its phonemes",
        "The bundled model pronounces *attention*. Point at a cell, or move with the arrow keys: "
        "weight, probability and alternatives of each phoneme.",
    ),
    "check": (
        "What mattered",
        "Attention beside ablation, gradients and the other methods, for *phonology*, each with "
        "its faithfulness on this word.",
    ),
    "what-if": (
        "What if attention had been elsewhere",
        "The first phoneme of *thought* is made to look at another letter: both answers, both "
        "maps and their difference.",
    ),
    "worked-example": (
        "The worked example",
        "The four queries of [a published example](worked-example.md), computed right.",
    ),
    "sentence": (
        "A sentence that reads itself",
        "An untrained self-attentive RNN over the lecture's sentence, from "
        "[chapter 5](course/en/05-self-attentive-rnn.md).",
    ),
}


def make(out: Path) -> None:
    """Write the pages, a picture of each, and the page that lists them."""
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    model = regard.load("g2p")
    shown = {
        "attention": model("attention"),
        "check": model.check("phonology", methods="all"),
        "worked-example": regard.show(worked_weights(), "k1 k2 k3 k4", "q1 q2 q3 q4"),
        "sentence": regard.show(*sentence_weights()),
    }
    for name, display in shown.items():
        display.save(folder / f"{name}.html")
        display.save(folder / f"{name}.svg")
    found = model.what_if("thought", cells=[("cross", 0, 0, 0, 3, 0.9)])
    found.save(folder / "what-if.html")
    (out / "gallery.md").write_text(listing(folder), encoding="utf-8")


def worked_weights() -> torch.Tensor:
    """Return all four rows of weights of the worked example."""
    key = torch.arange(1, 13).reshape(4, 3) / 10
    return (key @ key.T / 3**0.5).softmax(-1)


def sentence_weights() -> tuple[torch.Tensor, list[str]]:
    """Return the weights of an untrained self-attentive RNN, and the words that it reads."""
    torch.manual_seed(0)
    words = ["the", "FBI", "is", "chasing", "a", "criminal", "on", "the", "run"]
    layer = SelfAttentiveRNN(input_size=16, hidden_size=16, cell="rnn")
    found = layer(torch.randn(1, len(words), 16), need_weights=True)
    assert found.weights is not None
    return found.weights[0, 0].detach(), words


def listing(folder: Path) -> str:
    """Return the page of the gallery."""
    parts = [
        "# Gallery\n\nPages that regard has saved, each one file that works offline, with a "
        "keyboard and in dark mode. They were made by the build of this site.\n"
    ]
    for name, (title, text) in ENTRIES.items():
        picture = f"{FOLDER}/{name}.svg"
        parts.append(f"## {title}\n\n{text}\n\n[Open the page]({FOLDER}/{name}.html)\n")
        if (folder / f"{name}.svg").exists():
            parts.append(f"[![{title}]({picture})]({FOLDER}/{name}.html)\n")
    return "\n".join(parts)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
