"""Imports point down, and heavy libraries enter in one place each."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gpu_rag"
HEAVY = {
    "ray", "vllm", "faiss", "bm25s", "Stemmer", "leidenalg", "pylibcugraph", "transformers", "sentence_transformers",
    "tokenizers", "safetensors", "huggingface_hub",
}  # fmt: skip
LEVELS = {"engines": 0, "graph": 0, "index": 1, "query": 1, "evaluation": 1}
SHARED = {
    "errors",
    "schemas",
    "ids",
    "spans",
    "store",
    "stage",
    "pipeline",
    "stage_report",
    "stage_run",
    "config",
    "names",
    "words",
    "records",
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_its_level_may(path: Path) -> None:
    area = path.relative_to(PACKAGE).parts[0]
    for name in imports(path):
        top, *rest = name.split(".")
        if area not in ("engines", "doctor.py"):
            peers = {"sentence_transformers"} if path.name.startswith("bench_") else set()  # the peer it measures against
            assert top not in HEAVY - peers, f"{path.name} imports {name}: only gpu_rag.engines may"
        if top != "gpu_rag" or not rest:
            continue
        if area == "graph":
            assert rest[0] in ("graph", "errors"), f"graph imports {name}"
        elif area == "engines":
            assert rest[0] not in ("index", "query", "evaluation", "cli", "config", "pipeline"), f"{path.name}: {name}"
        elif area == "index":
            assert rest[0] not in ("query", "evaluation", "cli"), f"{path.name}: {name}"
        elif area == "query":
            assert rest[0] not in ("index", "evaluation", "cli"), f"{path.name}: {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "kernels").rglob("*.py")), ids=lambda path: path.name)
def test_kernels_know_nothing_of_the_package(path: Path) -> None:
    assert not any(name.split(".")[0] in {"gpu_rag", "pyarrow", *HEAVY} for name in imports(path))


def test_importing_the_package_and_its_command_line_loads_no_heavy_library() -> None:
    code = "import sys, gpu_rag, gpu_rag.cli; print(sorted({'ray', 'vllm', 'torch', 'faiss'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"


def test_the_config_loads_no_heavy_library() -> None:
    code = (
        "import sys; from gpu_rag.config import load_config; load_config(system='embedded');"
        "print(sorted({'ray', 'vllm', 'torch', 'faiss'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"


def test_a_process_with_torch_and_numpy_alone_imports_the_graph_operators() -> None:
    code = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pyarrow", "numba", "ray", "vllm", "faiss", "pydantic", "scipy", "yaml", "typer", "rich"}:
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
import torch
from gpu_rag.graph import build_csr, personalized_pagerank
graph = build_csr(4, [0], [1], undirected=True)
print(personalized_pagerank(graph, torch.eye(4)[:1], backend="torch").scores[0, :2].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert [round(x, 4) for x in ast.literal_eval(done.stdout.strip().splitlines()[-1])] == [0.6667, 0.3333]
