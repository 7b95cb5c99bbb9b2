"""Records of users' files (JSONL, JSON, Parquet), each with the place it stands at.

What is wrong in a file is said with that place, `FILE:LINE` (for Parquet `FILE: row N`, counted from 1), so that the
user can open it. Values come out typed and free of lone surrogates (`spans.clean_text`); keys that nobody asks for
are ignored.
"""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gpu_rag.errors import ConfigError, InputError
from gpu_rag.spans import clean_text, is_blank

JSONL_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_PARQUET_BATCH_ROWS = 1024
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class Record:
    """One object of a file.

    Attributes:
        where: `FILE:LINE` or `FILE: row N`.
        values: Key -> value as the file has it.
    """

    where: str
    values: dict[str, Any]

    def error(self, message: str) -> InputError:
        """Return an error that starts with the record's place."""
        return InputError(f"{self.where}: {message}")

    def identifier(self, *keys: str) -> str:
        """Return the id under the first key that is there, an integer as text.

        Raises:
            InputError: If no key is there, or the id is blank or of another type.
        """
        key = next((key for key in keys if key in self.values), None)
        if key is None:
            raise self.error(f"key {keys[0]} is missing")
        value = self.values[key]
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            raise self.error(f"{key} is {_kind(value)}, expected a string or an integer")
        if is_blank(value):
            raise self.error(f"{key} is empty")
        return clean_text(value)

    def text(self, *keys: str) -> str:
        """Return the text under the first key that is there.

        Raises:
            InputError: If no key is there, or the value is null or no string.
        """
        key = next((key for key in keys if key in self.values), None)
        if key is None:
            raise self.error(f"key {keys[0]} is missing")
        return self._string(key, self.values[key])

    def optional_text(self, key: str) -> str | None:
        """Return the text under `key`, or None where it is missing or null."""
        value = self.values.get(key)
        return None if value is None else self._string(key, value)

    def items(self, key: str) -> list[Any]:
        """Return the list under `key`, empty where it is missing or null."""
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(f"{key} is {_kind(value)}, expected a list")
        return value

    def texts(self, key: str) -> list[str]:
        """Return the list of strings under `key`, empty where it is missing or null."""
        return [self._string(f"{key}[{index}]", value) for index, value in enumerate(self.items(key))]

    def _string(self, key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self.error(f"{key} is {_kind(value)}, expected a string")
        return clean_text(value)


def read_records(path: Path, encoding: str = "utf-8") -> Iterator[Record]:
    """Return the records of a JSONL (also gzipped) or Parquet file, by its name, in file order.

    Raises:
        InputError: If there is no such file, its name says neither, or a line or row cannot be read.
    """
    if path.name.lower().endswith(JSONL_SUFFIXES):
        return read_jsonl(path, encoding)
    if path.suffix.lower() == ".parquet":
        return read_parquet(path)
    raise InputError(f"{path}: unknown file type, expected one of {', '.join((*JSONL_SUFFIXES, '.parquet'))}")


def read_jsonl(path: Path, encoding: str = "utf-8") -> Iterator[Record]:
    """Yield one record per line that is not blank; lines end at a line feed alone."""
    if codecs.lookup(encoding).encode("\n")[0] != b"\n":
        raise ConfigError(f"{path}: encoding {encoding} cannot be read line by line; convert the file to utf-8")
    with _open(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                text = _decode(line, encoding, path, number)
                text = (text.removeprefix(_BOM) if number == 1 else text).strip()
                if text:
                    yield Record(f"{path}:{number}", _object(_parse(text, path, number), f"{path}:{number}"))
        except (OSError, EOFError, zlib.error) as error:  # damaged gzip
            raise InputError(f"{path}: cannot be read: {error}") from error


def read_json_list(path: Path, encoding: str = "utf-8") -> Iterator[Record]:
    """Yield one record per item of the list that a JSON file holds, placed at its number in the list, from 1."""
    values = _parse(read_text(path, encoding), path, 1)
    if not isinstance(values, list):
        raise InputError(f"{path}: holds {_kind(values)}, expected a list of objects")
    for number, value in enumerate(values, start=1):
        where = f"{path}: item {number}"
        yield Record(where, _object(value, where))


def read_parquet(path: Path) -> Iterator[Record]:
    """Yield one record per row; only a batch of rows is in memory at a time."""
    try:
        with _open(path) as file:
            number = 0
            for batch in pq.ParquetFile(file).iter_batches(batch_size=_PARQUET_BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield Record(f"{path}: row {number}", values)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not a readable Parquet file: {error}") from error


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Return the text of a file with its line ends as they are, without a byte order mark."""
    with _open(path) as file:
        return _decode(file.read(), encoding, path, 1).removeprefix(_BOM)


def _open(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    try:
        return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error}") from error


def _decode(data: bytes, encoding: str, path: Path, first_line: int) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = first_line + data[: error.start].count(b"\n")
        byte = f"byte {data[error.start]:#04x}"
        raise InputError(f"{path}:{line}: {byte} is not {encoding}: {error.reason}") from error


def _parse(text: str, path: Path, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise InputError(f"{path}:{line}: not valid JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # a number of too many digits, too deep a nesting
        raise InputError(f"{path}:{first_line}: not valid JSON: {error}") from error


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: is {_kind(value)}, expected an object")
    return value


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object" if isinstance(value, dict) else f"a {type(value).__name__}")
