"""Arrays in a folder: one .npy each and a JSON header that is written last, never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_rag.errors import InputError

FORMAT_VERSION = 1


def save_arrays(folder: Path, arrays: Mapping[str, npt.NDArray[Any]], facts: Mapping[str, Any]) -> None:
    """Write NAME.npy for each array and, last and by rename, header.json with the facts; a torn save cannot be read."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "header.json").unlink(missing_ok=True)
    for name, array in arrays.items():
        # Written beside and renamed: a reader that still maps the old file keeps its old contents.
        with (folder / f"{name}.npy.tmp").open("wb") as file:
            np.save(file, array, allow_pickle=False)
        (folder / f"{name}.npy.tmp").replace(folder / f"{name}.npy")
    header = {
        "format_version": FORMAT_VERSION,
        **facts,
        "dtypes": {name: str(array.dtype) for name, array in arrays.items()},
    }
    temporary = folder / "header.json.tmp"
    temporary.write_text(json.dumps(header, indent=2) + "\n", encoding="ascii")
    temporary.replace(folder / "header.json")


def read_arrays(
    folder: Path, dtypes: Mapping[str, tuple[str, ...]], facts: Mapping[str, type], mmap: bool
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the header and the one-dimensional arrays that `save_arrays` wrote.

    Args:
        folder: Where the files lie.
        dtypes: Allowed dtypes of each array.
        facts: What the header has to say, and of which type.
        mmap: Map the arrays copy-on-write instead of reading them.

    Raises:
        InputError: If a file is missing or unreadable, or header and arrays do not fit, naming file and field.
    """
    header = _read_header(folder / "header.json", {"format_version": int, **facts, "dtypes": dict})
    arrays = {name: _read_array(folder / f"{name}.npy", allowed, mmap) for name, allowed in dtypes.items()}
    for name, array in arrays.items():
        if header["dtypes"].get(name) != str(array.dtype):
            raise InputError(f"{folder / name}.npy is {array.dtype}, header.json says {header['dtypes'].get(name)!r}")
    return header, arrays


def _read_header(path: Path, kinds: Mapping[str, type]) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    for name, kind in kinds.items():
        if not isinstance(header, dict) or not isinstance(header.get(name), kind):
            raise InputError(f"{path} has no {name} of type {kind.__name__}")
    if header["format_version"] != FORMAT_VERSION:
        raise InputError(f"{path} has format_version={header['format_version']}, this code reads {FORMAT_VERSION}")
    return header


def _read_array(path: Path, allowed: tuple[str, ...], mmap: bool) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="c" if mmap else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    if array.ndim != 1 or str(array.dtype) not in allowed:
        raise InputError(f"{path} is {array.dtype} {array.shape}, expected {' or '.join(allowed)}, one dimension")
    return array
