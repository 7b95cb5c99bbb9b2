"""The store: work shards, artifacts, generations, and one writer at a time.

    INDEX/
      lock                                  held by the one writer; the kernel frees it when the process ends
      work/<stage>/<fingerprint>/           the work cache of one stage under one fingerprint
        <shard>.parquet, <shard>.json       rows, and the entry that commits them
      artifacts/<stage>-<key>/              whole tables and folders of one stage, `manifest.json` inside
      generations/<id>.json, CURRENT        what readers open; CURRENT is replaced last
      generations/<id>.lock, HISTORY        what readers hold; the order of publication

Everything is written beside its place and renamed into it, so a reader sees all of a file or nothing, and what a killed run
left half done is never listed. No clock and no random name enters any file, and nothing is pickled.
"""

from gpu_rag.store.artifacts import Artifact, ArtifactStore
from gpu_rag.store.cleaning import (
    WORK_KEYS,
    Cleaned,
    collect_garbage,
    keep_work_keys,
    remove_generations,
    remove_unnamed_artifacts,
    remove_unneeded_work,
)
from gpu_rag.store.files import file_checksum, read_json, write_atomically, write_json, write_parquet, writer_lock
from gpu_rag.store.generations import Generation, current_id, history, open_generation, publish_generation, read_manifest
from gpu_rag.store.hashing import table_hash
from gpu_rag.store.work import WorkStatus, WorkStore, state_counts

__all__ = [
    "WORK_KEYS", "Artifact", "ArtifactStore", "Cleaned", "Generation", "WorkStatus", "WorkStore", "collect_garbage",
    "current_id", "file_checksum", "history", "keep_work_keys", "open_generation", "publish_generation", "read_json",
    "read_manifest", "remove_generations", "remove_unnamed_artifacts", "remove_unneeded_work", "state_counts", "table_hash",
    "write_atomically", "write_json", "write_parquet", "writer_lock",
]  # fmt: skip
