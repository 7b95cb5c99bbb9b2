"""Runs over an engine that raises, hangs, cuts its output, talks nonsense and dies, with the driver killed now and then."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

GPU_RAG = str(Path(sys.executable).with_name("gpu-rag"))
FAULTS = "{raise: 0.01, hang: 0.01, truncate: 0.01, garbage: 0.01, die: 0.01}"


def command(corpus: Path, index: Path, faults: str, *more: str) -> list[str]:
    settings = [
        "extract.methods=[llm]", "llm.engine=scripted", f"llm.scripted.faults={faults}", "run.silent_seconds=1",
        "run.max_attempts=2", "run.shard_rows=64",
    ]  # fmt: skip
    options = [option for setting in settings for option in ("--set", setting)]
    return [GPU_RAG, "index", str(corpus), "--out", str(index), *options, *more]


def write_corpus(path: Path, count: int) -> Path:
    rows = ({"doc_id": f"d{i}", "title": f"Note {i}", "text": f"Person {i} met Captain {i * 7}."} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def committed(index: Path) -> list[dict[str, Any]]:
    rows = []
    for shard in sorted((index / "work" / "04_extract").rglob("*.parquet")):
        if not shard.name.startswith("."):
            rows += pq.read_table(shard, columns=["work_key", "state", "reason", "attempts"]).to_pylist()
    return rows


def num_committed(index: Path) -> int:
    """Rows of extraction that are committed, each try counted; cheaper than reading them."""
    entries = (index / "work" / "04_extract").glob("*/[!.]*.json")
    return sum(json.loads(entry.read_text(encoding="utf-8"))["rows"] for entry in entries)


def kill_after(arguments: list[str], index: Path, num_rows: int) -> None:
    """Start a run and kill it with its workers' driver as soon as so many rows of extraction are committed."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while num_committed(index) < num_rows:
        assert process.poll() is None, "the run ended before it was to be killed"
        time.sleep(2)
    process.send_signal(signal.SIGKILL)
    process.wait()


def run(arguments: list[str]) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env={**os.environ, "GPU_RAG_LOG": "ERROR"})
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    reports = {line["label"]: line for line in lines}
    assert "04_extract" in reports, done.stderr
    return done.returncode, reports["04_extract"]


def check_faults(tmp_path: Path, count: int, faults: str, kills: list[int]) -> None:
    corpus, index = write_corpus(tmp_path / "corpus.jsonl", count), tmp_path / "index"
    arguments = command(corpus, index, faults)
    for num_rows in kills:
        kill_after(arguments, index, num_rows)
    code, report = run(arguments)
    assert code == 3
    if report["computed"]:  # the second attempts
        code, report = run(arguments)
    code, last = run(arguments)
    assert (code, last["computed"]) == (3, 0)
    rows = committed(index)
    final = {row["work_key"] for row in rows if row["state"] == "ok"}
    failed = {row["work_key"] for row in rows} - final
    assert last["rows"] == sum(last["states"].values()) == count == len(final) + len(failed)
    finished = Counter(row["work_key"] for row in rows if row["state"] == "ok")
    assert set(finished.values()) == {1}  # none computed again after it was done
    assert max(row["attempts"] for row in rows) == 2
    listed = [json.loads(line) for line in (index / "unfinished.jsonl").read_text(encoding="utf-8").splitlines()]
    listed = [row for row in listed if row["stage"] == "04_extract"]  # on a busy machine others may seem silent for a second
    assert len({row["row_id"] for row in listed}) == len(listed) == len(failed) > 0.03 * count
    print(
        f"{count} rows: {dict(last['states'])}; {len(rows)} tries committed; causes {Counter(r['reason'][:40] for r in listed)}"
    )
    code, healed = run(command(corpus, index, "{}", "--retry-listed"))
    assert (code, healed["computed"], healed["states"]) == (0, len(failed), {"ok": count})
    assert not (index / "unfinished.jsonl").exists()


def test_failed_rows_are_listed_with_exit_code_3_and_a_retry_over_a_healthy_engine_touches_them_alone(tmp_path: Path) -> None:
    check_faults(tmp_path, 150, "{raise: 0.03, truncate: 0.03, garbage: 0.03, die: 0.01}", kills=[])


@pytest.mark.slow
def test_ten_thousand_rows_over_a_bad_engine_and_three_kills_end_in_order(tmp_path: Path) -> None:
    check_faults(tmp_path, 10_000, FAULTS, kills=[1000, 4000, 7000])
