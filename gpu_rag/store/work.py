"""The work cache of one stage: results by work key, committed shard by shard."""

import logging
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpu_rag.errors import StoreError
from gpu_rag.ids import content_hash
from gpu_rag.schemas import FINAL_STATES, column, conform
from gpu_rag.store.files import FORMAT, TEMPORARY, file_checksum, read_json, write_json, write_parquet

LOST = "worker lost: "  # how the reason of a row begins that was taken to kill or silence its worker
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkStatus:
    """What is committed about one piece of work: its latest state and reason, and how often it was tried."""

    state: str
    attempts: int
    shard: str
    reason: str


class WorkStore:
    """The work cache of one stage under one fingerprint: results by work key, committed shard by shard.

    Shards hold `work_key, state, reason, attempts` and the stage's payload. A key that was tried again stands in a later
    shard with a higher attempt; the highest one counts.
    """

    def __init__(self, root: Path, label: str, fingerprint: str, result_schema: pa.Schema) -> None:
        """Open the cache; damaged shards are dropped, logged, and their rows computed again."""
        self.folder = root / "work" / label / fingerprint
        self.fingerprint = fingerprint
        self.schema = result_schema.append(column("attempts", pa.int32()))
        self.status: dict[str, WorkStatus] = {}
        self.damaged: list[str] = []
        self._earlier: dict[str, set[str]] = {}  # key -> shards of the tries before its latest
        for entry_path in sorted(self.folder.glob("*.json")):
            if not entry_path.name.startswith(TEMPORARY):
                self._load(entry_path)

    def wanted(self, keys: Iterable[str], max_attempts: int) -> list[str]:
        """Return the distinct keys, sorted, that still have to be computed."""
        return sorted(
            key
            for key in set(keys)
            if key not in self.status
            or (self.status[key].state not in FINAL_STATES and self.status[key].attempts < max_attempts)
        )

    def is_suspect(self, key: str) -> bool:
        """Return whether a piece of work was taken to kill or silence its worker when it was tried last."""
        return key in self.status and self.status[key].reason.startswith(LOST)

    def commit(self, results: pa.Table) -> None:
        """Make the results durable: rows first, then the entry that lists them."""
        keys = results.column("work_key").to_pylist()
        attempts = [self.status[key].attempts + 1 if key in self.status else 1 for key in keys]
        table = results.append_column(column("attempts", pa.int32()), pa.array(attempts, pa.int32()))
        table = conform(table, self.schema).sort_by("work_key")
        self._note(table, _write_shard(self.folder, table))

    def read(self, keys: Iterable[str]) -> pa.Table:
        """Return the latest result of each committed key among `keys`, sorted by key."""
        wanted = {key for key in keys if key in self.status}
        shards = sorted({self.status[key].shard for key in wanted})
        parts = []
        for shard in shards:
            table = pq.read_table(self.folder / f"{shard}.parquet", schema=self.schema)
            latest = [key in wanted and self.status[key].shard == shard for key in table.column("work_key").to_pylist()]
            parts.append(table.filter(pa.array(latest, pa.bool_())))
        table = pa.concat_tables(parts) if parts else self.schema.empty_table()
        return table.sort_by("work_key")

    def sums_of_earlier_tries(self, keys: Iterable[str], names: Sequence[str]) -> dict[str, float]:
        """Return the sums of number columns over the committed tries of `keys` that a later try replaced."""
        wanted = {key for key in keys if key in self._earlier}
        sums = dict.fromkeys(names, 0.0)
        for shard in sorted({shard for key in wanted for shard in self._earlier[key]}):
            table = pq.read_table(self.folder / f"{shard}.parquet", columns=["work_key", *names])
            replaced = [key in wanted and self.status[key].shard != shard for key in table.column("work_key").to_pylist()]
            rows = table.filter(pa.array(replaced, pa.bool_()))
            for name in names:
                sums[name] += float(pc.sum(rows.column(name)).as_py() or 0)
        return sums

    def _load(self, entry_path: Path) -> None:
        shard = entry_path.stem
        path = self.folder / f"{shard}.parquet"
        try:
            entry = read_json(entry_path, "format", "checksum")
            if entry["format"] != FORMAT:
                raise StoreError(f"{entry_path} has format {entry['format']}, this program writes format {FORMAT}")
            if not path.is_file():
                raise StoreError(f"{path} is missing")
            if file_checksum(path) != entry["checksum"]:
                raise StoreError(f"{path} does not match its checksum")
            table = pq.read_table(path, columns=["work_key", "state", "reason", "attempts"])
        except (StoreError, pa.ArrowException) as error:
            _log.warning("work shard dropped, its rows are computed again: %s", error)
            self.damaged.append(str(path))
            entry_path.unlink()
            path.unlink(missing_ok=True)
            return
        self._note(table, shard)

    def _note(self, table: pa.Table, shard: str) -> None:
        columns = (table.column(name).to_pylist() for name in ("work_key", "state", "reason", "attempts"))
        for key, state, reason, attempts in zip(*columns, strict=True):
            known = self.status.get(key)
            if known is not None and known.shard != shard:
                self._earlier.setdefault(key, set()).update({known.shard, shard})
            if known is None or attempts > known.attempts:
                self.status[key] = WorkStatus(state, attempts, shard, "" if state in FINAL_STATES else reason)


def retain_work(folder: Path, keys: Collection[str]) -> int:
    """Remove the rows of other keys from a work cache, each shard's by writing a smaller one first; return how many.

    Rows that no entry lists go too: a run that was killed between a shard and its entry left them.

    Args:
        folder: The cache of one stage under one fingerprint; removed if nothing of it is left.
        keys: Work keys to keep.
    """
    removed = 0
    wanted = pa.array(sorted(keys), pa.string())
    for entry_path in sorted(folder.glob("*.json")):
        path = entry_path.with_suffix(".parquet")
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            _log.warning("work shard dropped, its rows are computed again: %s", error)
            entry_path.unlink()
            path.unlink(missing_ok=True)
            continue
        kept = table.filter(pc.is_in(table.column("work_key"), value_set=wanted))
        if kept.num_rows == table.num_rows:
            continue
        removed += table.num_rows - kept.num_rows
        if kept.num_rows:
            _write_shard(folder, kept)
        entry_path.unlink()
        path.unlink()
    for path in folder.glob("*.parquet"):
        if not path.with_suffix(".json").exists():
            path.unlink()
    if not any(folder.glob("*.json")):
        shutil.rmtree(folder)
    return removed


def _write_shard(folder: Path, table: pa.Table) -> str:
    """Write rows, then the entry that commits them; return the shard's name."""
    tries = zip(table.column("work_key").to_pylist(), table.column("attempts").to_pylist(), strict=True)
    shard = content_hash("shard", *(f"{key}:{attempt}" for key, attempt in sorted(tries)))
    path = folder / f"{shard}.parquet"
    write_parquet(path, table)
    entry = {
        "format": FORMAT,
        "rows": table.num_rows,
        "keys": content_hash("keys", *sorted(table.column("work_key").to_pylist())),
        "checksum": file_checksum(path),
        "fingerprint": folder.name,
    }
    write_json(folder / f"{shard}.json", entry)
    return shard


def state_counts(states: Iterable[str]) -> dict[str, int]:
    """Return how many rows are in each state, only states that occur, in alphabetical order."""
    counts: dict[str, int] = {}
    for state in sorted(states):
        counts[state] = counts.get(state, 0) + 1
    return counts
