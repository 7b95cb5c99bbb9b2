"""The store: work shards, artifacts, generations, and one writer at a time.

    INDEX/
      lock                                  held by the one writer; the kernel frees it when the process ends
      work/<stage>/<fingerprint>/           the work cache of one stage under one fingerprint
        <shard>.parquet, <shard>.json       rows, and the entry that commits them
      artifacts/<stage>-<key>/              whole tables and folders of one stage, `manifest.json` inside
      generations/<id>.json, CURRENT        what readers open; CURRENT is replaced last

Everything is written beside its place and renamed into it, so a reader sees all of a file or nothing, and what a killed run
left half done is never listed. No clock and no random name enters any file, and nothing is pickled.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpu_rag.errors import StoreError
from gpu_rag.ids import canonical_json, content_hash
from gpu_rag.schemas import FINAL_STATES, TableSchema, check_table, column, conform

FORMAT = 1
_TEMPORARY = ".tmp-"
_log = logging.getLogger(__name__)


# --- files -----------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` on a temporary path beside `path`, flush it to disk and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(_TEMPORARY + path.name)
    write(temporary)
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON with sorted keys, atomically."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: _write_text(temporary, text))


def read_json(path: Path) -> Any:
    """Return the JSON in `path`.

    Raises:
        StoreError: If the file is missing or cut short, naming it.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is not valid JSON: {error}") from error


def file_checksum(path: Path) -> str:
    """Return the BLAKE2b hash of the file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _write_text(path: Path, text: str) -> None:
    # A path that is no UTF-8 has lone surrogates; a backslash escape of one is what JSON writes for it.
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _sync_folder(folder: Path) -> None:
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
    """Hold the folder's writer lock; what an earlier, killed run left half written is removed.

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
        for leftover in root.rglob(_TEMPORARY + "*"):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)
        yield


# --- content hashes --------------------------------------------------------------------------------------------------


def table_hash(table: pa.Table, schema: TableSchema) -> str:
    """Return the hash of the table's rows in key order, without its computed columns; file bytes do not enter."""
    table = schema.sort(table).combine_chunks()
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{schema.name}:{schema.version}:{table.num_rows}".encode())
    for name in schema.schema.names:
        if name not in schema.computed:
            digest.update(name.encode())
            values = table.column(name).combine_chunks()
            _hash_array(values, digest)
    return digest.hexdigest()


def _hash_array(array: pa.Array, digest: "hashlib.blake2b") -> None:
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], type=array.type)
    kind = array.type
    # Parquet renames the items of a list, which Arrow's equality of types does not see and its text does.
    label = "list" if pa.types.is_list(kind) else "struct" if pa.types.is_struct(kind) else str(kind)
    digest.update(f"{label}:{len(array)}:{array.null_count}".encode())
    if array.null_count:
        digest.update(pc.is_valid(array).to_numpy(zero_copy_only=False).tobytes())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        lengths = pc.fill_null(pc.binary_length(array), 0)
        digest.update(lengths.cast(pa.int64()).to_numpy(zero_copy_only=False).tobytes())
        for value in array:
            if value.is_valid:
                digest.update(value.as_buffer())
    elif pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        digest.update(lengths.cast(pa.int64()).to_numpy(zero_copy_only=False).tobytes())
        _hash_array(array.flatten(), digest)
    elif pa.types.is_struct(kind):
        for index, field in enumerate(kind):
            digest.update(field.name.encode())
            _hash_array(pc.struct_field(array, [index]), digest)
    else:
        filled = pc.fill_null(array, False if pa.types.is_boolean(kind) else 0) if array.null_count else array
        digest.update(filled.to_numpy(zero_copy_only=False).tobytes())


# --- work cache ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkStatus:
    """What is committed about one piece of work: its latest state and how often it was tried."""

    state: str
    attempts: int
    shard: str


class WorkStore:
    """The work cache of one stage under one fingerprint: results by work key, committed shard by shard.

    Shards hold `work_key, state, reason, attempts` and the stage's payload. A key that was tried again stands in a later
    shard with a higher attempt; the highest one counts.
    """

    def __init__(self, root: Path, label: str, fingerprint: str, result_schema: pa.Schema) -> None:
        """Open the cache; damaged shards are set aside, logged, and their rows computed again."""
        self.folder = root / "work" / label / fingerprint
        self.fingerprint = fingerprint
        self.schema = result_schema.append(column("attempts", pa.int32()))
        self.status: dict[str, WorkStatus] = {}
        self.damaged: list[str] = []
        for entry_path in sorted(self.folder.glob("*.json")):
            if not entry_path.name.startswith(_TEMPORARY):
                self._load(entry_path)

    def wanted(self, keys: Iterable[str], max_attempts: int) -> list[str]:
        """Return the distinct keys, sorted, that still have to be computed."""
        return sorted(
            key
            for key in set(keys)
            if key not in self.status
            or (self.status[key].state not in FINAL_STATES and self.status[key].attempts < max_attempts)
        )

    def commit(self, results: pa.Table) -> None:
        """Make the results durable: rows first, then the entry that lists them."""
        keys = results.column("work_key").to_pylist()
        attempts = [self.status[key].attempts + 1 if key in self.status else 1 for key in keys]
        table = results.append_column(column("attempts", pa.int32()), pa.array(attempts, pa.int32()))
        table = conform(table, self.schema).sort_by("work_key")
        shard = content_hash("shard", *(f"{key}:{tries}" for key, tries in sorted(zip(keys, attempts, strict=True))))
        path = self.folder / f"{shard}.parquet"
        write_parquet(path, table)
        entry = {
            "format": FORMAT,
            "rows": table.num_rows,
            "keys": content_hash("keys", *sorted(keys)),
            "checksum": file_checksum(path),
            "fingerprint": self.fingerprint,
        }
        write_json(self.folder / f"{shard}.json", entry)
        self._note(table, shard)

    def read(self, keys: Iterable[str]) -> pa.Table:
        """Return the latest result of each committed key among `keys`, sorted by key."""
        wanted = {key for key in keys if key in self.status}
        shards = sorted({self.status[key].shard for key in wanted})
        parts = []
        for shard in shards:
            table = pq.read_table(self.folder / f"{shard}.parquet", schema=self.schema)
            latest = [
                key in wanted and self.status[key].shard == shard for key in table.column("work_key").to_pylist()
            ]
            parts.append(table.filter(pa.array(latest, pa.bool_())))
        table = pa.concat_tables(parts) if parts else self.schema.empty_table()
        return table.sort_by("work_key")

    def _load(self, entry_path: Path) -> None:
        shard = entry_path.stem
        path = self.folder / f"{shard}.parquet"
        try:
            entry = read_json(entry_path)
            if not path.exists():
                raise StoreError(f"{path} is missing")
            if file_checksum(path) != entry["checksum"]:
                raise StoreError(f"{path} does not match its checksum")
            table = pq.read_table(path, columns=["work_key", "state", "attempts"])
        except (StoreError, KeyError, pa.ArrowException) as error:
            _log.warning("work shard set aside, its rows are computed again: %s", error)
            self.damaged.append(str(path))
            entry_path.unlink()
            path.unlink(missing_ok=True)
            return
        self._note(table, shard)

    def _note(self, table: pa.Table, shard: str) -> None:
        columns = (table.column(name).to_pylist() for name in ("work_key", "state", "attempts"))
        for key, state, attempts in zip(*columns, strict=True):
            known = self.status.get(key)
            if known is None or attempts > known.attempts:
                self.status[key] = WorkStatus(state, attempts, shard)


# --- artifacts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Artifact:
    """Whole tables (and folders of plain files) that one stage wrote together.

    Attributes:
        folder: Where it lies.
        manifest: `stage`, `key`, and `files`: relative path -> rows, checksum, and for tables name, version, content hash.
    """

    folder: Path
    manifest: dict[str, Any]

    def verify(self) -> None:
        """Check every file against the manifest.

        Raises:
            StoreError: Naming the first file that is missing or altered, and what rebuilds it.
        """
        for name, expected in self.manifest["files"].items():
            path = self.folder / name
            remedy = f"run `gpu-rag index` again to rebuild stage {self.manifest['stage']}"
            if not path.exists():
                raise StoreError(f"artifact {path} is missing; {remedy}")
            if file_checksum(path) != expected["checksum"]:
                raise StoreError(f"artifact {path} does not match its checksum; {remedy}")

    def read(self, schema: TableSchema, columns: list[str] | None = None) -> pa.Table:
        """Return one table, all of its columns unless named, checked against its schema and row count.

        Raises:
            StoreError: If it is missing, of another schema version, or has another number of rows than its manifest says.
        """
        name = f"{schema.name}.parquet"
        expected = self.manifest["files"].get(name)
        if expected is None:
            raise StoreError(f"artifact {self.folder} has no table {schema.name}")
        if expected["version"] != schema.version:
            raise StoreError(
                f"artifact {self.folder / name} has version {expected['version']} of table {schema.name}, "
                f"this program reads version {schema.version}; index the corpus again"
            )
        try:
            table = pq.read_table(self.folder / name, memory_map=True, columns=columns)
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"artifact {self.folder / name} cannot be read: {error}") from error
        if table.num_rows != expected["rows"]:
            raise StoreError(f"artifact {self.folder / name} has {table.num_rows} rows, expected {expected['rows']}")
        return table if columns else check_table(conform(table, schema.schema), schema)


class ArtifactStore:
    """Artifacts of an INDEX folder, by stage and key."""

    def __init__(self, root: Path) -> None:
        """Use `root/artifacts`."""
        self.folder = root / "artifacts"

    def find(self, label: str, key: str) -> Artifact | None:
        """Return the artifact if it is there and whole; a damaged one is removed and logged."""
        folder = self.folder / f"{label}-{key}"
        if not folder.exists():
            return None
        try:
            artifact = Artifact(folder, read_json(folder / "manifest.json"))
            artifact.verify()
        except StoreError as error:
            _log.warning("artifact is built again: %s", error)
            shutil.rmtree(folder)
            return None
        return artifact

    def write(
        self,
        label: str,
        key: str,
        tables: Mapping[str, pa.Table],
        schemas: Iterable[TableSchema],
        write_files: Callable[[Path], None] | None = None,
    ) -> Artifact:
        """Write tables, and whatever `write_files` puts into the folder it is given, as one artifact by one rename."""
        target = self.folder / f"{label}-{key}"
        temporary = self.folder / f"{_TEMPORARY}{label}-{key}"
        temporary.mkdir(parents=True)
        files: dict[str, dict[str, Any]] = {}
        if write_files:
            write_files(temporary)
            for path in sorted(temporary.rglob("*")):
                if path.is_file():
                    files[path.relative_to(temporary).as_posix()] = {"checksum": file_checksum(path)}
        for schema in schemas:
            table = check_table(schema.sort(tables[schema.name]), schema)
            path = temporary / f"{schema.name}.parquet"
            write_parquet(path, table)
            files[path.name] = {
                "table": schema.name,
                "version": schema.version,
                "rows": table.num_rows,
                "content_hash": table_hash(table, schema),
                "checksum": file_checksum(path),
            }
        manifest = {"format": FORMAT, "stage": label, "key": key, "files": files}
        write_json(temporary / "manifest.json", manifest)
        _sync_folder(temporary)
        if target.exists():
            shutil.rmtree(target)
        os.replace(temporary, target)
        _sync_folder(self.folder)
        return Artifact(target, manifest)


# --- generations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Generation:
    """A published state of an index: what readers open.

    Attributes:
        root: The INDEX folder.
        manifest: `id, content_hash, config, encoder, corpus_hash, counts, artifacts` (stage -> folder, files).
    """

    root: Path
    manifest: dict[str, Any]

    @property
    def content_hash(self) -> str:
        """Return the hash over all tables (rows sorted by id) and the encoder that its vectors come from."""
        return str(self.manifest["content_hash"])

    def artifact(self, label: str) -> Artifact:
        """Return the artifact of one stage."""
        try:
            entry = self.manifest["artifacts"][label]
        except KeyError as error:
            raise StoreError(f"generation {self.manifest['id']} of {self.root} has no artifact of stage {label}") from error
        return Artifact(self.root / "artifacts" / entry["folder"], entry)

    def read(self, schema: TableSchema, columns: list[str] | None = None) -> pa.Table:
        """Return one table of the generation, whichever stage wrote it."""
        for label, entry in self.manifest["artifacts"].items():
            if f"{schema.name}.parquet" in entry["files"]:
                return self.artifact(label).read(schema, columns)
        raise StoreError(f"generation {self.manifest['id']} of {self.root} has no table {schema.name}")

    def verify(self) -> None:
        """Check every file of every artifact; raises `StoreError` naming the first that does not match."""
        for label in self.manifest["artifacts"]:
            self.artifact(label).verify()


def publish_generation(
    root: Path,
    artifacts: Mapping[str, Artifact],
    *,
    config: dict[str, Any],
    encoder: dict[str, Any],
    corpus_hash: str,
    counts: Mapping[str, int],
    code_version: str,
) -> Generation:
    """Write the generation's manifest and make it the current one; the last act of an index run."""
    hashes = {
        name: entry["content_hash"]
        for artifact in artifacts.values()
        for name, entry in artifact.manifest["files"].items()
        if "content_hash" in entry
    }
    contents = content_hash("generation", canonical_json(hashes), encoder["identity"])
    manifest = {
        "format": FORMAT,
        "id": content_hash("generation-id", contents, canonical_json(config)),
        "content_hash": contents,
        "config": config,
        "encoder": encoder,
        "corpus_hash": corpus_hash,
        "counts": dict(counts),
        "code_version": code_version,
        "artifacts": {
            label: {
                "stage": label,
                "key": artifact.manifest["key"],
                "folder": artifact.folder.name,
                "files": artifact.manifest["files"],
            }
            for label, artifact in artifacts.items()
        },
    }
    write_json(root / "generations" / f"{manifest['id']}.json", manifest)
    write_json(root / "CURRENT", {"format": FORMAT, "generation": manifest["id"]})
    return Generation(root, manifest)


def open_generation(root: Path, *, verify: bool = True) -> Generation:
    """Return the current generation of an INDEX folder, every artifact checked.

    Args:
        root: INDEX folder.
        verify: Check every file's checksum; workers skip this after the driver has done it.

    Raises:
        StoreError: If there is none, or if one of its artifacts is missing or altered (named).
    """
    if not (root / "CURRENT").exists():
        raise StoreError(f"{root} holds no published index; run `gpu-rag index CORPUS --out {root}` to the end")
    current = read_json(root / "CURRENT")
    manifest = read_json(root / "generations" / f"{current['generation']}.json")
    if manifest.get("format") != FORMAT:
        raise StoreError(f"{root} has format {manifest.get('format')}, this program reads format {FORMAT}; index again")
    generation = Generation(root, manifest)
    if verify:
        generation.verify()
    return generation


def state_counts(states: Iterable[str]) -> dict[str, int]:
    """Return how many rows are in each state, only states that occur, in alphabetical order."""
    counts: dict[str, int] = {}
    for state in sorted(states):
        counts[state] = counts.get(state, 0) + 1
    return counts


__all__ = [
    "Artifact", "ArtifactStore", "Generation", "WorkStatus", "WorkStore", "file_checksum", "open_generation",
    "publish_generation", "read_json", "state_counts", "table_hash", "write_atomically", "write_json", "write_parquet",
    "writer_lock",
]  # fmt: skip
