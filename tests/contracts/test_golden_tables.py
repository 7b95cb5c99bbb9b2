"""A stage whose code changes what it produces must raise its version, or cached work of the old code would be mixed in.

To accept new tables: raise the stage's `version`, run this file with GPU_RAG_ACCEPT_GOLDEN=1, and commit the JSON.
"""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpu_rag.config import Config
from gpu_rag.index import s02_profile, s03_chunk, s04_extract, s06_govern, s08_communities
from gpu_rag.index.s01_ingest import read_corpus
from gpu_rag.schemas import EMBEDDINGS, STRING, VECTORS, column
from gpu_rag.stage import RowStage, Tables, TableStage, work_keys
from gpu_rag.store import table_hash

GOLDEN = Path(__file__).with_name("golden_tables.json")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STAGES: tuple[RowStage | TableStage, ...] = (
    s02_profile.STAGE, s03_chunk.STAGE, s04_extract.STAGE, s06_govern.STAGE, s08_communities.STAGE,
)  # fmt: skip


def outputs(stage: RowStage | TableStage, section: Any, tables: Tables) -> dict[str, pa.Table]:
    """Run a stage in this process, without the store."""
    if isinstance(stage, TableStage):
        return stage.run({name: tables[name] for name in stage.reads}, config=section)
    content = stage.content(tables, section)
    keys = work_keys(content, "golden")
    work = content.drop_columns(["row_id"]).add_column(0, column("work_key", STRING), pa.array(keys, STRING))
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    results = stage.run(work.take(list(first.values())), config=section)
    place = {key: row for row, key in enumerate(results.column("work_key").to_pylist())}
    joined = results.take([place[key] for key in keys]).drop_columns(["work_key"])
    return stage.assemble(tables, joined.add_column(0, column("row_id", STRING), content.column("row_id")), section)


@pytest.fixture(scope="module")
def produced() -> dict[str, dict[str, Any]]:
    config = Config()
    source = read_corpus(EXAMPLES, config.ingest)
    tables: dict[str, pa.Table] = {
        "documents": source.documents,
        "recorded_chunks": source.recorded_chunks,
        "recorded_extraction": source.recorded_extraction,
        "vectors": VECTORS.empty(),  # of another machine they would differ in their last bits
        "embeddings": EMBEDDINGS.empty(),
    }
    found: dict[str, dict[str, Any]] = {}
    for stage in STAGES:
        made = outputs(stage, getattr(config, stage.name), tables)
        tables |= made
        hashes = {schema.name: table_hash(made[schema.name], schema) for schema in stage.writes}
        found[stage.label] = {"version": stage.version, "tables": hashes}
    if os.environ.get("GPU_RAG_ACCEPT_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return found


@pytest.mark.parametrize("label", [stage.label for stage in STAGES])
def test_a_stage_that_produces_something_else_has_another_version(produced: dict[str, dict[str, Any]], label: str) -> None:
    known = json.loads(GOLDEN.read_text(encoding="utf-8"))[label]
    if produced[label]["tables"] == known["tables"]:
        assert produced[label]["version"] == known["version"]
    else:
        assert produced[label]["version"] > known["version"], f"raise the version of stage {label}"
        pytest.fail(f"stage {label} has a new version: accept its tables (see the top of this file)")
