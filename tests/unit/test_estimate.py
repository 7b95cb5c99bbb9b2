"""`gpu-rag estimate`: rows and tokens of the real prompts, before anything is spent."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_rag.cli import main
from gpu_rag.config import Config, load_config
from gpu_rag.engines.generation import GenerationRequest, Message, PromptSpan, Sampling
from gpu_rag.evaluation import estimate as estimates
from gpu_rag.evaluation.dry_llm import Sent, shared_tokens
from gpu_rag.evaluation.estimate import Estimate, StageEstimate, estimate_run

ALL_LLM = ("extract.methods=[llm]", *(f"{stage}.method=llm" for stage in ("demand", "select", "ground", "suffice", "answer")))
RATES = ("llm.prompt_tokens_per_second=1000", "llm.output_tokens_per_second=100")
WORDS = "The river Ouse runs past the old mill of Selby and on to the sea. "


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., Path]:
    def write(texts: list[str], title: str = "Selby") -> Path:
        path = tmp_path / "corpus.jsonl"
        rows = [{"doc_id": f"d{row}", "title": title, "text": text} for row, text in enumerate(texts)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture
def questions(tmp_path: Path) -> Callable[..., Path]:
    def write(texts: list[str]) -> Path:
        path = tmp_path / "questions.jsonl"
        path.write_text(
            "".join(json.dumps({"id": f"q{row}", "question": text}) + "\n" for row, text in enumerate(texts)), encoding="utf-8"
        )
        return path

    return write


def config(*settings: str) -> Config:
    return load_config(settings=settings)


def by_label(estimate: Estimate) -> dict[str, StageEstimate]:
    return {stage.label: stage for stage in estimate.stages}


def passages(count: int) -> list[str]:
    return [f"Mill number {row}. " + WORDS * (1 + row % 8) for row in range(count)]


def test_without_a_language_model_only_the_embedding_is_estimated(corpus: Any, questions: Any) -> None:
    found = estimate_run(corpus(passages(3)), config(), questions=questions(["Where is the mill?"]))
    assert (found.documents, found.chunks, found.questions) == (3, 3, 1)
    assert found.stages == ()
    assert found.embedding_tokens > 0
    assert found.notes[0] == "No stage of this config asks a language model."


def test_equal_chunks_are_asked_once_and_a_title_alone_is_not_asked(corpus: Any) -> None:
    found = by_label(estimate_run(corpus([WORDS, WORDS, "Another text about Selby.", ""]), config("extract.methods=[llm]")))
    assert (found["04_extract"].rows, found["04_extract"].calls) == (3, 2)


def test_a_sample_is_scaled_up_to_all_rows(corpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = corpus([f"Mill number {row:03}. {WORDS}" for row in range(60)])
    whole = by_label(estimate_run(path, config("extract.methods=[llm]")))["04_extract"]
    monkeypatch.setattr(estimates, "SAMPLE_CHUNKS", 7)
    sampled = by_label(estimate_run(path, config("extract.methods=[llm]")))["04_extract"]
    assert sampled == replace(whole, shared_tokens=sampled.shared_tokens)
    assert sampled.shared_tokens == pytest.approx(whole.shared_tokens, rel=0.01)


def test_every_prompted_stage_is_asked_as_often_as_it_would_be(corpus: Any, questions: Any) -> None:
    asked = questions(["Where is the mill?", "Where is the mill?", "What runs past Selby?", " "])
    found = by_label(estimate_run(corpus(passages(30)), config(*ALL_LLM), questions=asked))
    assert {label: (stage.rows, stage.calls) for label, stage in found.items() if label != "04_extract"} == {
        "01_demand": (2, 2),
        "05_select": (2, 2),
        "06_ground": (2, 2),
        "07_suffice": (2, 4),
        "08_answer": (2, 2),
    }
    assert all(stage.output_tokens <= stage.output_tokens_at_most for stage in found.values())
    assert all(0 < stage.prompt_tokens <= stage.prompt_tokens_at_most for stage in found.values())


def test_budgets_bound_the_output(corpus: Any, questions: Any) -> None:
    settings = (*ALL_LLM, "extract.llm.output_tokens=1000", "answer.llm.output_tokens=40")
    found = by_label(estimate_run(corpus(passages(5)), config(*settings), questions=questions(["Where is the mill?"])))
    assert (found["04_extract"].output_tokens, found["04_extract"].output_tokens_at_most) == (1250, 5000)
    assert (found["08_answer"].output_tokens, found["08_answer"].output_tokens_at_most) == (10, 40)


def test_longer_passages_and_more_of_them_cost_more(corpus: Any, questions: Any) -> None:
    asked = questions(["Where is the mill?"])
    path = corpus(passages(40))
    few = by_label(estimate_run(path, config(*ALL_LLM, "select.k=2"), questions=asked))
    many = by_label(estimate_run(path, config(*ALL_LLM, "select.k=8"), questions=asked))
    assert many["06_ground"].prompt_tokens > 2 * few["06_ground"].prompt_tokens
    assert few["06_ground"].prompt_tokens_at_most > few["06_ground"].prompt_tokens


def test_stages_that_read_the_same_passages_share_them_and_different_questions_do_not(corpus: Any, questions: Any) -> None:
    asked = questions([f"Where is mill number {row}?" for row in range(10)])
    found = by_label(estimate_run(corpus(passages(40)), config(*ALL_LLM, "select.k=8"), questions=asked))

    def share(label: str) -> float:
        return found[label].shared_tokens / found[label].prompt_tokens

    assert share("06_ground") < 0.3 < 0.5 < share("07_suffice") < share("08_answer")
    assert share("04_extract") > 0.4  # the instructions


def test_what_does_not_fit_the_context_is_counted(corpus: Any, questions: Any) -> None:
    settings = (*ALL_LLM, "llm.max_context_tokens=4096", "extract.llm.output_tokens=512")
    path = corpus([WORDS, WORDS * 200])
    found = by_label(estimate_run(path, config(*settings), questions=questions(["Where is the mill?"])))
    assert (found["04_extract"].rows, found["04_extract"].calls, found["04_extract"].too_long) == (2, 1, 1)


def test_hours_follow_from_the_rates_of_the_config_and_without_them_none_are_given(corpus: Any) -> None:
    path = corpus(passages(20))
    assert estimate_run(path, config("extract.methods=[llm]")).gpu_hours is None
    found = estimate_run(path, config("extract.methods=[llm]", *RATES))
    (stage,) = found.stages
    expected = (stage.prompt_tokens - stage.shared_tokens) / 1000 + stage.output_tokens / 100
    assert found.gpu_hours is not None
    assert found.gpu_hours[0] == pytest.approx(expected / 3600)
    assert found.gpu_hours[1] == pytest.approx((stage.prompt_tokens / 1000 + stage.output_tokens_at_most / 100) / 3600)


@pytest.mark.parametrize("texts", [[], [" "]])
def test_a_corpus_without_text_costs_nothing(texts: list[str], corpus: Any, questions: Any) -> None:
    path = corpus(texts, title="")
    found = estimate_run(path, config(*ALL_LLM), questions=questions(["Where is the mill?"]))
    assert sum(stage.prompt_tokens for stage in found.stages) == 0
    assert found.embedding_tokens == 0


def sent(row: str, text: str, span: PromptSpan | None = None) -> Sent:
    return Sent(GenerationRequest(row, (Message("user", text),), Sampling(9), span=span), 100)


def test_shared_tokens_are_those_of_the_longest_common_beginning() -> None:
    head = "x" * 495  # with the role's line, half of a text of 1,000 characters
    one, other = sent("0", head + "a" * 500), sent("1", head + "b" * 500)
    assert shared_tokens([one, other], {}) == 100
    assert shared_tokens([one], {}) == 0
    assert shared_tokens([one], {"0": [one.text]}) == 100
    assert shared_tokens([one], {"1": [one.text]}) == 0
    assert shared_tokens([sent("0", head, PromptSpan(0, 0, 1)), sent("1", head, PromptSpan(0, 0, 1))], {}) == 0


def test_the_command_prints_the_table_and_writes_the_figures(
    corpus: Any, questions: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "out" / "estimate.json"
    settings = [part for setting in (*ALL_LLM, *RATES) for part in ("--set", setting)]
    arguments = [
        "estimate",
        str(corpus(passages(4))),
        "--questions",
        str(questions(["Where is the mill?"])),
        "--json",
        str(figures),
    ]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, *settings])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "04_extract" in printed
    assert "GPU-hours" in printed
    assert "one token per two characters" in printed
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert found["stages"][0]["label"] == "04_extract"
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.jsonl", "questions.jsonl", "out"}  # nothing else is kept


@pytest.mark.parametrize(
    "arguments", [["nowhere.jsonl"], [".", "--set", "extract.method=[llm]"], [".", "--questions", "nowhere.jsonl"]]
)
def test_wrong_input_ends_with_two(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"doc_id": "d", "title": "", "text": "A."}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["estimate", *arguments])
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_context_that_holds_no_prompt_is_wrong_input(corpus: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "extract.methods=[llm]", "--set", "llm.max_context_tokens=1000"]
    with pytest.raises(SystemExit) as ended:
        main(["estimate", str(corpus([WORDS])), *settings])
    assert ended.value.code == 2
    assert "llm.max_context_tokens" in capsys.readouterr().err
