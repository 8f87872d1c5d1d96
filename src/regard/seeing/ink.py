"""What maps in the terminal are drawn with: blocks, numbers, bars, and ANSI codes."""

from dataclasses import dataclass
from typing import Final

#: weights below this are drawn as a dot
FAINT: Final = 0.05
#: cells of a number with its ink, without the sign for the strongest
CELL: Final = 6
#: the same where there is little room: one block instead of two, and no gap
TIGHT: Final = 4
#: cells of a bar for 1
BAR: Final = 12


@dataclass(frozen=True)
class Signs:
    """Blocks, or letters for terminals that have no more."""

    ink: str
    faint: str
    strongest: str
    full: str
    half: str
    arrow: str
    ellipsis: str
    dot: str
    sure: str = "*"
    possible: str = "?"

    def cell(self, weight: float, ink: float, *, strongest: bool, gold: str = " ") -> str:
        """Seven cells: ink, gold or not, a number, and whether it is the strongest of its row."""
        mark = self.strongest if strongest else " "
        if weight < FAINT and not strongest:
            return f"  {gold}  {self.faint}{mark}"
        return f"{self._block(weight, ink) * 2}{gold}{short(weight)}{mark}"

    def tight_cell(self, weight: float, ink: float, *, strongest: bool) -> str:
        """The same in five cells, without gold."""
        mark = self.strongest if strongest else " "
        if weight < FAINT and not strongest:
            return f"   {self.faint}{mark}"
        return f"{self._block(weight, ink)}{short(weight)}{mark}"

    def _block(self, weight: float, ink: float) -> str:
        return self.ink[min(3, int(ink * 4))] if weight >= FAINT else " "

    def bar(self, weight: float) -> str:
        """As long as the weight is large."""
        halves = round(min(1.0, max(0.0, weight)) * BAR * 2)
        return self.full * (halves // 2) + self.half * (halves % 2)

    def more(self, count: int, what: str) -> list[str]:
        """A line that says what is cut, if anything is."""
        return [f"{self.ellipsis} {count} more {what}: save all with -o x.html"] * (count > 0)


BLOCKS: Final = Signs("░▒▓█", "·", "◂", "█", "▌", "←", "…", "·")
LETTERS: Final = Signs(":+#@", ".", "<", "=", "-", "<-", "...", "|")


def takes_blocks(encoding: str | None) -> bool:
    """Whether what is written in an encoding may hold more than ASCII."""
    try:
        "".join(vars(BLOCKS).values()).encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def short(weight: float) -> str:
    """A weight in three characters."""
    return "1.0" if weight >= 0.995 else f".{round(max(0.0, weight) * 100):02d}"


@dataclass(frozen=True)
class Paint:
    """ANSI codes, or none."""

    color: bool

    def dim(self, text: str, wanted: bool = True) -> str:
        """For what matters less."""
        return f"\x1b[2m{text}\x1b[0m" if self.color and wanted else text

    def bold(self, text: str, wanted: bool = True) -> str:
        """For what matters most."""
        return f"\x1b[1m{text}\x1b[0m" if self.color and wanted else text
