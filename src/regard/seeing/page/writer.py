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
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from regard.errors import RegardError
from regard.messages import TAGS, language, message
from regard.seeing.draw.figure import svg
from regard.seeing.draw.labels import fit, printable
from regard.seeing.draw.shapes import PAGE
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
    r"^export (?=(?:async )?(?:function\*?|const|let|class) (?P<name>[\w$]+))", re.MULTILINE
)
#: imports and exports in any other form, which are refused
_OTHER: Final = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def render_page(name: str, title: str, *, script: str = "", live: bool = False, **data: Any) -> str:
    """Return a page.

    Args:
        name: of its template.
        title: of the page.
        script: that stands in it.
        live: whether it may ask the server that it comes from, and load its modules.
        data: for the template.
    """
    return template(name).render(page_parts(title, script, live=live), **data)


def page_parts(title: str, script: str = "", *, live: bool = False) -> dict[str, Any]:
    """Return what every template is filled with; a live page may ask the server it comes from."""
    allowed = ["'self'"] * live + [script_hash(script)] * bool(script)
    scripts = f"script-src {' '.join(allowed)}; " if allowed else ""
    asks = "; connect-src 'self'" if live else ""
    return {
        "title": title,
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; {scripts}img-src data: blob:; "
        f"base-uri 'none'; form-action 'none'{asks}",
        "script": script,
        "live": live,
        "style": text_of("style.css"),
        "version": __version__,
    }


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
        finite = json.loads(json.dumps(content), parse_constant=lambda _: None)
        text = json.dumps(finite, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def script_hash(script: str) -> str:
    """Return the source expression by which a content security policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


class JoinError(RegardError):
    """Raised if the modules cannot be joined into one script."""


class Module(NamedTuple):
    """Imports, exports and body of a module."""

    imports: list[str]
    exports: list[str]
    body: str


@cache
def text_of(name: str, folder: str = "scripts") -> str:
    """Return the text of a script or style sheet of this package."""
    return files("regard.seeing.page").joinpath(folder, name).read_text(encoding="utf-8")


def modules() -> dict[str, str]:
    """Return the sources of all modules by file name; `main.js` is the entry point."""
    folder = files("regard.seeing.page").joinpath("scripts")
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".js"))
    return {name: text_of(name) for name in names}


def join(sources: Mapping[str, str], main: str = MAIN) -> str:
    """Return one script with the module `main` and all that it imports."""
    parsed = {name: _parse(name, source) for name, source in sources.items()}
    parts = [_wrapped(name, parsed[name]) for name in _ordered(parsed, main)]
    script = '"use strict";\n' + "\n".join(parts)
    if "</script" in script.lower() or "<!--" in script:
        raise JoinError(
            "a module must hold neither `</script` nor `<!--`, but one does: write it in two parts."
        )
    return script


def _parse(name: str, source: str) -> Module:
    imports: list[str] = []

    def bound(found: re.Match[str]) -> str:
        imports.append(found["module"])
        target = found["all"] or "{ " + _renamed(found["names"]) + " }"
        return f"const {target} = {_variable(found['module'])};\n"

    body = _IMPORT.sub(bound, source)
    exports = [found["name"] for found in _EXPORT.finditer(body)]
    body = _EXPORT.sub("", body)
    left = _OTHER.search(body)
    if left is not None:
        raise JoinError(
            f"{name} must import with `import {{ a }} from './b.js'` and export what it declares, "
            f"but it has `{left[0]}`: write it in that form."
        )
    return Module(imports, exports, body)


def _renamed(names: str) -> str:
    """Turn `a as b` of an import into `a: b` of a destructuring."""
    return ", ".join(
        name.strip().replace(" as ", ": ") for name in names.split(",") if name.strip()
    )


def _variable(module: str) -> str:
    return "module_" + re.sub(r"\W", "_", module.removesuffix(".js"))


def _wrapped(name: str, module: Module) -> str:
    exports = ", ".join(module.exports)
    return f"const {_variable(name)} = (() => {{\n{module.body}\nreturn {{ {exports} }};\n}})();"


def _ordered(parsed: Mapping[str, Module], main: str) -> list[str]:
    """Return the modules that `main` needs, each after its imports."""
    done: list[str] = []

    def visit(name: str, path: Iterable[str]) -> None:
        path = [*path, name]
        if path.index(name) < len(path) - 1:
            raise JoinError(f"modules must not import in a circle, but {' > '.join(path)} do.")
        if name not in parsed:
            raise JoinError(
                f"{path[-2:][0]} must import modules that are there, but {name} is not."
            )
        if name in done:
            return
        for other in parsed[name].imports:
            visit(other, path)
        done.append(name)

    visit(main, [])
    return done
