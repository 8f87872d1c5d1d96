"""Build the documentation site: `make docs`, or `python -m website.build [FOLDER]`.

Pages are collected in FOLDER/pages, and the site is FOLDER/html; open its index.html. It needs no
server and no network.
"""

import logging
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from website import gallery, home, reference, stage

ROOT: Final = Path(__file__).resolve().parents[1]
CONFIG: Final = Path(__file__).with_name("mkdocs.yml")


def collect(pages: Path) -> None:
    """Write all pages, and everything that they show, into an empty folder."""
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    stage.stage_guides(pages)
    stage.stage_course(pages)
    reference.write(pages)
    gallery.make(pages)
    shutil.copytree(CONFIG.with_name("assets"), pages / "assets")


def build(folder: Path) -> Path:
    """Build the site and return its folder; any warning of mkdocs is an error."""
    from mkdocs.commands.build import build as mkdocs_build
    from mkdocs.config import load_config

    pages, html = folder / "pages", folder / "html"
    collect(pages)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    config = load_config(
        str(CONFIG),
        docs_dir=str(pages.resolve()),
        site_dir=str(html.resolve()),
        nav=stage.navigation(pages),
        strict=True,
    )
    config.extra["home"] = home.make(pages)
    config.plugins.on_startup(command="build", dirty=False)
    mkdocs_build(config)
    broken = broken_links(html)
    if broken:
        sys.exit("links that lead nowhere:\n" + "\n".join(broken))
    return html


class _Page(HTMLParser):
    """The anchors of a page and the addresses that it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect `id`, `href` and `src`."""
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif name in ("href", "src") and tag in ("a", "link", "script", "img", "iframe"):
                self.addresses.append(value)


def broken_links(html: Path) -> list[str]:
    """Return a line for each address in the built pages that leads to no file or no anchor.

    Saved pages of regard are left out, since scripts fill them.
    """
    own = [path for path in html.rglob("*.html") if stage_of(path, html) != gallery.FOLDER]
    parsed: dict[Path, _Page] = {}
    for path in own:
        parsed[path] = _Page()
        parsed[path].feed(path.read_text("utf-8"))
    broken = []
    for path, page in parsed.items():
        for address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            goal = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            goal = goal / "index.html" if goal.is_dir() else goal
            anchor = unquote(parts.fragment)
            known = parsed.get(goal)
            lost = anchor and known and anchor not in known.anchors and not anchor.startswith("__")
            if not goal.exists() or lost:
                broken.append(f"{path.relative_to(html)}: {address}")
    return broken


def stage_of(path: Path, html: Path) -> str:
    """Return the first folder of a page's path."""
    return path.relative_to(html).parts[0]


if __name__ == "__main__":
    made = build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site")
    print(f"open {made / 'index.html'}")
