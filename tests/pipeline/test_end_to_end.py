"""The whole job on a small corpus through the real encoder and real Ray workers: index, answer, evaluate, rerun, refuse."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gpu_rag import schemas
from gpu_rag.config import Config, load_config
from gpu_rag.errors import ConfigError, EngineError, InputError, StoreError
from gpu_rag.evaluation.run import evaluate_folder
from gpu_rag.index.build import IndexResult, build_index
from gpu_rag.query.run import AnswerResult, answer_questions
from gpu_rag.stage_report import StageReport
from gpu_rag.store import open_generation

pytestmark = pytest.mark.usefixtures("ray_cluster")

DOCUMENTS = [
    {"doc_id": "d-river", "title": "Sall", "text": "The Sall is a river of Morvane. It rises at Mount Verrin and flows into Lake Orme."},
    {"doc_id": "d-verrin", "title": "Mount Verrin", "text": "Mount Verrin is 1,204 metres high. Ilse Marrow climbed it first in 1871."},
    {"doc_id": "d-marrow", "title": "Ilse Marrow", "text": "Ilse Marrow was a surveyor. She was born in Pell, a village near Lake Orme."},
    {"doc_id": "d-pell", "title": "Pell", "text": "Pell is a village of 300 people. Its fair is held every March."},
    {"doc_id": "d-copy", "title": "Pell", "text": "Pell is a village of 300 people. Its fair is held every March."},
    {"doc_id": "d-mercury-1", "title": "Mercury", "text": "Mercury is the planet nearest to the Sun."},
    {"doc_id": "d-mercury-2", "title": "Mercury", "text": "Mercury was a newspaper printed in Pell until 1902."},
    {"doc_id": "d-empty", "title": "", "text": " \n\u200b"},
    {"doc_id": "d-script", "title": "\u0414\u043e\u043c \u0421\u0430\u043b\u043b", "text": "\u0414\u043e\u043c \u0421\u0430\u043b\u043b \u0441\u0442\u043e\u0438\u0442 \u0432 \u0414\u0435\u0440\u0435\u0432\u043d\u0435."},
    {"doc_id": "d-odd", "title": None, "text": "A bell \u0001 rang \ud800 twice in \u201cOld Pell\u201d \u2014 nobody knew why."},
]  # fmt: skip
QUESTIONS = [
    {"id": "q1", "question": "Who climbed Mount Verrin first?", "answers": ["Ilse Marrow"], "answerable": True,
     "supporting_doc_ids": ["d-verrin"]},
    {"id": "q2", "question": "When is the fair of Pell held?", "answers": ["March", "every March"], "answerable": True,
     "supporting_doc_ids": ["d-pell"]},
    {"id": "q2-again", "question": "When is the fair of Pell held?", "answers": ["March"], "answerable": True,
     "supporting_doc_ids": ["d-pell"]},
    {"id": "q3", "question": "Which stadium did Zanthor Quibble build in Paraguay?", "answers": [], "answerable": False,
     "supporting_doc_ids": []},
    {"id": "q-empty", "question": "  ", "answers": [], "answerable": None, "supporting_doc_ids": []},
]  # fmt: skip


class Counter:
    """Keeps the reports of the stages."""

    def __init__(self) -> None:
        self.reports: dict[str, StageReport] = {}

    def stage_started(self, label: str, total: int) -> None: ...

    def advanced(self, label: str, rows: int) -> None: ...

    def stage_finished(self, report: StageReport) -> None:
        self.reports[report.label] = report

    def computed(self) -> dict[str, int]:
        return {label: report.computed for label, report in self.reports.items()}


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def build(folder: Path, documents: list[dict[str, Any]], out: Path, *settings: str) -> tuple[IndexResult, Counter]:
    counter = Counter()
    corpus = write_jsonl(folder / "corpus.jsonl", documents)
    return build_index(corpus, out, load_config(settings=settings), progress=counter), counter


def answer(folder: Path, index: Path, out: Path, config: Config | None = None) -> tuple[AnswerResult, Counter]:
    counter = Counter()
    questions = write_jsonl(folder / "questions.jsonl", QUESTIONS)
    config = config or load_config(system="embedded")
    return answer_questions(questions, index, out, config, system="embedded", progress=counter), counter


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with `index` over all documents and `run` over all questions."""
    folder = tmp_path_factory.mktemp("base")
    build(folder, DOCUMENTS, folder / "index")
    answer(folder, folder / "index", folder / "run")
    return folder


def rows(path: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in pq.read_table(path).to_pylist()}


def test_every_question_ends_answered_refused_or_skipped(base: Path) -> None:
    answers = rows(base / "run" / "answers.parquet")
    assert answers["q1"]["outcome"] == "answered"
    assert answers["q1"]["answer"] == "Ilse Marrow"
    assert (answers["q3"]["outcome"], answers["q3"]["answer"], answers["q3"]["citations"]) == ("refused", None, [])
    assert answers["q3"]["reason"] in ("open_demand", "below_threshold", "no_evidence")
    assert (answers["q-empty"]["state"], answers["q-empty"]["outcome"]) == ("skipped", None)
    assert set(answers) == {row["id"] for row in QUESTIONS}


def test_every_citation_is_a_slice_of_the_source_under_the_users_document_id(base: Path) -> None:
    documents = open_generation(base / "index").read(schemas.DOCUMENTS).to_pylist()
    sources = {row["doc_id"]: f"{row['title']}\n{row['text']}" if row["title"] else row["text"] for row in documents}
    answered = [row for row in rows(base / "run" / "answers.parquet").values() if row["outcome"] == "answered"]
    assert answered
    for row in answered:
        assert row["citations"]
        for citation in row["citations"]:
            assert sources[citation["doc_id"]][citation["start"] : citation["end"]] == citation["quote"]


def test_the_same_question_under_two_ids_is_answered_once_and_given_twice(base: Path, tmp_path: Path) -> None:
    answers = rows(base / "run" / "answers.parquet")
    assert answers["q2"]["answer"] == answers["q2-again"]["answer"]
    report = json.loads((base / "run" / "report.json").read_text())
    assert [(s["rows"], s["distinct"]) for s in report["stages"]] == [(4, 3)] * len(report["stages"])


def test_selected_passages_come_first_in_the_ranking(base: Path) -> None:
    table = pq.read_table(base / "run" / "rankings.parquet").to_pylist()
    for question in ("q1", "q2", "q3"):
        ranking = [row for row in table if row["id"] == question]
        assert [row["rank"] for row in ranking] == list(range(1, len(ranking) + 1))
        flags = [row["selected"] for row in ranking]
        assert flags == sorted(flags, reverse=True)
        assert ranking[0]["selected"]


def test_evaluation_writes_metrics_and_a_report_with_every_question(base: Path) -> None:
    result = evaluate_folder(base / "run", base / "questions.jsonl")
    metrics = json.loads((base / "run" / "metrics.json").read_text())
    assert metrics["recall@5"] == 1.0
    assert metrics["correct_refusal"] == 1.0
    assert metrics["citations_verbatim"] == 1.0
    assert (metrics["rows_ok"], metrics["rows_skipped"], metrics["rows_error"]) == (4, 1, 0)
    html = result.report.read_text()
    assert "Who climbed Mount Verrin first?" in html
    assert "http://" not in html.replace("http://www.w3.org/", "")
    assert "https://" not in html


def test_a_rerun_computes_nothing_and_gives_the_same_bytes(base: Path) -> None:
    before = {path.name: path.read_bytes() for path in (base / "run").glob("*.parquet")}
    first = open_generation(base / "index").content_hash
    _, indexed = build(base, DOCUMENTS, base / "index")
    _, answered = answer(base, base / "index", base / "run")
    assert open_generation(base / "index").content_hash == first
    assert {label: n for label, n in indexed.computed().items() if n and label != "01_ingest"} == {}
    assert set(answered.computed().values()) == {0}
    assert {path.name: path.read_bytes() for path in (base / "run").glob("*.parquet")} == before


def test_the_order_of_the_corpus_file_and_the_shard_size_do_not_enter_the_content(base: Path, tmp_path: Path) -> None:
    build(tmp_path, DOCUMENTS[::-1], tmp_path / "index", "run.shard_rows=3")
    assert open_generation(tmp_path / "index").content_hash == open_generation(base / "index").content_hash


def test_a_removed_document_leaves_no_trace_and_costs_no_new_call(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base / "index", tmp_path / "index")
    kept = [row for row in DOCUMENTS if row["doc_id"] != "d-marrow"]
    result, counter = build(tmp_path, kept, tmp_path / "index")
    computed = counter.computed()
    assert (computed["03_chunk"], computed["04_extract"], computed["05_embed"]) == (0, 0, 0)
    (tmp_path / "fresh").mkdir()
    fresh, _ = build(tmp_path / "fresh", kept, tmp_path / "fresh" / "index")
    assert result.generation.content_hash == fresh.generation.content_hash
    names = result.generation.read(schemas.ENTITIES).column("normal_form").to_pylist()
    assert not any("surveyor" in name for name in names)


def test_two_documents_of_one_title_and_two_of_one_text_are_all_kept(base: Path) -> None:
    documents = {row["doc_id"]: row for row in open_generation(base / "index").read(schemas.DOCUMENTS).to_pylist()}
    assert set(documents) == {row["doc_id"] for row in DOCUMENTS}
    assert {i for i, row in documents.items() if row["duplicate_of"]} == {"d-pell"}
    assert (documents["d-empty"]["state"], documents["d-empty"]["reason"]) == ("skipped", "empty")
    chunks = open_generation(base / "index").read(schemas.CHUNKS)
    assert set(chunks.column("doc_id").to_pylist()) == set(documents) - {"d-empty"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": ["answer.policy=always"]}, "another config"),
        ({"questions": [*QUESTIONS, {"id": "q9", "question": "Where is Pell?"}]}, "another question file"),
    ],
)
def test_a_run_folder_of_something_else_is_refused_and_left_as_it_is(
    base: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    questions = write_jsonl(tmp_path / "questions.jsonl", change.get("questions", QUESTIONS))
    config = load_config(system="embedded", settings=change.get("settings", []))
    before = (base / "run" / "answers.parquet").read_bytes()
    with pytest.raises(ConfigError, match=message):
        answer_questions(questions, base / "index", base / "run", config, system="embedded", progress=Counter())
    assert (base / "run" / "answers.parquet").read_bytes() == before


def test_a_run_folder_of_another_index_is_refused(base: Path, tmp_path: Path) -> None:
    build(tmp_path, DOCUMENTS[:4], tmp_path / "index")
    shutil.copytree(base / "run", tmp_path / "run")
    with pytest.raises(ConfigError, match="another index"):
        answer(tmp_path, tmp_path / "index", tmp_path / "run")


def test_another_encoder_than_the_indexs_is_refused_naming_both(base: Path, tmp_path: Path) -> None:
    config = load_config(system="embedded", settings=["embed.encoder.max_tokens=64"])
    with pytest.raises(ConfigError, match=r"embedded with 'minilm' \(.*256t.*\), the config asks for 'minilm' \(.*64t"):
        answer(tmp_path, base / "index", tmp_path / "run", config)


@pytest.mark.parametrize("table", ["chunks", "edges", "vectors", "documents"])
def test_a_damaged_artifact_is_named_and_rebuilt_alone_by_the_next_index_run(base: Path, tmp_path: Path, table: str) -> None:
    shutil.copytree(base / "index", tmp_path / "index")
    path = next((tmp_path / "index" / "artifacts").rglob(f"{table}.parquet"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(StoreError, match=f"{table}.parquet does not match its checksum"):
        answer(tmp_path, tmp_path / "index", tmp_path / "run")
    result, counter = build(tmp_path, DOCUMENTS, tmp_path / "index")
    assert result.generation.content_hash == open_generation(base / "index").content_hash
    assert sum(n for label, n in counter.computed().items() if label != "01_ingest") <= 1


@pytest.mark.parametrize("documents", [[], [{"doc_id": str(i), "title": "", "text": " "} for i in range(3)]])
def test_a_corpus_without_text_is_indexed_and_every_question_refused(tmp_path: Path, documents: list[dict[str, Any]]) -> None:
    build(tmp_path, documents, tmp_path / "index")
    result, _ = answer(tmp_path, tmp_path / "index", tmp_path / "run")
    by_id = {row["id"]: row for row in result.answers.to_pylist()}
    assert {(row["outcome"], row["reason"]) for i, row in by_id.items() if i != "q-empty"} == {("refused", "no_evidence")}
    metrics = evaluate_folder(tmp_path / "run", tmp_path / "questions.jsonl").metrics
    assert metrics["correct_refusal"] == 1.0
    assert metrics["recall@5"] == 0.0


def test_the_published_graph_has_a_node_for_every_chunk_and_entity(base: Path) -> None:
    from gpu_rag.graph import load_graph

    graph = load_graph(base / "index")
    counts = open_generation(base / "index").manifest["counts"]
    assert graph.num_nodes == counts["chunks"] + counts["entities"]
    assert graph.num_edges > 0


def test_a_folder_without_an_index_is_named(tmp_path: Path) -> None:
    from gpu_rag.graph import load_graph

    with pytest.raises(StoreError, match="holds no published index"):
        load_graph(tmp_path)


def test_a_finished_run_is_evaluated_over_its_own_generation(base: Path, tmp_path: Path) -> None:
    build(tmp_path, DOCUMENTS, tmp_path / "index")
    answer(tmp_path, tmp_path / "index", tmp_path / "run")
    before = evaluate_folder(tmp_path / "run", tmp_path / "questions.jsonl").metrics
    build(tmp_path, DOCUMENTS[:4], tmp_path / "index")
    assert evaluate_folder(tmp_path / "run", tmp_path / "questions.jsonl").metrics == before


def test_answers_are_not_scored_against_other_questions(base: Path, tmp_path: Path) -> None:
    changed = [{**row, "question": row["question"].replace("Verrin", "Orme")} for row in QUESTIONS]
    with pytest.raises(InputError, match="does not ask what run"):
        evaluate_folder(base / "run", write_jsonl(tmp_path / "other.jsonl", changed))


def test_a_stage_that_loses_every_row_publishes_nothing(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(base / "index", tmp_path / "index")
    before = open_generation(tmp_path / "index").content_hash
    with pytest.raises(EngineError, match=r"04_extract: all \d+ rows failed"):
        build(tmp_path, DOCUMENTS, tmp_path / "index", "extract.methods=['math:sqrt']")
    assert open_generation(tmp_path / "index").content_hash == before
