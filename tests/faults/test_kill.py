"""Runs that are killed at random moments, and what the next run finds."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GPU_RAG = str(Path(sys.executable).with_name("gpu-rag"))
SENT = re.compile(r"(\d+_\w+): (\d+) rows (sent|committed)")


def command(out: Path) -> list[str]:
    return [GPU_RAG, "index", str(EXAMPLES), "--out", str(out), "--set", "run.shard_rows=16"]


def environment() -> dict[str, str]:
    return {**os.environ, "GPU_RAG_LOG": "INFO"}


def content_hash(index: Path) -> str:
    verified = subprocess.run([GPU_RAG, "verify", str(index), "--hash"], capture_output=True, text=True, check=True)
    return verified.stdout.splitlines()[-1]


def lost_rows(log: str) -> int:
    """Rows that were sent to a worker and not committed, so computed again later."""
    counts = {"sent": 0, "committed": 0}
    for _, rows, what in SENT.findall(log):
        counts[what] += int(rows)
    return counts["sent"] - counts["committed"]


def kill_and_rerun(tmp_path: Path, num_kills: int) -> None:
    whole = tmp_path / "whole"
    started = time.perf_counter()
    subprocess.run(command(whole), env=environment(), check=True, capture_output=True)
    seconds = time.perf_counter() - started
    expected = content_hash(whole)
    moments = random.Random(7)
    index = tmp_path / "killed"
    log = ""
    killed = 0
    while killed < num_kills:
        with open(tmp_path / "log", "w+", encoding="utf-8") as file:
            process = subprocess.Popen(command(index), env=environment(), stdout=subprocess.DEVNULL, stderr=file)
            try:
                process.wait(moments.uniform(0.1, 0.7 * seconds))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed += 1
            else:  # it was quicker than the kill: begin a new index
                assert content_hash(index) == expected
                index = tmp_path / f"killed-{killed}"
            file.seek(0)
            log += file.read()
    rerun = subprocess.run(command(index), env=environment(), check=True, capture_output=True, text=True)
    log += rerun.stderr
    assert content_hash(index) == expected
    reports = {stage["label"]: stage for stage in json.loads((index / "report.json").read_text())["stages"]}
    twice = lost_rows(log)
    print(f"{num_kills} kills, {twice} rows computed twice, {sum(r['distinct'] for r in reports.values())} distinct in all")
    assert 0 <= twice <= num_kills * 2 * 16  # at most one shard per worker in flight at each kill


def test_an_index_run_killed_at_random_moments_ends_with_the_same_content(tmp_path: Path) -> None:
    kill_and_rerun(tmp_path, num_kills=3)


@pytest.mark.slow
def test_an_index_run_killed_twenty_times_ends_with_the_same_content(tmp_path: Path) -> None:
    kill_and_rerun(tmp_path, num_kills=20)
