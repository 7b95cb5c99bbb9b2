"""What takes things out of an INDEX folder: old generations, artifacts that none names, work that none needs.

Every generation keeps the keys of the work it was made from (`WORK_KEYS`), so that what is still needed is known, not guessed.
All functions here expect the folder's writer lock to be held by the caller. They may be killed at any point: what they had not
come to is removed by the next call.
"""

import fcntl
import json
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpu_rag.errors import StoreError
from gpu_rag.ids import content_hash
from gpu_rag.store.artifacts import Artifact, ArtifactStore
from gpu_rag.store.files import read_json, sync_folder
from gpu_rag.store.generations import Generation, current_id, history, lock_path, read_manifest
from gpu_rag.store.work import retain_work

WORK_KEYS = "00_work"  # label of the artifact with the keys of all work that a generation was made from
_FINGERPRINTS = "fingerprints.json"

WorkKeys = dict[str, dict[str, set[str]]]  # stage label -> fingerprint -> keys


@dataclass(frozen=True)
class Cleaned:
    """What was removed.

    Attributes:
        generations: Ids of the removed generations.
        in_use: Ids of generations that were to go, but a reader has them open.
        artifacts: Artifact folders removed.
        work_rows: Rows of the work cache removed.
        freed_bytes: Size of all files that are gone.
    """

    generations: tuple[str, ...]
    in_use: tuple[str, ...]
    artifacts: int
    work_rows: int
    freed_bytes: int


def keep_work_keys(root: Path, keys: Mapping[str, tuple[str, Collection[str]]]) -> Artifact:
    """Return the artifact with the work keys of a run, written unless it is there.

    Args:
        root: INDEX folder.
        keys: Stage label -> (fingerprint, keys), for every row stage.
    """
    packed = {label: b"".join(sorted(map(bytes.fromhex, set(found)))) for label, (_, found) in sorted(keys.items())}
    fingerprints = {label: fingerprint for label, (fingerprint, _) in sorted(keys.items())}
    name = content_hash("work keys", *(part for label in packed for part in (label, fingerprints[label], packed[label])))

    def write(folder: Path) -> None:
        (folder / _FINGERPRINTS).write_text(json.dumps(fingerprints, sort_keys=True), encoding="utf-8")
        for label, digests in packed.items():
            np.save(folder / f"{label}.npy", np.frombuffer(digests, np.uint8).reshape(-1, 16))

    store = ArtifactStore(root)
    return store.find(WORK_KEYS, name) or store.write(WORK_KEYS, name, {}, (), write)


def work_keys_of(generations: Iterable[Generation]) -> WorkKeys:
    """Return the keys of all work that the generations were made from.

    Raises:
        StoreError: If a generation does not name them.
    """
    needed: WorkKeys = {}
    for generation in generations:
        folder = generation.artifact(WORK_KEYS).folder
        for label, fingerprint in read_json(folder / _FINGERPRINTS).items():
            digests = np.load(folder / f"{label}.npy", allow_pickle=False)
            needed.setdefault(label, {}).setdefault(fingerprint, set()).update(row.tobytes().hex() for row in digests)
    return needed


def remove_generations(root: Path, unwanted: Collection[str]) -> tuple[list[str], list[str]]:
    """Remove generations that no reader has open; return the ids of the removed ones and of those in use.

    Raises:
        StoreError: If the current one is among them.
    """
    if current_id(root) in unwanted:
        raise StoreError(f"generation {current_id(root)} of {root} is the current one and is not removed")
    removed, in_use = [], []
    for generation_id in unwanted:
        lock = lock_path(root, generation_id)
        lock.touch()  # one of a version without locks may have none
        with open(lock, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                in_use.append(generation_id)
                continue
            (root / "generations" / f"{generation_id}.json").unlink()
            lock.unlink()
        removed.append(generation_id)
    sync_folder(root / "generations")
    return removed, in_use


def remove_unnamed_artifacts(root: Path) -> tuple[int, int]:
    """Remove artifacts that no generation names; return how many, and their bytes."""
    named = {entry["folder"] for known in history(root) for entry in read_manifest(root, known)["artifacts"].values()}
    removed = freed = 0
    for folder in sorted((root / "artifacts").iterdir()):
        if folder.name not in named:
            freed += _size(folder)
            shutil.rmtree(folder)
            removed += 1
    return removed, freed


def remove_unneeded_work(root: Path) -> tuple[int, int]:
    """Remove the rows of the work cache that no generation was made from; return how many, and the bytes that are gone.

    Raises:
        StoreError: If a generation does not name the work it was made from: nothing is removed then.
    """
    needed = work_keys_of(Generation(root, read_manifest(root, known)) for known in history(root))
    before = _size(root / "work")
    rows = 0
    for stage in sorted((root / "work").iterdir()):
        for folder in sorted(stage.iterdir()):
            rows += retain_work(folder, needed.get(stage.name, {}).get(folder.name, set()))
        if not any(stage.iterdir()):
            stage.rmdir()
    return rows, before - _size(root / "work")


def collect_garbage(root: Path, keep: int, *, work: bool = False) -> Cleaned:
    """Remove all but the last `keep` generations, then the artifacts and, with `work`, the work that no other one needs.

    Args:
        root: INDEX folder.
        keep: Generations to keep, the current one among them; at least 1.
        work: Also remove work that none of the generations left was made from, such as that of deleted documents and of
            trials under another config; it would have to be computed again.

    Raises:
        StoreError: If nothing is published, or a manifest is damaged.
    """
    current = current_id(root)
    older = [known for known in history(root) if known != current]
    removed, in_use = remove_generations(root, older[: max(0, len(older) + 1 - keep)])
    artifacts, freed = remove_unnamed_artifacts(root)
    rows, freed_work = remove_unneeded_work(root) if work else (0, 0)
    return Cleaned(tuple(removed), tuple(in_use), artifacts, rows, freed + freed_work)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
