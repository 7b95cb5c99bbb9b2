"""Another config, model, corpus or shard size: what depends on it is computed anew, or refused by name; nothing is stale."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from gpu_rag import schemas
from gpu_rag.cli import main
from gpu_rag.config import INDEX_SECTIONS, QUERY_SECTIONS, Config, load_config
from gpu_rag.errors import ConfigError, StoreError
from gpu_rag.index import s03_chunk
from gpu_rag.index.s03_chunk import ChunkConfig

PACKAGE = Path(s03_chunk.__file__).resolve().parents[1]
TWO = [
    {"doc_id": "a", "title": "Harl", "text": "Harl lies south of Pell."},
    {"doc_id": "b", "title": "Voss", "text": "Anna Voss built a mill."},
]
WHERE = [{"id": "q", "question": "Where does Harl lie?"}]


GLOBAL = {"06_govern", "07_graph", "08_communities", "09_summarize", "10_publish"}


@pytest.mark.parametrize(
    ("settings", "dependent"),
    [
        (("graph.synonym_threshold=0.5",), {"07_graph", "10_publish"}),
        (("govern.review_below=0.9",), GLOBAL),
        (("communities.max_members=2",), {"08_communities", "09_summarize", "10_publish"}),
        (("embed.kinds=[chunk,sentence]",), GLOBAL),
        (("extract.methods=[builtins:list]",), {"04_extract", "05_embed"} | GLOBAL),
        (("chunk.preset=words-500-200", "chunk.window_words=6", "chunk.overlap_words=2"),
         {"03_chunk", "04_extract", "05_embed"} | GLOBAL),
    ],
)  # fmt: skip
def test_another_config_recomputes_what_depends_on_it_and_the_old_one_is_still_there(
    finished: Any, copied: Any, documents: list[dict[str, Any]], settings: tuple[str, ...], dependent: set[str]
) -> None:
    if settings[0].startswith("extract"):
        settings = ("extract.methods=[mentions,gpu_rag.index.extractors.mentions:extract]",)
    copied.index(documents, *settings)
    first = min(dependent)
    assert set(copied.recomputed()) <= dependent
    assert first in copied.recomputed() or "embed" in settings[0]
    changed = copied.hash()
    copied.index(documents, *settings, "run.shard_rows=2")
    assert copied.recomputed() == {}
    assert copied.hash() == changed
    copied.index(documents)
    assert copied.recomputed() == {}
    assert copied.hash() == finished.hash()


def test_an_index_folder_takes_another_corpus_and_keeps_no_trace_of_the_first_in_it(
    finished: Any, copied: Any, documents: list[dict[str, Any]], questions: list[dict[str, Any]]
) -> None:
    copied.index(TWO)
    fresh = type(copied)(copied.folder / "fresh")
    assert fresh.index(TWO).generation.content_hash == copied.hash()
    generation = copied.generation()
    assert set(generation.read(schemas.DOCUMENTS).column("doc_id").to_pylist()) == {"a", "b"}
    assert not any("verrin" in name for name in generation.read(schemas.ENTITIES).column("normal_form").to_pylist())
    with pytest.raises(ConfigError, match="belongs to another index"):
        copied.answer(questions)
    copied.evaluate()  # over the generation that was answered from, which is still there
    copied.index(documents)
    assert copied.recomputed() == {}
    copied.answer(questions)
    assert copied.recomputed() == {}
    assert copied.answers() == finished.answers()


def test_a_run_stopped_twice_goes_on_where_it_stopped_also_with_shards_of_another_size(
    job: Any, finished: Any, documents: list[dict[str, Any]]
) -> None:
    for rows, stop in ((1, "04_extract"), (3, "06_govern")):
        job.stop_before = stop
        with pytest.raises(KeyboardInterrupt, match=stop):
            job.index(documents, f"run.shard_rows={rows}")
        with pytest.raises(StoreError, match="holds no published index"):
            job.generation()
    job.stop_before = ""
    job.index(documents, "run.shard_rows=7")
    assert "03_chunk" not in job.recomputed()
    assert "05_embed" not in job.recomputed()
    assert job.hash() == finished.hash()


@pytest.fixture(scope="module")
def tiny(new_job: Callable[[], Any], tiny_model: Callable[..., Path]) -> Any:
    """A job whose index was embedded with a tiny model, `model`."""
    job = new_job()
    job.model = tiny_model(1)
    job.index(TWO, f"embed.encoder.model={job.model}")
    return job


@pytest.mark.parametrize("other", ["other dimension", "same dimension", "same folder, other weights"])
def test_an_index_is_not_searched_with_another_model_and_both_are_named(
    tiny: Any, tiny_model: Callable[..., Path], other: str
) -> None:
    built = tiny.generation().manifest["encoder"]
    kept = (tiny.model / "model.safetensors").read_bytes()
    model = {"other dimension": "minilm", "same folder, other weights": str(tiny.model)}.get(other) or str(tiny_model(2))
    if other == "same folder, other weights":
        shutil.copy(tiny_model(2) / "model.safetensors", tiny.model / "model.safetensors")
    try:
        with pytest.raises(ConfigError) as raised:
            tiny.answer(WHERE, f"embed.encoder.model={model}", run="refused")
    finally:
        (tiny.model / "model.safetensors").write_bytes(kept)
    for part in (str(tiny.model), built["identity"], model, "index the corpus again with this one"):
        assert part in str(raised.value)
    assert len(set(re.findall(r"\d+t:\w+", str(raised.value)))) == 2
    assert not (tiny.folder / "refused").exists()


def test_indexing_again_with_another_model_embeds_anew_and_extracts_nothing(tiny: Any, tiny_model: Callable[..., Path]) -> None:
    first = tiny.hash()
    other = f"embed.encoder.model={tiny_model(2)}"
    tiny.index(TWO, other)
    assert set(tiny.recomputed()) == {"05_embed", "06_govern", "07_graph", "10_publish"}
    assert tiny.computed["05_embed"] == tiny.distinct["05_embed"]
    assert tiny.hash() != first
    tiny.answer(WHERE, run="other")
    assert tiny.answers("other")["q"]["state"] == "ok"
    tiny.index(TWO, f"embed.encoder.model={tiny.model}")
    assert tiny.recomputed() == {}
    assert tiny.hash() == first


def test_where_a_model_lies_is_no_part_of_what_it_computes(tiny: Any, tmp_path: Path) -> None:
    first = tiny.hash()
    moved = shutil.copytree(tiny.model, tmp_path / "moved")
    tiny.index(TWO, f"embed.encoder.model={moved}")
    assert tiny.recomputed() == {}
    assert tiny.hash() == first
    tiny.index(TWO, f"embed.encoder.model={tiny.model}")


def test_a_query_instruction_changes_queries_and_their_work_and_no_passage(tiny: Any) -> None:
    first = tiny.hash()
    settings = (f"embed.encoder.model={tiny.model}", "embed.encoder.query_instruction='Represent the bridge: '")
    tiny.answer(WHERE, system="dense", run="plain")
    with pytest.raises(ConfigError, match="belongs to another config"):
        tiny.answer(WHERE, settings[1], system="dense", run="plain")
    tiny.answer(WHERE, settings[1], system="dense", run="instructed")
    assert tiny.computed["03_retrieve"] == 1
    plain, instructed = (tiny.folder / run / "rankings.parquet" for run in ("plain", "instructed"))
    assert plain.read_bytes() != instructed.read_bytes()
    tiny.index(TWO, *settings)
    assert tiny.recomputed() == {}
    assert tiny.hash() == first
    assert tiny.generation().manifest["config"]["embed"]["encoder"]["query_instruction"] == "Represent the bridge: "


@given(window=st.integers(-1, 12), overlap=st.integers(-1, 12), num_words=st.integers(1, 40))
def test_every_overlap_below_the_window_covers_the_text_and_any_other_is_refused(
    window: int, overlap: int, num_words: int
) -> None:
    settings = ["chunk.preset=words-500-200", f"chunk.window_words={window}", f"chunk.overlap_words={overlap}"]
    if not 0 <= overlap < window:
        with pytest.raises(ConfigError, match="chunk"):
            load_config(settings=settings)
        return
    config = load_config(settings=settings).chunk
    text = " ".join(f"w{number}" for number in range(num_words))
    documents = schemas.DOCUMENTS.from_rows(
        [{"doc_id": "d", "title": "", "text": text, "access": [], "duplicate_of": None, "state": "ok", "reason": ""}]
    )
    tables = {"documents": documents, "recorded_chunks": schemas.RECORDED_CHUNKS.empty()}
    content = s03_chunk.STAGE.content(tables, config)
    results = s03_chunk.STAGE.run(content.rename_columns(["work_key", *content.schema.names[1:]]), config=config)
    chunks = results.column("chunks").to_pylist()[0]
    assert chunks
    assert {word for c in chunks for word in text[c["start"] : c["end"]].split()} == set(text.split())
    assert max(len(text[c["start"] : c["end"]].split()) for c in chunks) <= window


@pytest.mark.parametrize("overlap", [0, 1])
def test_chunk_lengths_are_refused_before_anything_is_read(overlap: int) -> None:
    with pytest.raises(ValidationError, match="overlap_words"):
        ChunkConfig(window_words=1, overlap_words=1 + overlap)


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, name) of every value a config has."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, name


def test_every_config_key_is_read_by_the_code() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
    only_one_value = {"embed.encoder.dtype"}
    by_name = {"relation", "passage_entity", "passage_name", "synonym"}  # read with getattr, one weight per edge kind
    unread = [
        key
        for key, name in leaves(Config)
        if not re.search(rf"\.{name}\b", code) and name not in by_name and key not in only_one_value
    ]
    assert unread == []


@pytest.mark.parametrize("section", [*INDEX_SECTIONS, *QUERY_SECTIONS, "run"])
def test_an_unknown_key_is_refused_in_every_section(section: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown config key '{section}.no_such_key'"):
        load_config(settings=[f"{section}.no_such_key=1"])


@pytest.mark.parametrize(("command", "setting"), [("index", "answer.policy=always"), ("answer", "chunk.preset=recorded")])
def test_a_setting_that_the_command_does_not_read_is_refused(
    finished: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, setting: str
) -> None:
    inputs = {"index": ["corpus.jsonl"], "answer": ["run.jsonl", "--index", str(finished.root)]}[command]
    inputs[0] = str(finished.folder / inputs[0])
    with pytest.raises(SystemExit) as ended:
        main([command, *inputs, "--out", str(tmp_path / "out"), "--set", setting])
    assert ended.value.code == 2
    assert f"--set '{setting}' changes nothing here" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
