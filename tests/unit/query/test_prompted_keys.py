"""What the prompted methods put into work keys, and the schemas that an engine has to compile."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gpu_rag.config import Config, load_config
from gpu_rag.errors import ConfigError
from gpu_rag.ids import canonical_json, content_hash
from gpu_rag.prompts import prompt_text
from gpu_rag.query import s01_demand, s05_select, s06_ground, s07_suffice, s08_answer
from gpu_rag.query.prompted.answer import answer_schema
from gpu_rag.query.prompted.ground import ground_schema

STAGES = {module.STAGE.name: module.STAGE for module in (s01_demand, s05_select, s06_ground, s07_suffice, s08_answer)}
IDENTITIES = {"encoder": "E", "repository": "R", "llm": "L"}
OTHER = {"demand": "whole", "select": "coverage", "ground": "encoder", "suffice": "features", "answer": "extractive"}
ROOT = Path(__file__).resolve().parents[3]


def fingerprints(changes: dict[str, dict[str, Any]] | None = None, *, method: str = "llm") -> dict[str, str]:
    keys = {}
    for name, stage in STAGES.items():
        section = {"method": method if method == "llm" else OTHER[name]} | (changes or {}).get(name, {})
        config = type(getattr(Config(), name)).model_validate(section)
        keys[name] = stage.fingerprint(config, IDENTITIES)
    return keys


def changed(changes: dict[str, dict[str, Any]], *, method: str = "llm") -> set[str]:
    before, after = fingerprints(method=method), fingerprints(changes, method=method)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize("name", STAGES)
def test_another_prompt_text_changes_its_own_stage_alone(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text(prompt_text(name) + "\nThink twice.\n")
    assert changed({name: {"llm": {"prompt": str(path)}}}) == {name}


@pytest.mark.parametrize("name", STAGES)
def test_the_same_prompt_under_another_name_is_the_same_work(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text(prompt_text(name))
    assert changed({name: {"llm": {"prompt": str(path)}}}) == set()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("demand", {"output_tokens": 99}),
        ("select", {"excerpt_words": 99}),
        ("ground", {"spans": "quotes"}),
        ("suffice", {"likelihood": False}),
        ("answer", {"reserve_tokens": 999}),
        ("ground", {"evidence": prompt_text("evidence") + "\n"}),
        ("suffice", {"likelihood_prompt": prompt_text("likelihood") + "."}),
    ],
)
def test_a_setting_of_the_prompt_counts_for_the_method_llm_alone(name: str, settings: dict[str, Any]) -> None:
    assert changed({name: {"llm": settings}}) == {name}
    assert changed({name: {"llm": settings}}, method="other") == set()


def test_the_other_methods_keep_the_keys_they_had_before_there_were_prompts() -> None:
    """Work committed by earlier versions is found again: nothing of the prompts is in its key, not even that there are none."""
    for name, stage in STAGES.items():
        config = _config(name, OTHER[name])
        parts = {
            "stage": stage.label,
            "version": stage.version,
            "config": config.model_dump(mode="json", exclude={"llm"}),
            "engines": {engine: IDENTITIES[engine] for engine in stage.engines_for(config)},
        }
        assert stage.fingerprint(config, IDENTITIES) == content_hash("fingerprint", canonical_json(parts))


def test_the_methods_ask_for_the_engines_they_need() -> None:
    needed = {
        name: (stage.engines_for(_config(name, "llm")), stage.engines_for(_config(name, OTHER[name])))
        for name, stage in STAGES.items()
    }
    assert needed == {
        "demand": (("llm",), ()),
        "select": (("llm", "repository"), ("repository",)),
        "ground": (("llm", "repository"), ("encoder", "repository")),
        "suffice": (("encoder", "llm", "repository"), ("encoder", "repository")),
        "answer": (("llm", "repository"), ("encoder", "repository")),
    }  # fmt: skip


def _config(name: str, method: str) -> Any:
    return type(getattr(Config(), name))(method=method)


@pytest.mark.parametrize("name", STAGES)
def test_a_prompt_that_asks_for_what_it_is_not_given_is_refused_before_any_row(name: str) -> None:
    config = type(getattr(Config(), name)).model_validate({"method": "llm", "llm": {"prompt": "{# user #}\n{{ nothing }}"}})
    with pytest.raises(ConfigError, match="asks for \\['nothing'\\]"):
        STAGES[name].fingerprint(config, IDENTITIES)


@pytest.fixture(scope="module")
def sent(make_repository: Any, scripted: Any, prompted_work: Any, encoder: Any) -> dict[str, list[Any]]:
    """The requests of each stage for 50 questions over 10 corpora of passages with 1 to 5 sentences."""
    requests: dict[str, list[Any]] = {name: [] for name in STAGES}
    for corpus in range(10):
        documents = {
            f"d{row}": (f"T{row}", " ".join(f"Sentence {n} of {row}." for n in range(1 + (row + corpus) % 5)))
            for row in range(20)
        }
        repository = make_repository(documents)
        questions = [f"Question {corpus} {number}?" for number in range(5)]
        demands = [
            {"demand_id": f"D{k}", "description": f"F{k}", "query": "", "inputs": [], "outputs": [f"x{k}"]}
            for k in range(1, 2 + corpus % 5)
        ]
        work = prompted_work(repository, questions, demands=demands, select=5)
        for name, run in (
            ("demand", s01_demand.induce_demands), ("select", s05_select.select), ("ground", s06_ground.ground),
            ("suffice", s07_suffice.suffice), ("answer", s08_answer.answer),
        ):  # fmt: skip
            llm, engine = scripted()
            engines = {"llm": llm, "encoder": encoder, "repository": repository}
            run(
                work,
                config=_config(name, "llm"),
                **{key: engines[key] for key in STAGES[name].engines_for(_config(name, "llm"))},
            )
            requests[name] += engine.sent
    return requests


def test_few_schemas_are_compiled_for_many_rows(sent: dict[str, list[Any]]) -> None:
    distinct = {name: {canonical_json(r.schema) for r in requests if r.schema} for name, requests in sent.items()}
    assert {name: len(requests) for name, requests in sent.items()} == dict.fromkeys(STAGES, 50) | {"suffice": 100}
    assert len(distinct["demand"]) == len(distinct["select"]) == 1
    assert not distinct["suffice"]
    assert len(distinct["ground"]) <= 10  # one per number of demands and of sentences
    assert len(distinct["answer"]) <= 5


def test_every_schema_is_closed_bounded_and_of_the_kinds_that_grammars_take(sent: dict[str, list[Any]]) -> None:
    schemas = [request.schema for requests in sent.values() for request in requests if request.schema]
    schemas += [ground_schema("quotes", 3, 5, 9, 4), answer_schema(7)]
    for schema in schemas:
        Draft202012Validator.check_schema(schema)
        for part in _parts(schema):
            match part["type"]:
                case "object":
                    assert list(part["properties"]) == part["required"]
                    assert part["additionalProperties"] is False
                case "array":
                    assert part["maxItems"] >= 1
                    assert set(part) <= {"type", "items", "minItems", "maxItems"}
                case "string":
                    assert set(part) in ({"type", "enum"}, {"type", "maxLength"})
                case other:
                    pytest.fail(other)


def test_texts_have_two_bounds_so_that_their_automata_are_shared(sent: dict[str, list[Any]]) -> None:
    schemas = [request.schema for requests in sent.values() for request in requests if request.schema]
    lengths = {part["maxLength"] for schema in schemas for part in _parts(schema) if "maxLength" in part}
    assert len(lengths) == 2
    assert min(lengths) < 128


def _parts(schema: Any) -> Iterator[Any]:
    yield schema
    for part in [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
        yield from _parts(part)


def test_the_lineage_system_runs_without_a_model_and_the_hardware_file_puts_every_stage_on_one() -> None:
    plain = load_config(system="lineage")
    asking = load_config(system="lineage", files=[ROOT / "configs/hardware/cpu_vllm.yaml"])
    assert {name: getattr(plain, name).method for name in STAGES} == OTHER
    assert {name: getattr(asking, name).method for name in STAGES} == dict.fromkeys(STAGES, "llm")
    assert (asking.extract.methods, asking.llm.engine, asking.run.num_workers) == (("llm",), "vllm", 1)
    assert asking.retrieve == plain.retrieve == load_config(system="embedded").retrieve
    assert plain.answer.policy == "always"
