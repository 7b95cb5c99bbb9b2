"""Files of the store: written beside their place and renamed into it, read with errors that name them, one writer a folder."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gpu_rag.errors import StoreError

FORMAT = 1
TEMPORARY = ".gpu-rag-tmp-"
_OWN_FOLDERS = ("work", "artifacts", "generations")


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` on a temporary path beside `path`, flush it to disk and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(TEMPORARY + path.name)
    write(temporary)
    sync_file(temporary)
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON with sorted keys, atomically."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: _write_text(temporary, text))


def read_json(path: Path, *required: str) -> dict[str, Any]:
    """Return the JSON object in `path`, which has at least the keys `required`.

    Raises:
        StoreError: If the file is missing, unreadable, cut short or something else, naming it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing") from error
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read as JSON: {error}") from error
    missing = [key for key in required if not isinstance(value, dict) or key not in value]
    if missing or not isinstance(value, dict):
        raise StoreError(f"{path} is not what this program writes: it lacks {', '.join(missing) or 'an object'}")
    return value


def file_checksum(path: Path) -> str:
    """Return the BLAKE2b hash of the file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _write_text(path: Path, text: str) -> None:
    # A path that is no UTF-8 has lone surrogates; a backslash escape of one is what JSON writes for it.
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def sync_file(path: Path) -> None:
    """Flush a file to disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table as Parquet (zstd), atomically."""
    write_atomically(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


@contextlib.contextmanager
def writer_lock(root: Path) -> Iterator[None]:
    """Hold the folder's writer lock; what an earlier, killed run left half written in the store's own places is removed.

    Raises:
        StoreError: If another process holds it. The lock is the kernel's (flock), so it cannot outlive its process.
    """
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise StoreError(f"{root} is being written by process {file.read().strip() or 'unknown'}") from error
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        for leftover in _leftovers(root):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
        yield


def _leftovers(root: Path) -> list[Path]:
    """Return half-written files and folders; a folder of another lock below `root` is none of ours."""
    inside = (path for name in _OWN_FOLDERS for path in (root / name).rglob(TEMPORARY + "*"))
    files = [*root.glob(TEMPORARY + "*"), *inside]
    return [path for path in files if not any(parent.name.startswith(TEMPORARY) for parent in path.parents)]
