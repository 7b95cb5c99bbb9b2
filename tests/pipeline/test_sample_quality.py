"""Quality floors on the sample: set a little below what was measured, so that a fall is seen and noise is not."""

import json
from pathlib import Path

import pytest

from gpu_rag.config import load_config
from gpu_rag.evaluation.run import evaluate_folder
from gpu_rag.index.build import build_index
from gpu_rag.query.run import answer_questions
from gpu_rag.stage_report import StageReport

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FLOORS = {
    "recall@2": 0.78,
    "recall@5": 0.90,
    "recall@20": 0.97,
    "f1": 0.22,
    "lenient": 0.22,
    "correct_refusal": 0.17,
    "bbs": 0.2,
    "citations_verbatim": 1.0,
    "answers_cited": 1.0,
}


class Quiet:
    def stage_started(self, label: str, total: int) -> None: ...

    def advanced(self, label: str, rows: int) -> None: ...

    def stage_finished(self, report: StageReport) -> None: ...


@pytest.fixture(scope="module")
def run(ray_cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    build_index(EXAMPLES, folder / "index", load_config(), progress=Quiet())
    config = load_config(system="embedded")
    questions = EXAMPLES / "questions.jsonl"
    answer_questions(questions, folder / "index", folder / "run", config, system="embedded", progress=Quiet())
    evaluate_folder(folder / "run", questions)
    return folder / "run"


@pytest.mark.parametrize("metric", sorted(FLOORS))
def test_the_sample_reaches_the_floor(run: Path, metric: str) -> None:
    assert json.loads((run / "metrics.json").read_text())[metric] >= FLOORS[metric]


def test_every_row_of_the_sample_is_ok(run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["rows_ok"] == metrics["num_questions"] == 67


def test_the_report_holds_every_question_and_asks_the_network_for_nothing(run: Path) -> None:
    html = (run / "report.html").read_text(encoding="utf-8")
    for line in (EXAMPLES / "questions.jsonl").read_text(encoding="utf-8").splitlines():
        assert json.loads(line)["id"] in html
    assert "<script src" not in html
    assert "<link" not in html
