"""Whatever is added, changed and deleted in whichever order: the index is the one that a rebuild of the result gives."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_rag import schemas
from gpu_rag.config import Config, load_config
from gpu_rag.engines.encoder import Encoder, open_encoder
from gpu_rag.engines.workers import WorkerPool
from gpu_rag.index.build import build_generation, index_pool
from gpu_rag.index.s01_ingest import read_corpus
from gpu_rag.index.update import update_locked
from gpu_rag.query.repository import Repository
from gpu_rag.query.s03_retrieve import retrieve
from gpu_rag.schemas import TABLES, TableSchema
from gpu_rag.store import Generation, writer_lock
from tests.faults.conftest import Row

NAMES = (
    "Ilse Marrow", "Marrow", "Mr. Marrow", "Tomas Reed", "Orme Bridge", "the Orme Bridge", "North Pell", "South Pell", "Pell",
    "Mount Verrin", "Mt. Verrin", "Beyoncé Lull", "Beyonce Lull", "Orme River Trust (ORT)", "ORT", "Mercury", "Харлов", "三枝冬樹",
)  # fmt: skip
TITLES = ("", "Pell", "Ilse Marrow", "Mercury (planet)", "Mercury (newspaper)", "Orme Bridge", "Mount Verrin")
SENTENCES = (
    "{0} crossed {1} in 1871.", "{0} was built by {1}.", "The flood of 1902 led to the fall of {0}.", "{0}, born in 1850, met {1}.",
    "{0}, also known as {1}, lies near {0}.", "{0} is the mayor of {1}.", "In March nobody came.", "{0} caused the ruin of {1}.",
)  # fmt: skip
DOC_IDS = ("a", "b", "c", "d", "e")

sentence = st.builds(str.format, st.sampled_from(SENTENCES), st.sampled_from(NAMES), st.sampled_from(NAMES))
content = st.tuples(st.sampled_from(TITLES), st.lists(sentence, max_size=3).map(" ".join))
night = st.tuples(
    st.dictionaries(st.sampled_from(DOC_IDS), content, max_size=3), st.sets(st.sampled_from(DOC_IDS), max_size=2)
)  # documents that come, ids that go


class _Quiet:
    def stage_started(self, label: str, total: int) -> None: ...

    def advanced(self, label: str, rows: int) -> None: ...

    def stage_finished(self, report: Any) -> None: ...


@pytest.fixture(scope="module")
def config(tiny_model: Callable[..., Path]) -> Config:
    return load_config(settings=("run.num_workers=1", f"embed.encoder.model={tiny_model(3)}"))


@pytest.fixture(scope="module")
def pool(config: Config, ray_cluster: None) -> Iterator[WorkerPool]:
    with index_pool(config) as workers:
        yield workers


@pytest.fixture(scope="module")
def encoder(config: Config) -> Encoder:
    return open_encoder(config.embed.encoder)


def write(path: Path, documents: dict[str, tuple[str, str]]) -> Path:
    rows: list[Row] = [{"doc_id": doc_id, "title": title, "text": text} for doc_id, (title, text) in documents.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def build(folder: Path, documents: dict[str, tuple[str, str]], config: Config, pool: WorkerPool) -> Generation:
    folder.mkdir(parents=True)
    corpus = write(folder / "corpus.jsonl", documents)
    with writer_lock(folder / "index"):
        source = read_corpus(corpus, config.ingest)
        return build_generation(source, folder / "index", config, progress=_Quiet(), pool=pool).generation


def rankings(generation: Generation, encoder: Encoder, config: Config) -> list[list[tuple[str, float]]]:
    """The hits of 50 questions by the no-LLM default's retriever."""
    asked = [
        pattern.format(first, second) for pattern in SENTENCES for first, second in zip(NAMES[::3], NAMES[1::3], strict=True)
    ]
    demands = [
        [{"demand_id": "D1", "description": q, "query": q, "inputs": [], "outputs": []}] for q in asked + ["Pell?", "ORT?"]
    ]
    work = pa.table(
        {
            "work_key": [str(number) for number in range(len(demands))],
            "question": [row[0]["query"] for row in demands],
            "demands": pa.array(demands, schemas.DEMANDS.schema.field("demands").type),
        }
    )
    repository = Repository.open(generation.root, verify=False)
    result = retrieve(work, config=load_config(system="embedded").retrieve, repository=repository, encoder=encoder)
    found = sorted(result.select(["work_key", "lists"]).to_pylist(), key=lambda row: int(row["work_key"]))
    return [[(hit["chunk_id"], hit["score"]) for hit in row["lists"][0]["hits"]] for row in found]


def table_of(generation: Generation, schema: TableSchema) -> pa.Table:
    return generation.read(schema)


def compare(updated: Generation, rebuilt: Generation) -> None:
    names = {
        file["table"]: TABLES[file["table"]]
        for entry in rebuilt.manifest["artifacts"].values()
        for file in entry["files"].values()
        if "table" in file
    }
    assert {"nodes", "edges", "links", "mentions", "relations", "entities", "communities", "summaries"} <= names.keys()
    for name, schema in names.items():
        first, second = table_of(updated, schema), table_of(rebuilt, schema)
        for column in schema.schema.names:
            one, two = first.column(column), second.column(column)
            if column in schema.computed:
                one, two = (np.concatenate([np.ravel(v) for v in c.to_pylist()] or [[]]) for c in (one, two))
                assert np.abs(one - two).max(initial=0.0) <= 1e-5, (name, column)
            else:
                assert one.equals(two), (name, column)
    assert updated.content_hash == rebuilt.content_hash


def check(
    start: dict[str, tuple[str, str]], nights: list[Any], folder: Path, config: Config, pool: WorkerPool, encoder: Encoder
) -> None:
    documents = dict(start)
    generation = build(folder / "updated", documents, config, pool)
    for number, (coming, leaving) in enumerate(nights):
        leaving = leaving - coming.keys()
        corpus = write(folder / f"coming-{number}.jsonl", coming) if coming else None
        with writer_lock(generation.root):
            update = update_locked(corpus, generation.root, config, delete=leaving, progress=_Quiet(), pool=pool)
        generation = update.index.generation
        documents = {doc_id: text for doc_id, text in (documents | coming).items() if doc_id not in leaving}
        assert generation.read(schemas.DOCUMENTS).column("doc_id").to_pylist() == sorted(documents)
    rebuilt = build(folder / "rebuilt", documents, config, pool)
    compare(generation, rebuilt)
    assert rankings(generation, encoder, config) == rankings(rebuilt, encoder, config)


START = st.dictionaries(st.sampled_from(DOC_IDS), content, max_size=4)
NIGHTS = st.lists(night, min_size=1, max_size=3)
CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@given(start=START, nights=NIGHTS)
@settings(max_examples=12, deadline=None, suppress_health_check=CHECKS, derandomize=True)
def test_an_updated_index_is_the_rebuilt_one(
    start: dict[str, tuple[str, str]], nights: list[Any], tmp_path: Path, config: Config, pool: WorkerPool, encoder: Encoder
) -> None:
    shutil.rmtree(tmp_path / "example", ignore_errors=True)
    check(start, nights, tmp_path / "example", config, pool, encoder)


@pytest.mark.slow
@given(start=START, nights=st.lists(night, min_size=1, max_size=6))
@settings(max_examples=100, deadline=None, suppress_health_check=CHECKS)
def test_an_updated_index_is_the_rebuilt_one_in_many_cases(
    start: dict[str, tuple[str, str]], nights: list[Any], tmp_path: Path, config: Config, pool: WorkerPool, encoder: Encoder
) -> None:
    shutil.rmtree(tmp_path / "example", ignore_errors=True)
    check(start, nights, tmp_path / "example", config, pool, encoder)
