"""Two hundred requests of every stage on the bundled model: all outputs are as asked for, and what they would be without a grammar.

Extraction also over fifty passages in each discourse mode, with what governance finds in the text of what it wrote.

Slow: `pytest -m "vllm and slow" -s tests/vllm/test_stage_schemas.py` prints the shares; `-k select` runs one stage.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gpu_rag import schemas
from gpu_rag.config import load_config
from gpu_rag.engines.encoder import open_encoder
from gpu_rag.engines.generation import Completion, Generation, GenerationRequest, Message, TextGenerator
from gpu_rag.engines.llm import LlmConfig
from gpu_rag.engines.llm_vllm import VllmEngine
from gpu_rag.index import s04_extract, s06_govern
from gpu_rag.index.build import build_index
from gpu_rag.index.extractors import Chunk
from gpu_rag.index.extractors.discourse import DISCOURSES
from gpu_rag.index.extractors.llm import extract_all
from gpu_rag.query import s01_demand, s03_retrieve, s04_merge, s05_select, s06_ground, s07_suffice, s08_answer
from gpu_rag.query.questions import read_questions
from gpu_rag.query.repository import Repository
from gpu_rag.stage import run_here
from gpu_rag.stage_report import StageReport
from gpu_rag.store.generations import open_generation

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NUM_REQUESTS = 200
NUM_FREE = 40
NUM_PASSAGES = 50
MODES = tuple(DISCOURSES)
STAGES = (s01_demand, s03_retrieve, s04_merge, s05_select, s06_ground, s07_suffice, s08_answer)
SETTINGS = (
    "retrieve.retrievers=[bm25,dense]", "merge.depth=10", "select.k=2", "select.llm.excerpt_words=20", "ground.max_spans=1",
    "answer.policy=always", "suffice.llm.likelihood=false",
    "extract.llm.max_entities=1", "extract.llm.max_statements=1", "extract.llm.max_relations=1",
)  # fmt: skip


class Quiet:
    def stage_started(self, label: str, total: int) -> None: ...

    def advanced(self, label: str, rows: int) -> None: ...

    def stage_finished(self, report: StageReport) -> None: ...


class Recorded(TextGenerator):
    """Keeps what it was asked and what came of it."""

    def __init__(self, engine: VllmEngine) -> None:
        super().__init__(engine)
        self.kept: list[tuple[GenerationRequest, Generation]] = []

    def generate(self, requests: Sequence[GenerationRequest]) -> dict[str, Generation]:
        done = super().generate(requests)
        self.kept += [(request, done[request.id]) for request in requests]
        return done


class Unconstrained:
    """The same engine without its grammar."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def count_tokens(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        return self._engine.count_tokens(conversations)

    def complete(self, requests: Sequence[GenerationRequest]) -> Iterator[Completion]:
        self._engine._grammar = False
        yield from self._engine.complete(requests)
        self._engine._grammar = True


@pytest.fixture(scope="module")
def engine() -> VllmEngine:
    return VllmEngine(LlmConfig(engine="vllm", max_context_tokens=4096, max_num_seqs=32))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    build_index(EXAMPLES, folder, load_config(settings=["run.num_workers=1"]), progress=Quiet())
    return folder


@pytest.fixture(scope="module")
def repository(index: Path) -> Repository:
    return Repository.open(index)


def report(name: str, kept: list[tuple[GenerationRequest, Generation]], engine: VllmEngine) -> Counter[str]:
    """Print the states of a stage's outputs, and of the same prompts without a grammar."""
    states = Counter(result.state for _, result in kept)
    requests = [request for request, _ in kept if request.span is None][:NUM_FREE]
    free = TextGenerator(Unconstrained(engine), retries=0).generate(requests)
    print(f"\n{name}: {len(kept)} requests {dict(states)}; {len(requests)} of them without a grammar", end=" ")
    print(dict(Counter(result.state for result in free.values())), flush=True)
    return states


@pytest.mark.parametrize("asking", ["suffice", "select", "answer", "ground", "demand"])
def test_every_output_of_a_stage_is_as_asked_for(asking: str, engine: VllmEngine, repository: Repository) -> None:
    """The other stages are without a model."""
    config = load_config(settings=[*SETTINGS, f"{asking}.method=llm"])
    llm = Recorded(engine)
    asked = read_questions(EXAMPLES / "questions.jsonl").to_pylist()
    forms = ("{}", "Please tell me: {}", "{} Answer briefly.")
    rows = [
        row | {"id": f"{row['id']} {number}", "question": form.format(row["question"])}
        for number, form in enumerate(forms)
        for row in asked
    ]
    tables: dict[str, Any] = {"questions": schemas.QUESTIONS.from_rows(rows[:NUM_REQUESTS])}
    engines = {"encoder": open_encoder(config.embed.encoder), "repository": repository, "llm": llm}
    for module in STAGES:
        tables |= run_here(module.STAGE, getattr(config, module.STAGE.name), tables, **engines)
        if module.STAGE.name == asking:
            break
    assert report(asking, llm.kept, engine) == {"ok": NUM_REQUESTS}


def test_every_output_of_extraction_is_as_asked_for(engine: VllmEngine, repository: Repository) -> None:
    config = load_config(settings=SETTINGS)
    llm = Recorded(engine)
    chunks = {}
    for row in range(NUM_REQUESTS):
        first = row % (len(repository.sentence_texts) - 2)
        texts = repository.sentence_texts[first : first + 2]
        start = len(texts[0]) + 1
        spans = [(0, len(texts[0])), (start, start + len(texts[1]))]
        chunks[str(row)] = Chunk("", " ".join(texts), spans, None, None, MODES[row % len(MODES)])
    extract_all(chunks, config=config.extract.llm, llm=llm)
    assert report("extract", llm.kept, engine) == {"ok": NUM_REQUESTS}


@pytest.mark.parametrize("mode", MODES)
def test_fifty_passages_are_extracted_in_every_mode_and_spans_not_in_the_text_are_counted(
    mode: str, engine: VllmEngine, index: Path
) -> None:
    """The bundled model writes much that no passage holds: its output is valid all the same, and none of it is admitted."""
    extract = ("max_entities=4", "max_statements=2", "max_relations=3", "output_tokens=1536")
    config = load_config(settings=["extract.methods=[llm]", *(f"extract.llm.{setting}" for setting in extract)])
    generation = open_generation(index)
    passages = generation.read(schemas.CHUNKS).slice(0, NUM_PASSAGES)
    passages = passages.set_column(passages.schema.get_field_index("discourse"), schemas.CHUNKS.schema.field("discourse"),
                                   pa.repeat(mode, len(passages)))  # fmt: skip
    sentences = generation.read(schemas.SENTENCES)
    sentences = sentences.filter(pc.is_in(sentences.column("chunk_id"), value_set=passages.column("chunk_id")))
    tables = {"chunks": passages, "sentences": sentences, "recorded_extraction": schemas.RECORDED_EXTRACTION.empty()}
    llm = Recorded(engine)
    tables |= run_here(s04_extract.STAGE, config.extract, tables, llm=llm)
    tables |= {"vectors": schemas.VECTORS.empty(), "embeddings": schemas.EMBEDDINGS.empty()}
    governed = s06_govern.STAGE.run(tables, config=config.govern)
    states = Counter(result.state for _, result in llm.kept)
    print(f"\n{mode}: {len(llm.kept)} passages {dict(states)}")
    for name in ("mentions", "relations"):
        units = governed[name].to_pylist()
        unbound = [unit for unit in units if "unbound" in unit["reasons"]]
        print(
            f"{name}: {len(units)}, {dict(Counter(unit['decision'] for unit in units))}, of them not in the text: {len(unbound)}"
        )
        assert all(unit["decision"] == "reject" for unit in unbound)
    assert states == {"ok": NUM_PASSAGES}
