"""What a run keeps of a side of its data: a JSON file that knows whether it is whole."""

import json
from typing import Any, Final

from regard import safe_read
from regard.data.files import content_checksum, write_atomically
from regard.data.lines import PathLike, name_of
from regard.errors import DataError

VERSION: Final = 1


def checksum(content: dict[str, Any]) -> str:
    """A short text that is the same for the same content."""
    text = json.dumps(content, sort_keys=True)
    return content_checksum(text.encode())


def write_kept(path: PathLike, content: dict[str, Any]) -> None:
    """Writes content and its checksum."""
    whole = {**content, "checksum": checksum(content)}
    with write_atomically(path) as file:
        file.write(json.dumps(whole, ensure_ascii=False, indent=1).encode())


def read_kept(path: PathLike) -> dict[str, Any]:
    """Reads what `write_kept` has written, without the checksum."""
    raw = safe_read.read_bytes(path, safe_read.MAX_JSON)
    try:
        content = safe_read.parse_json(raw)
    except safe_read.InvalidJSONError:
        raise not_kept(path, "it is not a tokeniser of regard") from None
    if not isinstance(content, dict) or not {"version", "checksum"} <= content.keys():
        raise not_kept(path, "it is not a tokeniser of regard")
    # first, since later formats may have other checksums
    safe_read.check_format(path, content["version"], VERSION)
    if content.pop("checksum") != checksum(content):
        raise not_kept(path, "its checksum is not that of its content")
    return content


def not_kept(path: PathLike, reason: str) -> DataError:
    """What to say of a file that is none of these, or not whole."""
    fix = "copy it again from the run that it belongs to, or train that run again"
    return DataError(name_of(path), None, reason, fix)
