"""Stage 02, profile: form, topics, discourse mode, sections and boundary of each document.

Input:  `schemas.DOCUMENTS`.
Output: `schemas.PROFILES`, one per document that is `ok`.
Device: CPU; `llm` asks the run's language model.
Source: PAGE-RAG, p = (tau, delta, mu, sigma, kappa).

`rules` read the surface of the text. `llm` asks a model for form, topics, mode and boundary; the sections stay those of the
rules, which see the whole text. A document that the model gives no profile for keeps that of the rules, as its `method` says,
and its row is tried again: it must not lose its chunks over it. A profile controls how a document is cut and read, and is never
evidence.
"""

from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from gpu_rag import schemas
from gpu_rag.engines import heartbeat
from gpu_rag.engines.generation import TextGenerator
from gpu_rag.engines.usage import usage_columns
from gpu_rag.index.profile_llm import Answer, LlmProfileConfig, profile_all, profile_texts
from gpu_rag.index.profile_rules import profile_document
from gpu_rag.schemas import STRING, column, list_of
from gpu_rag.stage import WORK_COLUMNS, Cardinality, RowStage, Tables

_UNKNOWN = {"form": "mixed", "discourse": "narrative", "boundary": "none", "method": "none"}


class ProfileConfig(BaseModel):
    """Who profiles the documents.

    Attributes:
        method: `rules`, or `llm`.
        llm: What `llm` asks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: Literal["rules", "llm"] = "rules"
    llm: LlmProfileConfig = LlmProfileConfig()


def profile(work: pa.Table, *, config: ProfileConfig, llm: TextGenerator | None = None) -> pa.Table:
    """Return the profile of each document.

    Raises:
        ConfigError: If the model's context does not even hold the prompt without a document.
    """
    documents = {row["work_key"]: (row["title"], row["text"]) for row in work.to_pylist()}
    profiles = {}
    for key, document in documents.items():
        profiles[key] = profile_document(*document)
        heartbeat.beat()
    answers = {key: Answer(found, "rules") for key, found in profiles.items()}
    if config.method == "llm":
        assert llm is not None
        answers = profile_all(documents, profiles, config=config.llm, llm=llm)
    rows = [
        {
            "work_key": key,
            "state": answer.state,
            "reason": answer.reason,
            "form": answer.profile.form,
            "topics": list(answer.profile.topics),
            "discourse": answer.profile.discourse,
            "sections": [section._asdict() for section in answer.profile.sections],
            "boundary": answer.profile.boundary,
            "method": answer.method,
        }
        for key, answer in answers.items()
    ]
    results = pa.Table.from_pylist(rows, schema=pa.schema([*WORK_COLUMNS, *STAGE.payload]))
    calls = usage_columns([answer.calls for answer in answers.values()])
    return pa.table([*results.columns, *calls.values()], schema=STAGE.result_schema)


def _content(tables: Tables, config: ProfileConfig) -> pa.Table:
    documents = tables["documents"].filter(pc.equal(tables["documents"].column("state"), "ok"))
    return documents.select(["doc_id", "title", "text"]).rename_columns(["row_id", "title", "text"])


def _assemble(tables: Tables, results: pa.Table, config: ProfileConfig) -> dict[str, pa.Table]:
    names = schemas.PROFILES.schema.names
    columns = {name: results.column("row_id" if name == "doc_id" else name) for name in names}
    # A document that its worker was lost over has no profile yet: it is read as a plain narrative until it has.
    missing = pc.equal(columns["form"], "")
    columns |= {name: pc.if_else(missing, value, columns[name]) for name, value in _UNKNOWN.items()}
    return {"profiles": schemas.PROFILES.build(columns)}


def _engines(config: ProfileConfig) -> tuple[str, ...]:
    return ("llm",) if config.method == "llm" else ()


def _texts(config: ProfileConfig) -> dict[str, str]:
    return profile_texts(config.llm) if config.method == "llm" else {}


def _not_keyed(config: ProfileConfig) -> dict[str, Any]:
    """Leave out the model's settings where it is not asked, and else the prompt's name: its text is keyed."""
    return {"llm": {"prompt"} if config.method == "llm" else True}


STAGE = RowStage(
    number=2,
    name="profile",
    version=1,
    reads=("documents",),
    writes=(schemas.PROFILES,),
    cardinality=Cardinality.ONE_TO_ONE,
    engines=_engines,
    not_keyed=_not_keyed,
    texts=_texts,
    uses_llm=True,
    payload=pa.schema([
        column("form", STRING),
        column("topics", list_of(STRING)),
        column("discourse", STRING),
        column("sections", list_of(schemas.SECTION)),
        column("boundary", STRING),
        column("method", STRING),
    ]),
    content=_content,
    run=profile,
    assemble=_assemble,
)  # fmt: skip
