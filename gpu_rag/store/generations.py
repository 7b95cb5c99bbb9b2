"""Generations: what readers open. A manifest names every artifact and file; `CURRENT`, replaced last, names the manifest.

`HISTORY` lists the generations in the order in which they were published. A reader holds a shared lock (flock) on the lock file
of its generation for as long as it has it open, so that nothing is removed under it; the kernel frees it with the process.
"""

import fcntl
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from gpu_rag.errors import StoreError
from gpu_rag.ids import canonical_json, content_hash
from gpu_rag.schemas import TableSchema
from gpu_rag.store.artifacts import Artifact
from gpu_rag.store.files import FORMAT, read_json, write_json
from gpu_rag.store.hashing import table_hash

_OPEN_TRIES = 10  # each fails only if a newer generation is published, and this one removed, between two file operations
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Generation:
    """A published state of an index: what readers open.

    Attributes:
        root: The INDEX folder.
        manifest: `id, content_hash, config, encoder, corpus_hash, counts, unfinished` (stage -> rows that did not reach a
            final state), `artifacts` (stage -> folder, files), and `checksum` over all of it.
        hold: The open lock file that keeps it from being removed while this object lives; None where none is needed.
    """

    root: Path
    manifest: dict[str, Any]
    hold: IO[bytes] | None = field(default=None, compare=False, repr=False)

    @property
    def id(self) -> str:
        """Return its id."""
        return str(self.manifest["id"])

    @property
    def content_hash(self) -> str:
        """Return the hash over all tables (rows sorted by id) and the encoder that its vectors come from."""
        return str(self.manifest["content_hash"])

    def artifact(self, label: str) -> Artifact:
        """Return the artifact of one stage."""
        try:
            entry = self.manifest["artifacts"][label]
        except KeyError as error:
            raise StoreError(f"generation {self.id} of {self.root} has no artifact of stage {label}") from error
        return Artifact(self.root / "artifacts" / entry["folder"], entry)

    def read(self, schema: TableSchema, columns: list[str] | None = None) -> pa.Table:
        """Return one table of the generation, whichever stage wrote it."""
        for label, entry in self.manifest["artifacts"].items():
            if f"{schema.name}.parquet" in entry["files"]:
                return self.artifact(label).read(schema, columns)
        raise StoreError(f"generation {self.id} of {self.root} has no table {schema.name}")

    def verify(self) -> None:
        """Check every file of every artifact; raises `StoreError` naming the first that does not match."""
        for label in self.manifest["artifacts"]:
            self.artifact(label).verify()

    def recompute_hash(self, schemas: Mapping[str, TableSchema]) -> str:
        """Return the content hash computed again from the rows of every table.

        Args:
            schemas: Table schemas by name.

        Raises:
            StoreError: If it is not the one in the manifest.
        """
        hashes = {}
        for label, entry in self.manifest["artifacts"].items():
            for name, file in _hashed(entry["files"]):
                schema = schemas[file["table"]]
                hashes[name] = table_hash(self.artifact(label).read(schema), schema)
        contents = _contents(hashes, self.manifest["encoder"])
        if contents != self.content_hash:
            raise StoreError(f"generation {self.id} of {self.root}: its tables do not have its content hash")
        return contents


def publish_generation(
    root: Path,
    artifacts: Mapping[str, Artifact],
    *,
    config: dict[str, Any],
    encoder: dict[str, Any],
    corpus_hash: str,
    counts: Mapping[str, int],
    code_version: str,
    unfinished: Mapping[str, int],
) -> Generation:
    """Write the generation's manifest and make it the current one; the last act of an index run."""
    hashes = {
        name: entry["content_hash"] for artifact in artifacts.values() for name, entry in _hashed(artifact.manifest["files"])
    }
    contents = _contents(hashes, encoder)
    manifest = {
        "format": FORMAT,
        "id": content_hash("generation-id", contents, canonical_json(config)),
        "content_hash": contents,
        "config": config,
        "encoder": encoder,
        "corpus_hash": corpus_hash,
        "counts": dict(counts),
        "code_version": code_version,
        "unfinished": dict(unfinished),
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
    manifest["checksum"] = _checksum(manifest)
    generation_id = str(manifest["id"])
    write_json(_manifest_path(root, generation_id), manifest)
    lock_path(root, generation_id).touch()
    published = [other for other in history(root) if other != generation_id]
    write_json(root / "generations" / "HISTORY", {"format": FORMAT, "generations": [*published, generation_id]})
    write_json(root / "CURRENT", {"format": FORMAT, "generation": generation_id})
    return Generation(root, manifest)


def open_generation(root: Path, *, generation_id: str | None = None, verify: bool = True) -> Generation:
    """Return a generation of an INDEX folder, its manifest and every artifact checked, held until the object is gone.

    Args:
        root: INDEX folder.
        generation_id: None for the current one.
        verify: Check every file's checksum; workers skip this after the driver has done it.

    Raises:
        StoreError: If there is none, or if one of its artifacts is missing or altered (named).
    """
    for attempt in range(_OPEN_TRIES):
        wanted = current_id(root) if generation_id is None else generation_id
        hold = _hold(root, wanted)
        if _manifest_path(root, wanted).exists() or generation_id is not None or attempt == _OPEN_TRIES - 1:
            break
    generation = Generation(root, read_manifest(root, wanted), hold)
    if verify:
        generation.verify()
    return generation


def current_id(root: Path) -> str:
    """Return the id of the current generation.

    Raises:
        StoreError: If none is published.
    """
    if not (root / "CURRENT").exists():
        raise StoreError(f"{root} holds no published index; run `gpu-rag index CORPUS --out {root}` to the end")
    return str(read_json(root / "CURRENT", "generation")["generation"])


def read_manifest(root: Path, generation_id: str) -> dict[str, Any]:
    """Return a generation's manifest.

    Raises:
        StoreError: If it is missing, damaged or of another format.
    """
    path = _manifest_path(root, generation_id)
    manifest = read_json(path, "format", "checksum")
    if manifest["format"] != FORMAT:
        raise StoreError(f"{path} has format {manifest['format']}, this program reads format {FORMAT}; index again")
    if manifest["checksum"] != _checksum(manifest):
        raise StoreError(f"{path} does not match its checksum; run `gpu-rag index` again to publish it anew")
    return manifest


def history(root: Path) -> list[str]:
    """Return the ids of the generations that are there, in the order in which they were (last) published."""
    folder = root / "generations"
    present = {path.stem for path in folder.glob("*.json")}
    path = folder / "HISTORY"
    listed = [str(known) for known in read_json(path, "generations")["generations"]] if path.exists() else []
    unlisted = sorted(present.difference(listed))  # of a version without this list: older than all that are in it
    return [*unlisted, *(known for known in listed if known in present)]


def lock_path(root: Path, generation_id: str) -> Path:
    """Return the path of the file whose lock readers of a generation hold."""
    return root / "generations" / f"{generation_id}.lock"


def _manifest_path(root: Path, generation_id: str) -> Path:
    return root / "generations" / f"{generation_id}.json"


def _hold(root: Path, generation_id: str) -> IO[bytes] | None:
    """Return the generation's lock file, open and locked for reading; None where there is none or no lock to be had."""
    try:
        file = open(lock_path(root, generation_id), "rb")  # noqa: SIM115  (held for as long as the generation)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
    except OSError as error:  # a file system without locks
        _log.warning("generation %s of %s cannot be held while it is read: %s", generation_id, root, error)
    return file


def _hashed(files: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the files that are tables of the generation's content."""
    return ((name, entry) for name, entry in files.items() if "content_hash" in entry and not entry.get("is_input"))


def _contents(hashes: Mapping[str, str], encoder: Mapping[str, Any]) -> str:
    """Return the content hash: of the tables' hashes by file name, and of the encoder that the vectors come from."""
    return content_hash("generation", canonical_json(dict(hashes)), str(encoder["identity"]))


def _checksum(manifest: Mapping[str, Any]) -> str:
    return content_hash("manifest", canonical_json({key: value for key, value in manifest.items() if key != "checksum"}))
