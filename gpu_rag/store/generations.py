"""Generations: what readers open. A manifest names every artifact and file; `CURRENT`, replaced last, names the manifest."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpu_rag.errors import StoreError
from gpu_rag.ids import canonical_json, content_hash
from gpu_rag.schemas import TableSchema
from gpu_rag.store.artifacts import Artifact
from gpu_rag.store.files import FORMAT, read_json, write_json
from gpu_rag.store.hashing import table_hash


@dataclass(frozen=True)
class Generation:
    """A published state of an index: what readers open.

    Attributes:
        root: The INDEX folder.
        manifest: `id, content_hash, config, encoder, corpus_hash, counts, unfinished` (stage -> rows that did not reach a
            final state), `artifacts` (stage -> folder, files), and `checksum` over all of it.
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

    def recompute_hash(self, schemas: Mapping[str, TableSchema]) -> str:
        """Return the content hash computed again from the rows of every table.

        Args:
            schemas: Table schemas by name.

        Raises:
            StoreError: If it is not the one in the manifest.
        """
        hashes = {}
        for label, entry in self.manifest["artifacts"].items():
            for name, file in entry["files"].items():
                if "content_hash" in file:
                    schema = schemas[file["table"]]
                    hashes[name] = table_hash(self.artifact(label).read(schema), schema)
        contents = _contents(hashes, self.manifest["encoder"])
        if contents != self.content_hash:
            raise StoreError(f"generation {self.manifest['id']} of {self.root}: its tables do not have its content hash")
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
        name: entry["content_hash"]
        for artifact in artifacts.values()
        for name, entry in artifact.manifest["files"].items()
        if "content_hash" in entry
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
    write_json(root / "generations" / f"{manifest['id']}.json", manifest)
    write_json(root / "CURRENT", {"format": FORMAT, "generation": manifest["id"]})
    return Generation(root, manifest)


def open_generation(root: Path, *, generation_id: str | None = None, verify: bool = True) -> Generation:
    """Return a generation of an INDEX folder, its manifest and every artifact checked.

    Args:
        root: INDEX folder.
        generation_id: None for the current one.
        verify: Check every file's checksum; workers skip this after the driver has done it.

    Raises:
        StoreError: If there is none, or if one of its artifacts is missing or altered (named).
    """
    if generation_id is None:
        if not (root / "CURRENT").exists():
            raise StoreError(f"{root} holds no published index; run `gpu-rag index CORPUS --out {root}` to the end")
        generation_id = read_json(root / "CURRENT", "generation")["generation"]
    path = root / "generations" / f"{generation_id}.json"
    manifest = read_json(path, "format", "checksum")
    if manifest["format"] != FORMAT:
        raise StoreError(f"{path} has format {manifest['format']}, this program reads format {FORMAT}; index again")
    if manifest["checksum"] != _checksum(manifest):
        raise StoreError(f"{path} does not match its checksum; run `gpu-rag index` again to publish it anew")
    generation = Generation(root, manifest)
    if verify:
        generation.verify()
    return generation


def _contents(hashes: Mapping[str, str], encoder: Mapping[str, Any]) -> str:
    """Return the content hash: of the tables' hashes by file name, and of the encoder that the vectors come from."""
    return content_hash("generation", canonical_json(dict(hashes)), str(encoder["identity"]))


def _checksum(manifest: Mapping[str, Any]) -> str:
    return content_hash("manifest", canonical_json({key: value for key, value in manifest.items() if key != "checksum"}))
