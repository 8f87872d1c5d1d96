"""Write HTML pages: one file each that works offline and loads nothing.

A page is a title, the data that its template is filled with, and a script or none. Scripts are ES
modules. The live page loads them as they are; a saved page can load nothing, so its modules are
joined into one inline script: each becomes a function that returns its exports, after the modules
that it imports. The content security policy of a page allows its own script alone.
"""

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from regard.messages import TAGS, language, message
from regard.safe_read import json_value
from regard.seeing.draw.figure import svg
from regard.seeing.draw.shapes import PAGE, fit, printable
from regard.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template

MAIN: Final = "main.js"
#: cells of a label in a table
LABEL: Final = 18
_IMPORT: Final = re.compile(
    r"^import (?:\{(?P<names>[\w$ ,\n]*)\}|\* as (?P<all>[\w$]+))"
    r' from "\./(?P<module>[\w.-]+)";\n',
    re.MULTILINE,
)
_EXPORT: Final = re.compile(
    r"^export (?=(?:async )?(?:function\*?|const|let|class) ([\w$]+))", re.MULTILINE
)


def render_page(name: str, title: str, *, script: str = "", live: bool = False, **data: Any) -> str:
    """Return a page.

    Args:
        name: of its template.
        title: of the page.
        script: that stands in it.
        live: whether it may ask the server that it comes from, and load its modules.
        data: for the template.
    """
    own = {"title": title, "policy": policy(script, live=live), "script": script, "live": live}
    return template(name).render(own, style=text_of("style.css"), version=__version__, **data)


def policy(script: str = "", *, live: bool = False) -> str:
    """Return the content security policy of a page with this script; see `render_page`."""
    allowed = ["'self'"] * live + [script_hash(script)] * bool(script)
    scripts = f"script-src {' '.join(allowed)}; " if allowed else ""
    asks = "; connect-src 'self'" if live else ""
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; {scripts}img-src data: blob:; "
        f"base-uri 'none'; form-action 'none'{asks}"
    )


@cache
def template(name: str) -> "Template":
    """Return a template of this package, which escapes whatever is filled in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only needed to write pages
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("regard.seeing.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

    def label(text: str, width: int = LABEL) -> str:
        return fit(printable(text), width)

    def token(text: str, width: int = LABEL) -> Markup:
        # its direction does not turn the text around it
        return Markup("<bdi>{}</bdi>").format(label(text, width))

    environment.globals |= {"say": message, "lang": lambda: TAGS[language()]}
    environment.filters |= {
        "label": label,
        "token": token,
        "figure": lambda view: Markup(svg(view, theme=PAGE)),
    }
    return environment.get_template(name)


def embedded(content: Any, *, ascii: bool = True) -> str:
    """Return JSON for a script element, which nothing in it can close.

    NaN and infinities, which JSON does not have, become null. Tokens may hold half of a surrogate
    pair, which no file can have: in ASCII it is escaped.
    """
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=ascii)
    except ValueError:
        text = json.dumps(json_value(content), separators=(",", ":"))
    return text.replace("<", "\\u003c")


def script_hash(script: str) -> str:
    """Return the source expression by which a content security policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def text_of(name: str, folder: str = "scripts") -> str:
    """Return the text of a script or style sheet of this package."""
    return files("regard.seeing.page").joinpath(folder, name).read_text(encoding="utf-8")


def module_names() -> list[str]:
    """Return the file names of all modules."""
    names = (item.name for item in files("regard.seeing.page").joinpath("scripts").iterdir())
    return sorted(name for name in names if name.endswith(".js"))


def join(main: str) -> str:
    """Return one script with a module and all that it imports, each after its own imports."""
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        def bound(found: re.Match[str]) -> str:
            if found["module"] not in parts:
                add(found["module"])
            names = f"{{ {found['names']} }}".replace(" as ", ": ")
            return f"const {found['all'] or names} = {_variable(found['module'])};\n"

        body = _IMPORT.sub(bound, text_of(name))
        exports = ", ".join(_EXPORT.findall(body))
        body = f"{_EXPORT.sub('', body)}\nreturn {{ {exports} }};"
        parts[name] = f"const {_variable(name)} = (() => {{\n{body}\n}})();"

    add(main)
    return '"use strict";\n' + "\n".join(parts.values())


def _variable(module: str) -> str:
    return "module_" + re.sub(r"\W", "_", module.removesuffix(".js"))
