"""Artifacts: whole tables and folders of plain files that one stage wrote together, kept by the hash of their inputs."""

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gpu_rag.errors import StoreError
from gpu_rag.schemas import TableSchema, check_table, conform
from gpu_rag.store.files import FORMAT, TEMPORARY, file_checksum, read_json, sync_file, sync_folder, write_json, write_parquet
from gpu_rag.store.hashing import table_hash

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Artifact:
    """Whole tables (and folders of plain files) that one stage wrote together.

    Attributes:
        folder: Where it lies.
        manifest: `stage`, `key`, and `files`: relative path -> checksum, and for tables name, version, rows, content hash and
            whether it is an input of the next update alone.
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
            if not path.is_file():
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
            artifact = Artifact(folder, read_json(folder / "manifest.json", "stage", "key", "files"))
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
        temporary = self.folder / f"{TEMPORARY}{label}-{key}"
        temporary.mkdir(parents=True)
        files: dict[str, dict[str, Any]] = {}
        if write_files:
            write_files(temporary)
            for path in sorted(temporary.rglob("*")):
                if path.is_file():
                    sync_file(path)
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
                "is_input": schema.is_input,
            }
        manifest = {"format": FORMAT, "stage": label, "key": key, "files": files}
        write_json(temporary / "manifest.json", manifest)
        sync_folder(temporary)
        if target.exists():
            shutil.rmtree(target)
        os.replace(temporary, target)
        sync_folder(self.folder)
        return Artifact(target, manifest)
