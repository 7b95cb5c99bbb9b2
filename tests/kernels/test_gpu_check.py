"""The script that is run on a GPU runs to its end in the interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_check.py"


def test_gpu_check_runs_to_its_end_over_tiny_graphs(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--small", "--json", str(tmp_path / "figures.json")],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert figures["tiny"]["l1_error"] <= 5e-6
    assert figures["tiny"]["batch 3"]["bytes"] > 0


def test_gpu_check_says_that_there_is_no_device() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert "no CUDA device" in done.stderr
