"""Fixtures of the fault tests: small corpora through the whole system, on one worker."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gpu_rag.config import load_config
from gpu_rag.evaluation.run import Evaluation, evaluate_folder
from gpu_rag.index.build import IndexResult, build_index
from gpu_rag.query.run import AnswerResult, answer_questions
from gpu_rag.stage_report import StageReport
from gpu_rag.store import Generation, open_generation

Row = dict[str, Any]

DOCUMENTS: list[Row] = [
    {"doc_id": "river", "title": "Sall", "text": "The Sall is a river of Morvane. It rises at Mount Verrin and flows into Lake Orme."},
    {"doc_id": "mount", "title": "Mount Verrin", "text": "Mount Verrin is 1,204 metres high. Ilse Marrow climbed it first in 1871."},
    {"doc_id": "person", "title": "Ilse Marrow", "text": "Ilse Marrow was a surveyor. She was born in Pell, a village near Lake Orme."},
    {"doc_id": "village", "title": "Pell", "text": "Pell is a village of 300 people. Its fair is held every March."},
    {"doc_id": "planet", "title": "Mercury", "text": "Mercury is the planet nearest to the Sun."},
    {"doc_id": "paper", "title": "Mercury", "text": "Mercury was a newspaper printed in Pell until 1902."},
    {"doc_id": "bridge", "title": "Orme Bridge", "text": "Orme Bridge crosses the Sall. It was built of granite by Tomas Reed."},
    {"doc_id": "blank", "title": "", "text": " \n\u200b"},
]  # fmt: skip
QUESTIONS: list[Row] = [
    {"id": "climb", "question": "Who climbed Mount Verrin first?", "answers": ["Ilse Marrow"], "answerable": True,
     "supporting_doc_ids": ["mount"]},
    {"id": "fair", "question": "When is the fair of Pell held?", "answers": ["March", "every March"], "answerable": True,
     "supporting_doc_ids": ["village"]},
    {"id": "stadium", "question": "Which stadium did Zanthor Quibble build in Paraguay?", "answers": [], "answerable": False,
     "supporting_doc_ids": []},
]  # fmt: skip


class Job:
    """A folder with one corpus, one index and runs; `computed` holds what the stages of the last command computed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.root = folder / "index"
        self.computed: dict[str, int] = {}
        self.distinct: dict[str, int] = {}
        self.stop_before = ""  # label of a stage before which the command ends, as if it had been killed there

    def stage_started(self, label: str, total: int) -> None:
        if label == self.stop_before:
            raise KeyboardInterrupt(label)

    def advanced(self, label: str, rows: int) -> None: ...

    def stage_finished(self, report: StageReport) -> None:
        self.computed[report.label] = report.computed
        self.distinct[report.label] = report.distinct

    def write(self, name: str, rows: list[Row]) -> Path:
        path = self.folder / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    def index(self, corpus: Path | list[Row], *settings: str) -> IndexResult:
        path = self.write("corpus.jsonl", corpus) if isinstance(corpus, list) else corpus
        config = load_config(settings=("run.num_workers=1", *settings))
        self.computed.clear()
        return build_index(path, self.root, config, progress=self)

    def generation(self) -> Generation:
        return open_generation(self.root)

    def hash(self) -> str:
        return self.generation().content_hash

    def recomputed(self) -> dict[str, int]:
        """What was computed; ingest, which reads the corpus each time, aside."""
        return {label: rows for label, rows in self.computed.items() if rows and label != "01_ingest"}

    def answer(
        self, questions: list[Row], *settings: str, system: str = "embedded", run: str = "run", limit: int | None = None
    ) -> AnswerResult:
        path = self.write(f"{run}.jsonl", questions)
        base = {"embed": self.generation().manifest["config"]["embed"]}
        config = load_config(system=system, settings=("run.num_workers=1", *settings), base=base)
        self.computed.clear()
        return answer_questions(path, self.root, self.folder / run, config, system=system, progress=self, limit=limit)

    def evaluate(self, run: str = "run") -> Evaluation:
        return evaluate_folder(self.folder / run, self.folder / f"{run}.jsonl")

    def answers(self, run: str = "run") -> dict[str, Row]:
        return {row["id"]: row for row in pq.read_table(self.folder / run / "answers.parquet").to_pylist()}

    def ranked(self, run: str = "run") -> dict[str, list[str]]:
        """Document ids per question, the best score first."""
        found: dict[str, list[tuple[float, str]]] = {}
        for row in pq.read_table(self.folder / run / "rankings.parquet").to_pylist():
            found.setdefault(row["id"], []).append((-row["score"], row["doc_id"]))
        return {question: [doc_id for _, doc_id in sorted(rows)] for question, rows in found.items()}

    def sources(self) -> dict[str, str]:
        from gpu_rag import schemas
        from gpu_rag.spans import source_text

        documents = self.generation().read(schemas.DOCUMENTS).to_pylist()
        return {row["doc_id"]: source_text(row["title"], row["text"]) for row in documents}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """(seed, what) -> the folder of a BERT of one layer and 32 dimensions, its weights random; `nan`: not finite."""

    def make(seed: int, weights: str = "random") -> Path:
        import torch
        from safetensors.torch import load_file, save_file

        from gpu_rag.engines.encoder_files import BUNDLED_MODEL, model_folder

        bundled, folder = model_folder(BUNDLED_MODEL), tmp_path_factory.mktemp("model") / f"tiny-{seed}"
        shutil.copytree(bundled, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.md", "data_config.json"))
        generator = torch.Generator().manual_seed(seed)
        sizes = {384: 32, 1536: 64}
        state = {}
        for name, values in load_file(bundled / "model.safetensors").items():
            if values.is_floating_point() and (".layer." not in name or ".layer.0." in name):
                shape = [sizes.get(size, size) for size in values.shape]
                state[name] = torch.randn(shape, generator=generator) * (0.3 if len(shape) > 1 else 0.0)
                if name.endswith("LayerNorm.weight"):
                    state[name] = torch.ones(shape)
                if weights == "nan" and name.endswith("LayerNorm.bias"):
                    state[name] = torch.full(shape, float("nan"))
        save_file(state, folder / "model.safetensors")
        _edit(folder / "config.json", hidden_size=32, intermediate_size=64, num_attention_heads=2, num_hidden_layers=1)
        _edit(folder / "1_Pooling" / "config.json", word_embedding_dimension=32)
        return folder

    return make


def _edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


@pytest.fixture
def job(tmp_path: Path, ray_cluster: None) -> Job:
    """An empty job."""
    return Job(tmp_path / "job")


@pytest.fixture(scope="session")
def new_job(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Callable[[], Job]:
    """Makes empty jobs that may outlive a test."""
    return lambda: Job(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="session")
def finished(new_job: Callable[[], Job]) -> Job:
    """An index over `DOCUMENTS`, and a run over `QUESTIONS`; tests read it and change copies."""
    job = new_job()
    job.index(DOCUMENTS)
    job.answer(QUESTIONS)
    return job


@pytest.fixture
def copied(finished: Job, tmp_path: Path) -> Job:
    """A copy of the finished job."""
    shutil.copytree(finished.folder, tmp_path / "copy")
    job = Job(tmp_path / "copy")
    _edit(job.folder / "run" / "report.json", index=str(job.root))
    return job


@pytest.fixture(scope="session")
def documents() -> list[Row]:
    """The documents of the finished job."""
    return DOCUMENTS


@pytest.fixture(scope="session")
def questions() -> list[Row]:
    """The questions of the finished job."""
    return QUESTIONS
