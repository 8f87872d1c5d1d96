"""JSON files with a checksum."""

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from regard import safe_read
from regard.atomic_files import atomic_output, content_checksum
from regard.data.text_files import display_name
from regard.errors import DataError
from regard.safe_read import PathLike

VERSION: Final = 1

SchemaT = TypeVar("SchemaT", bound=BaseModel)
EncoderT = TypeVar("EncoderT", bound="StoredEncoder")
RecordT = TypeVar("RecordT", bound="StoredRecord")


class StoredEncoder(ABC):
    """An encoder of one side of the data, which a run folder keeps as a JSON file."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the content of its file, without the checksum."""

    @classmethod
    @abstractmethod
    def from_json(cls: type[EncoderT], path: PathLike, content: dict[str, Any]) -> EncoderT:
        """Return the encoder that a file describes; raises DataError if it is invalid."""

    @property
    def fingerprint(self) -> str:
        """A checksum that is the same for equal encoders."""
        return json_checksum(self.to_json())

    def save(self, path: PathLike) -> None:
        """Write a JSON file."""
        write_checksummed(path, self.to_json())

    @classmethod
    def load(cls: type[EncoderT], path: PathLike) -> EncoderT:
        """Load what `save` has written."""
        return cls.from_json(path, read_checksummed(path))


#: types of the fields of records, whose limits hold for what a file has
Size = Annotated[int, Field(ge=1, lt=2**31)]
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class StoredRecord(StoredEncoder):
    """An encoder whose file has its own fields; those that have their defaults may be missing."""

    kind: ClassVar[str]
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    def check_fields(self) -> None:
        """Raise ValueError if fields of a file, each of which is valid, contradict each other."""

    @classmethod
    def from_json(cls: type[RecordT], path: PathLike, content: dict[str, Any]) -> RecordT:
        """Return the encoder that a file describes; raises DataError if it is invalid."""
        kind, known = content.get("kind"), {"version", "kind"}
        if kind != cls.kind:
            raise invalid_file(path, f"it is of the kind {kind!s:.40}, and not {cls.kind}")
        own = {field.name for field in fields(cls)}
        # unknown entries that say nothing are of other versions
        found = {n: v for n, v in content.items() if n not in known and (n in own or v)}
        try:
            encoder = TypeAdapter(cls).validate_python(found)
            encoder.check_fields()
        except ValidationError as error:
            raise invalid_file(path, safe_read.explain(error)) from None
        except ValueError as error:
            raise invalid_file(path, str(error)) from None
        return encoder

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        defaults = {f.name: f.default for f in fields(self)}
        own = {n: v for n, v in values.items() if v is not defaults[n]}
        plain = {n: list(v) if isinstance(v, tuple) else v for n, v in own.items()}
        return {"version": VERSION, "kind": self.kind, **plain}


def json_checksum(content: dict[str, Any]) -> str:
    """Return a checksum of JSON content."""
    text = json.dumps(content, sort_keys=True)
    return content_checksum(text.encode())


def write_checksummed(path: PathLike, content: dict[str, Any]) -> None:
    """Write content and its checksum."""
    whole = {**content, "checksum": json_checksum(content)}
    with atomic_output(path) as file:
        file.write(json.dumps(whole, ensure_ascii=False, indent=1).encode())


def read_checksummed(path: PathLike) -> dict[str, Any]:
    """Read what `write_checksummed` has written; raises DataError if it is damaged."""
    raw = safe_read.read_bytes(path, safe_read.MAX_JSON)
    try:
        content = safe_read.parse_json(raw)
    except safe_read.InvalidJSONError:
        raise invalid_file(path, "it is not a tokeniser of regard") from None
    if not isinstance(content, dict) or not {"version", "checksum"} <= content.keys():
        raise invalid_file(path, "it is not a tokeniser of regard")
    # first, since later formats may have other checksums
    safe_read.check_format(path, content["version"], VERSION)
    if content.pop("checksum") != json_checksum(content):
        raise invalid_file(path, "its checksum is not that of its content")
    return content


def invalid_file(path: PathLike, reason: str) -> DataError:
    """Return the error for a file of another sort, or a damaged one."""
    fix = "copy it again from the run that it belongs to, or train that run again"
    return DataError(display_name(path), None, reason, fix)


def validated(schema: type[SchemaT], path: PathLike, content: dict[str, Any]) -> SchemaT:
    """Return the content of a file by its schema; raises DataError if it is invalid."""
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise invalid_file(path, safe_read.explain(error)) from None
