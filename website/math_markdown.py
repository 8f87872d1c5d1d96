"""A Markdown extension: `$formula$` and `$$formula$$` become MathML while the site is built.

Browsers show MathML without scripts and fonts, so that pages need no network.
"""

import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.inlinepatterns import InlineProcessor

#: above escapes and emphasis, which would change formulas, and below code
PRIORITY = 185


class MathProcessor(InlineProcessor):
    """Replaces a formula by its MathML."""

    def __init__(self, pattern: str, md: Markdown, *, display: str) -> None:
        super().__init__(pattern, md)
        self.display = display

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Any, int, int]:  # noqa: N802
        """Return the MathML, kept from further processing."""
        mathml = convert(m[1].strip(), display=self.display)
        if self.display == "block":
            mathml = f'<span class="formula" tabindex="0">{mathml}</span>'
        return self.md.htmlStash.store(mathml), m.start(0), m.end(0)


class MathExtension(Extension):
    """Adds both kinds of formulas."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register the patterns: `$$` first, since `$` is a part of it."""
        block = MathProcessor(r"(?s)\$\$(.+?)\$\$", md, display="block")
        inline = MathProcessor(
            r"(?<![\\$\w])\$(?![\s$])([^$\n]+?)(?<!\s)\$(?![\d$])", md, display="inline"
        )
        md.inlinePatterns.register(block, "math-block", PRIORITY + 1)
        md.inlinePatterns.register(inline, "math-inline", PRIORITY)


def makeExtension(**options: Any) -> MathExtension:  # noqa: N802
    """Return the extension, as Markdown asks for it by the name of this module."""
    return MathExtension(**options)
