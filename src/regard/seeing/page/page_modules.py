"""The ES modules of the page, and a bundler that joins them into one script.

The live page loads the modules as they are. A saved page can load nothing, so its modules are
joined into one inline script: each becomes a function that returns its exports, after the modules
that it imports.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from regard.errors import RegardError

MAIN: Final = "main.js"
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


class JoinError(RegardError):
    """Raised if the modules cannot be joined into one script."""


class Module(NamedTuple):
    """Imports, exports and body of a module."""

    imports: list[str]
    exports: list[str]
    body: str


@cache
def text_of(name: str) -> str:
    """Return the text of a file of the page."""
    return files("regard.seeing.page").joinpath("scripts", name).read_text(encoding="utf-8")


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
