"""Evaluation of a finished run: golds that normalise to nothing, short answers, another process, another folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.errors import InputError
from gpu_rag.evaluation.run import evaluate_folder
from gpu_rag.evaluation.text_metrics import contains, exact_match, f1, unicode_exact_match, unicode_f1


def with_golds(job: Any, golds: list[str]) -> Path:
    rows = [json.loads(line) for line in (job.folder / "run.jsonl").read_text().splitlines()]
    return Path(job.write("golds.jsonl", [row | ({"answers": golds} if row["id"] == "climb" else {}) for row in rows]))


@pytest.mark.parametrize("gold", ["A", "The", "an", "the the", ".", "?!", "a.", "\u2026", "\u00bf"])
def test_a_gold_of_articles_or_punctuation_makes_no_other_answer_right(copied: Any, gold: str) -> None:
    before = copied.evaluate().metrics
    metrics = evaluate_folder(copied.folder / "run", with_golds(copied, [gold])).metrics
    for name in ("exact_match", "f1", "strict", "lenient"):
        assert metrics[name] == before[name] - 0.5
    for metric in (exact_match, f1, unicode_exact_match, unicode_f1, contains):
        assert metric(gold, gold) == 1.0
        assert metric("Ilse Marrow", gold) == metric("", gold) == 0.0


@pytest.mark.parametrize("gold", ["", "  ", "\u200b", "\ufe0f", "\u3164"])
def test_a_gold_with_nothing_to_see_is_refused_by_line(copied: Any, gold: str) -> None:
    with pytest.raises(InputError, match=r"golds\.jsonl:1: answers\[1\] is an empty gold answer"):
        evaluate_folder(copied.folder / "run", with_golds(copied, ["Ilse Marrow", gold]))


def test_the_short_answer_is_apart_from_its_explanation_and_is_what_is_scored(
    copied: Any, questions: list[dict[str, Any]]
) -> None:
    metrics = copied.evaluate().metrics
    answers = copied.answers()
    for question, short in (("climb", "Ilse Marrow"), ("fair", "March")):
        row = answers[question]
        assert short in row["answer"] and len(row["answer"]) < 20
        assert row["answer"] in row["explanation"]
        assert len(row["explanation"]) > len(row["answer"])
    assert (answers["stadium"]["answer"], answers["stadium"]["explanation"]) == (None, None)
    golds = {row["id"]: row["answers"] for row in questions if row["answerable"]}
    for metric, name in ((exact_match, "exact_match"), (f1, "f1"), (contains, "lenient")):
        best = [max(metric(answers[question]["answer"], gold) for gold in golds[question]) for question in golds]
        assert metrics[name] == sum(best) / len(best)
    assert max(exact_match(answers[question]["explanation"], gold) for question in golds for gold in golds[question]) == 0.0


def test_a_process_that_never_indexed_opens_searches_verifies_and_evaluates(copied: Any, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from gpu_rag.query.repository import Repository\n"
        "from gpu_rag.graph import load_graph; from gpu_rag.evaluation.run import evaluate_folder\n"
        "root, run, gold = map(Path, sys.argv[1:]); repository = Repository.open(root)\n"
        "names = repository.find_names('Who climbed Mount Verrin first?')\n"
        "print(len(repository.chunk_ids), len(names), load_graph(root).num_nodes, evaluate_folder(run, gold).metrics['f1'])\n"
    )
    paths = [copied.root, copied.folder / "run", copied.folder / "run.jsonl"]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True, cwd=tmp_path)
    chunks, names, nodes, f1_mean = done.stdout.split()
    counts = copied.generation().manifest["counts"]
    assert (int(chunks), int(names)) == (counts["chunks"], 1)
    assert int(nodes) == counts["chunks"] + counts["entities"]
    assert float(f1_mean) == copied.evaluate().metrics["f1"]


def test_a_run_made_with_relative_paths_is_evaluated_from_another_folder(
    copied: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_rag.config import load_config
    from gpu_rag.query.run import answer_questions

    monkeypatch.chdir(copied.folder)
    config = load_config(system="bm25", settings=["run.num_workers=1"])
    result = answer_questions(Path("run.jsonl"), Path("index"), Path("relative"), config, system="bm25", progress=copied)
    assert result.num_unfinished() == 0
    monkeypatch.chdir(tmp_path)
    assert evaluate_folder(copied.folder / "relative", copied.folder / "run.jsonl").metrics["rows_ok"] == 3
