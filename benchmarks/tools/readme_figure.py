"""Draw the picture of the README, docs/figures/attention.svg, with the bundled model.

python -m benchmarks.tools.readme_figure
"""

from pathlib import Path

from benchmarks.harness import ROOT

FIGURE = ROOT / "docs" / "figures" / "attention.svg"


def draw(file: Path) -> None:
    """Write where each phoneme of "attention" looked."""
    import regard

    regard.load("g2p", device="cpu")("attention").save(file)


if __name__ == "__main__":
    draw(FIGURE)
