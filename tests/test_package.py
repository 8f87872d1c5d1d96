"""What a package index shows of regard."""

import re
from email import message_from_string
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.metadata.spec import get_core_metadata_constructors
from hatchling.plugin.manager import PluginManager

from regard import __version__

ROOT = Path(__file__).parents[1]
#: links and images of Markdown, and where they lead
LINK = re.compile(
    r"(?<![\w\]])!?\[[^\]]*\]\(([^)\s]*)\)|<(?:img|a)\b[^>]*(?:src|href)=\"([^\"]*)\""
)

BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def metadata():
    project = ProjectMetadata(str(ROOT), PluginManager())
    return message_from_string(get_core_metadata_constructors()["2.4"](project))


def test_the_description_is_the_readme_without_links_to_files(metadata):
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = metadata.get_payload()
    assert description.startswith("# regard\n")
    assert "Seeing is the guide to maps" in description
    blocks = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert blocks
    assert BLOCK.findall(description) == blocks
    targets = ["".join(found) for found in LINK.findall(description)]
    assert [link for link in targets if not link.startswith(("https://", "#"))] == []


def test_links_of_the_readme_itself_lead_to_files():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files = ["".join(found).partition("#")[0] for found in LINK.findall(text)]
    assert len(files) > 10
    assert [
        file for file in files if not file.startswith("https://") and not (ROOT / file).exists()
    ] == []


def test_what_else_an_index_shows(metadata):
    assert (metadata["Name"], metadata["Version"]) == ("regard", __version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert len(metadata["Summary"]) > 20
