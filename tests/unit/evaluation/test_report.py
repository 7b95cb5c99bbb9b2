"""report.html: complete, escaped, self-contained, bounded in size, equal for equal inputs."""

import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.evaluation import report
from gpu_rag.evaluation.definitions import DEFINITIONS
from gpu_rag.evaluation.metrics import evaluate_run, per_question
from gpu_rag.evaluation.passages import passages
from gpu_rag.evaluation.report import write_report

Build = Callable[..., Any]
_VOID = {"meta", "input", "br"}
HOSTILE = (
    "</script><script>alert(1)</script> <img src=x onerror=alert(2)> \"double\" 'single' & {{ 7 * 7 }} "
    "\x00\x07\x1b[31m \x85 \u202ereversed \ud800 </details></style>-->"
)


class Page(HTMLParser):
    """Tags with attributes, text, and whether every tag is closed where it was opened."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.mistakes: list[str] = []
        self.pieces: list[str] = []
        self.feed(html)
        self.text = "".join(self.pieces)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.mistakes.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)


def _metrics(run: Any) -> dict[str, float | None]:
    return evaluate_run(run.questions, run.answers, run.rankings, run.lineages, run.sources.get)


def _rows(run: Any) -> list[dict[str, Any]]:
    return per_question(run.questions, run.answers, run.rankings, run.lineages)


def _write(path: Path, run: Any, run_info: dict[str, Any]) -> str:
    metrics = _metrics(run)
    write_report(
        path,
        metrics=metrics | {"tokens_query": 1234.5},
        per_question=_rows(run),
        questions=run.questions,
        answers=run.answers,
        rankings=run.rankings,
        lineages=run.lineages,
        chunks=passages(run.chunks, run.lineages),
        run_info=run_info,
    )
    return path.read_text(encoding="utf-8")


CORPUS = [
    {"doc_id": "doc-1", "title": "Warsaw Uprising", "text": "The Warsaw Uprising began in 1944. It lasted 63 days."},
    {"doc_id": "doc-2", "title": "Home Army", "text": "The Home Army led the Warsaw Uprising. Many soldiers fell."},
    {"doc_id": "doc-3", "title": "", "text": "Lakes in the parks are emptied before winter."},
]  # fmt: skip
QUESTIONS = [
    {
        "id": f"q{number}",
        "question": "How many days did the Warsaw Uprising last?",
        "answers": ["63 days"] if number % 2 else [],
        "answerable": bool(number % 2),
        "supporting_doc_ids": ["doc-1", "doc-9"] if number % 2 else [],
        "type": f"type{number % 2}",
    }
    for number in range(12)
]


def test_report_shows_metrics_definitions_identity_stages_and_lineages(
    tmp_path: Path, fake_run: Build, run_info: dict[str, Any]
) -> None:
    run = fake_run(CORPUS, QUESTIONS)
    html = _write(tmp_path / "report.html", run, run_info)
    page = Page(html)
    metrics = _metrics(run)
    for name, value in metrics.items():
        if value is not None and "recall@" not in name and (value or not name.startswith("rows_")):
            assert DEFINITIONS[name].text in page.text or DEFINITIONS[name].group == "retrieval", name
    stated = [
        run_info["config_hash"],
        run_info["index_content_hash"],
        "05_embed",
        "cut_tokens 1,204",
        "1,290 MiB",
        "error 2",
    ]
    for text in [
        *stated,
        "max_recall@k",
        "tokens_query",
        "type0",
        "error 2",
        "select.method",
        "2 rows not finished",
        "doc-9",
        "missed",
        "D1:1",
        "63 days",
    ]:
        assert text in page.text, text
    tags = Counter(tag for tag, _ in page.tags)
    assert html.count('<details class="q"') == len(QUESTIONS) and tags["mark"] > 0 and tags["svg"] > 3
    assert page.mistakes == [] and page.open == []


def test_page_asks_for_nothing_outside_itself_and_runs_its_own_script_only(
    tmp_path: Path, fake_run: Build, run_info: dict[str, Any]
) -> None:
    page = Page(_write(tmp_path / "report.html", fake_run(CORPUS, QUESTIONS), run_info))
    assert not {"link", "img", "iframe", "base", "object"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert "src" not in attributes and not any(name.startswith("on") for name in attributes), tag
        assert (attributes.get("href") or "#").startswith("#")
    assert [tag for tag, _ in page.tags].count("script") == 1
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy and policy.startswith("default-src 'none'") and "script-src 'sha256-" in policy
    assert "url(" not in page.text and "@import" not in page.text


def test_hostile_text_from_corpus_questions_and_run_is_escaped(
    tmp_path: Path, fake_run: Build, run_info: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = HOSTILE.replace("\ud800", "")  # tables hold valid Unicode only; run_info may hold anything
    corpus = [
        {
            "doc_id": f"d{clean}",
            "title": f"Warsaw {clean}",
            "text": f"The Warsaw Uprising lasted 63 days {clean} in all.",
        }
    ]
    questions = [
        QUESTIONS[number] | {"id": f"{number}{clean}", "question": f"Warsaw Uprising days lasted {clean}",
                             "answers": [f"63 {clean}"] if number % 2 else [], "type": clean}
        for number in range(12)
    ]  # fmt: skip
    info = run_info | {"system": HOSTILE, "encoder": {HOSTILE: HOSTILE}}
    html = _write(tmp_path / "report.html", fake_run(corpus, questions), info)
    page = Page(html)
    tags = Counter(tag for tag, _ in page.tags)
    assert tags["script"] == 1 and tags["img"] == 0 and html.count('<details class="q"') == len(questions)
    assert page.mistakes == [] and page.open == []
    assert "alert(1)" in page.text and "{{ 7 * 7 }}" in page.text
    assert re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", html) == []
    assert "\u2400\u2407\u241b[31m" in page.text


def test_equal_inputs_give_equal_bytes(tmp_path: Path, fake_run: Build, run_info: dict[str, Any]) -> None:
    run = fake_run(CORPUS, QUESTIONS)
    assert _write(tmp_path / "a.html", run, run_info) == _write(tmp_path / "b.html", run, run_info)


def test_refusals_and_failures_are_told_apart(tmp_path: Path, fake_run: Build, run_info: dict[str, Any]) -> None:
    run = fake_run(CORPUS, [QUESTIONS[1] | {"id": str(number)} for number in range(120)])
    classes = Counter(row["class"] for row in _rows(run))
    assert classes["error"] and classes["false_refusal"]
    text = Page(_write(tmp_path / "report.html", run, run_info)).text
    assert text.count("Not processed") == classes["error"]
    assert text.count("Refused") == classes["false_refusal"]


def test_questions_without_lineage_ranking_or_gold_are_shown(tmp_path: Path, fake_run: Build) -> None:
    run = fake_run(CORPUS, [{"id": "q", "question": "?", "answers": [], "answerable": None, "supporting_doc_ids": []}])
    bare = type(run)(**{**run.__dict__, "lineages": run.lineages.slice(0, 0), "rankings": run.rankings.slice(0, 0)})
    text = Page(_write(tmp_path / "report.html", bare, {})).text
    assert "No lineage was recorded" in text and "recall is not defined" in text and "No gold answer." in text


def test_a_run_without_questions_gives_a_page(tmp_path: Path, fake_run: Build, run_info: dict[str, Any]) -> None:
    assert "0 questions" in Page(_write(tmp_path / "report.html", fake_run(CORPUS, []), run_info)).text


def test_long_texts_and_many_questions_stay_within_bounds(
    tmp_path: Path, fake_run: Build, run_info: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_QUESTIONS", 60)
    monkeypatch.setattr(report, "_FEW_QUESTIONS", 10)
    sentence = "The Warsaw Uprising lasted 63 days in all. "
    corpus = [{"doc_id": f"doc-{number}", "title": f"Warsaw {number}", "text": sentence * 200} for number in range(12)]
    question = QUESTIONS[1] | {"question": "Warsaw Uprising lasted days? " * 200, "answers": ["63 " * 600] * 30}
    run = fake_run(corpus, [question | {"id": f"{number:05d}"} for number in range(80)])
    html = _write(tmp_path / "report.html", run, run_info)
    assert html.count('<details class="q"') == 60
    assert "60 of 80 questions" in html
    assert len(html.encode()) < 60 * 25_000


@pytest.mark.parametrize(("name", "limit"), [("musique_train100", 20), ("squad2_500", 50), ("popqa1000", 1000)])
def test_real_data_gives_a_page_below_15_mb(
    tmp_path: Path, data_run: Build, run_info: dict[str, Any], name: str, limit: int
) -> None:
    html = _write(tmp_path / "report.html", data_run(name, limit), run_info)
    assert html.count('<details class="q"') == limit
    assert len(html.encode()) < 15e6
    page = Page(html)
    assert page.mistakes == [] and page.open == []
