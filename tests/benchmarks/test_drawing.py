import pytest

from benchmarks.tools import architecture, house
from benchmarks.tools.house import Package


@pytest.mark.slow
def test_the_drawing_is_up_to_date():
    assert architecture.main(["--check"]) == 0


def test_the_tools_measure_this_checkout_unless_told_otherwise():
    assert (house.ROOT / "pyproject.toml").is_file()
    assert house.ROOT == architecture.ROOT


def write(root, **modules):
    for name, text in modules.items():
        path = root / "src" / "regard" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_boxes_are_folders_and_arrows_are_direct_imports(tmp_path):
    write(
        tmp_path,
        errors="",
        low__parts="from regard import errors",
        middle__parts="def late():\n    from regard.low import parts",
        top__parts="from regard.middle.parts import late\nimport regard.errors",
    )
    for name in ("low", "middle", "top"):
        (tmp_path / "src" / "regard" / name / "__init__.py").write_text(f'"""The {name} one."""')
    (tmp_path / "src" / "regard" / "__init__.py").write_text("from regard.top import parts")
    package = Package(tmp_path)
    graph = architecture.imports_of(package)
    assert graph["top"] == {"middle", "foundation"}
    assert architecture.direct(graph)["top"] == {"middle"}
    assert architecture.depths(graph) == {"top": 0, "middle": 1, "low": 2, "foundation": 3}
    drawing = architecture.draw(tmp_path)
    assert drawing.count("<rect") == 4
    assert drawing.count('class="head"') == 3
    assert "The middle one." in drawing
