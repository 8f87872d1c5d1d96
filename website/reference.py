"""Write the pages of the API reference: the public names of regard and of its packages."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

#: packages with a page, and the sentence that introduces each
MODULES: Final = {
    "regard": "Names of the package itself: load, train, show, record.",
    "regard.attention": "Mechanisms of attention, with one interface.",
    "regard.layers": "Layers that are built from them.",
    "regard.models": "Models: presets by name, and the classes that they are built from.",
    "regard.masks": 'Masks: boolean, and True means "may attend".',
    "regard.ops": "Operators: a definition and its kernels, chosen by backend.",
    "regard.decoding": "Greedy search, beam search, sampling.",
    "regard.data": "Reading, tokenizing and batching of data.",
    "regard.training": "Training: settings, runs and their folders.",
    "regard.evaluation": "Metrics and confidence intervals.",
    "regard.seeing": "Traces and the ways to draw them.",
    "regard.pretrained": "Models of transformers.",
    "regard.export": "Graphs that run without torch.",
    "regard.lab": "Experiments.",
    "regard.errors": "Errors, each with a rule and a next step.",
}


def public_names(module: ModuleType) -> list[str]:
    """Return the public names of a module that are no modules, in alphabetical order."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, thing in vars(module).items()
            if not name.startswith("_") and getattr(thing, "__module__", "") == module.__name__
        ]
    things = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return sorted(
        (name for name, thing in things.items() if not isinstance(thing, ModuleType)), key=str.lower
    )


def write(out: Path) -> None:
    """Write reference/NAME.md for each module."""
    folder = out / "reference"
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, sentence) in enumerate(MODULES.items()):
        module = import_module(name)
        entries = "\n\n".join(f"::: {name}.{one}" for one in public_names(module))
        title = f"# {name}\n\n{sentence}\n\n"
        path = folder / f"{number:02}-{name.removeprefix('regard.')}.md"
        path.write_text(f"{title}{entries}\n", encoding="utf-8")
