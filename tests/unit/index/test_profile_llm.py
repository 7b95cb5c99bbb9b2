"""Stage 02 with a language model: what is asked, what is taken from an answer, and that no document loses its profile."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from gpu_rag import schemas
from gpu_rag.engines.generation import Completion, GenerationRequest, TextGenerator
from gpu_rag.engines.llm import LlmConfig, ScriptedConfig
from gpu_rag.engines.llm_scripted import ScriptedEngine
from gpu_rag.errors import ConfigError
from gpu_rag.index import s02_profile
from gpu_rag.index.profile_llm import LlmProfileConfig, profile_schema
from gpu_rag.index.s02_profile import ProfileConfig
from gpu_rag.prompts import prompt_text

Reply = Callable[[GenerationRequest], str | Completion]
CHAPTERS = "Chapter 1\n\nShe said that she had seen it and ran.\n\nChapter 2\n\nThen he came back and told her."


def answer(**changed: Any) -> str:
    return json.dumps({"form": "report", "discourse": "argumentative", "topics": ["tug", "dam"], "boundary": "none", **changed})


class Scripted:
    """Stage 02 over a scripted engine, in this process."""

    def __init__(self, reply: Reply, *, context: int = 32768) -> None:
        config = LlmConfig(engine="scripted", scripted=ScriptedConfig(max_context_tokens=context))
        self.engine = ScriptedEngine(config, reply)
        self.llm = TextGenerator(self.engine, retries=0)

    def profiles(self, *documents: tuple[str, str, str], **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return profiles and results by document id."""
        rows = [
            {"doc_id": doc_id, "title": title, "text": text, "access": [], "duplicate_of": None, "state": "ok", "reason": ""}
            for doc_id, title, text in documents
        ]
        tables = {"documents": schemas.DOCUMENTS.from_rows(rows)}
        config = ProfileConfig(method="llm", llm=LlmProfileConfig(**settings))
        content = s02_profile.STAGE.content(tables, config)
        results = s02_profile.STAGE.run(content.rename_columns({"row_id": "work_key"}), config=config, llm=self.llm)
        assert results.schema == s02_profile.STAGE.result_schema
        results = results.rename_columns({"work_key": "row_id"})
        made: pa.Table = s02_profile.STAGE.assemble(tables, results, config)["profiles"]
        return (
            {row["doc_id"]: row for row in schemas.check_table(made, schemas.PROFILES).to_pylist()},
            {row["row_id"]: row for row in results.to_pylist()},
        )


def test_form_mode_topics_and_boundary_are_the_models_and_the_sections_those_of_the_rules() -> None:
    scripted = Scripted(lambda request: answer())
    profiles, results = scripted.profiles(("d", "A Title", CHAPTERS))
    row = profiles["d"]
    assert (row["form"], row["discourse"], row["topics"], row["method"]) == ("report", "argumentative", ["tug", "dam"], "llm")
    assert row["boundary"] == "none"
    assert [section["title"] for section in row["sections"]] == ["Chapter 1", "Chapter 2"]
    assert (results["d"]["state"], results["d"]["llm_calls"]) == ("ok", 1)


@pytest.mark.parametrize(
    ("text", "given", "state"),
    [(CHAPTERS, "chapter", "ok"), (CHAPTERS, "section", "invalid"), ("No heading at all.", "chapter", "invalid")],
)
def test_only_a_boundary_that_the_headings_allow_can_be_chosen(text: str, given: str, state: str) -> None:
    _, results = Scripted(lambda request: answer(boundary=given)).profiles(("d", "", text))
    assert results["d"]["state"] == state


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        ("Sure!", "invalid"), (answer(form="poem"), "invalid"), ("", "invalid"), (answer(more=1), "invalid"),
        (Completion("d", "", "content_filter", "not this one"), "declined"), (Completion("d", "", "error", "429"), "error"),
        (Completion("d", "", "pending", "in a batch file", line="{}"), "pending"),
    ],
)  # fmt: skip
def test_a_document_without_an_answer_keeps_the_profile_of_the_rules_and_is_tried_again(
    reply: str | Completion, state: str
) -> None:
    def failing(request: GenerationRequest) -> str | Completion:
        if "Sorrow" not in request.messages[-1].content:
            return answer()
        return reply if isinstance(reply, str) else replace(reply, id=request.id)

    profiles, results = Scripted(failing).profiles(("a", "Sorrow", CHAPTERS), ("b", "Joy", CHAPTERS))
    assert (results["a"]["state"], results["b"]["state"]) == (state, "ok")
    assert results["a"]["reason"].startswith("llm: ")
    assert (profiles["a"]["method"], profiles["a"]["boundary"], profiles["b"]["method"]) == ("rules", "chapter", "llm")


def test_topics_are_kept_once_and_none_at_all_leaves_those_of_the_rules() -> None:
    profiles, _ = Scripted(lambda request: answer(topics=["tug ", "tug", "  "])).profiles(("d", "The Tug", CHAPTERS))
    assert profiles["d"]["topics"] == ["tug"]
    profiles, _ = Scripted(lambda request: answer(topics=[])).profiles(("d", "The Tug", CHAPTERS))
    assert profiles["d"]["topics"][0] == "tug"


def test_a_long_document_is_shown_in_excerpts_and_nothing_of_it_opens_a_line_of_its_own() -> None:
    text = "START " + "x" * 3000 + "\nboundary is one of {{ forms }}\n" + "y" * 3000 + " END"
    scripted = Scripted(lambda request: answer())
    scripted.profiles(("d", "One\nTwo", text), excerpt_chars=400)
    (request,) = scripted.engine.sent
    shown = request.messages[-1].content
    assert len(shown) < 600
    assert [line.partition(":")[0] for line in shown.splitlines()] == [
        "Title",
        "Excerpt",
        "Excerpt",
        "Excerpt",
        "boundary is one of none.",
    ]
    assert "START" in shown
    assert "END" in shown
    assert "One Two" in shown


def test_a_context_that_holds_no_document_is_refused_before_the_first_row() -> None:
    scripted = Scripted(lambda request: answer(), context=300)
    with pytest.raises(ConfigError, match=r"profile\.llm\.output_tokens=256.*llm\.max_context_tokens"):
        scripted.profiles(("d", "", CHAPTERS))
    assert scripted.engine.sent == []


def test_settings_of_the_model_count_only_where_it_is_asked_and_the_prompt_by_its_text(tmp_path: Any) -> None:
    def fingerprint(method: str, **settings: Any) -> str:
        config = ProfileConfig.model_validate({"method": method, "llm": settings})
        return s02_profile.STAGE.fingerprint(config, {"llm": "scripted"})

    assert s02_profile.STAGE.engines_for(ProfileConfig()) == ()
    assert fingerprint("rules") == fingerprint("rules", output_tokens=9)
    assert fingerprint("llm") != fingerprint("llm", output_tokens=9)
    assert fingerprint("llm") != fingerprint("rules")
    same, other = tmp_path / "same.jinja", tmp_path / "other.jinja"
    same.write_text(prompt_text("profile"), encoding="utf-8")
    other.write_text("{# user #}\nWhat is {{ title }}?", encoding="utf-8")
    assert fingerprint("llm", prompt=str(same)) == fingerprint("llm") != fingerprint("llm", prompt=str(other))


def test_documents_with_the_same_kind_of_boundary_share_one_schema() -> None:
    assert profile_schema("chapter") == profile_schema("chapter") != profile_schema("none")
