"""Recall on musique_train100 against what is known of each system (slow: embeds 50,000 texts)."""

from pathlib import Path

import pytest

from gpu_rag.config import load_config
from gpu_rag.evaluation.run import evaluate_folder
from gpu_rag.index.build import build_index
from gpu_rag.query.run import answer_questions
from gpu_rag.stage_report import StageReport

pytestmark = pytest.mark.slow


class Quiet:
    def stage_started(self, label: str, total: int) -> None: ...

    def advanced(self, label: str, rows: int) -> None: ...

    def stage_finished(self, report: StageReport) -> None: ...


def recall_at_5(data: Path, index: Path, out: Path, system: str) -> float:
    questions = data / "questions.jsonl"
    answer_questions(questions, index, out, load_config(system=system), system=system, progress=Quiet())
    value = evaluate_folder(out, questions).metrics["recall@5"]
    assert value is not None
    return 100 * value


@pytest.fixture(scope="module")
def data(data_root: Path) -> Path:
    return data_root / "musique_train100"


@pytest.fixture(scope="module")
def folder(data: Path, ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with an index of recorded extraction and one of recorded and mentions."""
    folder = tmp_path_factory.mktemp("musique")
    for name, methods in (("recorded", "recorded"), ("mentions", "mentions"), ("both", "recorded,mentions")):
        config = load_config(settings=[f"extract.methods=[{methods}]"])
        build_index(data, folder / name, config, progress=Quiet())
    return folder


@pytest.mark.parametrize(("system", "known"), [("bm25", 49.83), ("dense", 62.17), ("rrf", 57.25), ("hipporag2", 67.25)])
def test_a_known_system_has_its_known_recall(data: Path, folder: Path, tmp_path: Path, system: str, known: float) -> None:
    assert abs(recall_at_5(data, folder / "recorded", tmp_path / "run", system) - known) <= 1.5


@pytest.mark.parametrize(("index", "floor"), [("mentions", 66.0), ("both", 70.0)])
def test_the_embedded_default_reaches_its_floor(data: Path, folder: Path, tmp_path: Path, index: str, floor: float) -> None:
    assert recall_at_5(data, folder / index, tmp_path / "run", "embedded") >= floor
