"""The command line as a user meets it: real processes, exit codes, one clear line on wrong input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GPU_RAG = str(Path(sys.executable).with_name("gpu-rag"))
DOCUMENT = {"doc_id": "d1", "title": "Pell", "text": "Pell is a village. Its fair is held in March."}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [GPU_RAG, *map(str, arguments)], capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"}
    )


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([DOCUMENT, '{"doc_id": "d2", "text": '], "corpus.jsonl:2"),
        ([DOCUMENT, {"title": "no id", "text": "x"}], "corpus.jsonl:2"),
        ([DOCUMENT, {"doc_id": "d2", "title": "t", "text": 7}], "corpus.jsonl:2"),
        ([DOCUMENT, ["d2", "t", "x"]], "corpus.jsonl:2"),
        ([DOCUMENT, {**DOCUMENT, "text": "Another text."}], "corpus.jsonl:2"),
    ],
)
def test_a_malformed_document_is_named_by_file_and_line(tmp_path: Path, rows: list[object], message: str) -> None:
    done = run("index", lines(tmp_path / "corpus.jsonl", *rows), "--out", tmp_path / "index")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("chunk.sise=3", "unknown config key 'chunk.sise'"),
        ("nothing.at=all", "unknown config key 'nothing'"),
        ("chunk.overlap_words=600", "overlap"),
        ("retrieve.depth=zero", "config key 'retrieve.depth'"),
        ("retrieve.depth", "expected key.key=value"),
    ],
)
def test_a_wrong_setting_is_named_by_key(tmp_path: Path, setting: str, message: str) -> None:
    corpus = lines(tmp_path / "corpus.jsonl", DOCUMENT)
    done = run("index", corpus, "--out", tmp_path / "index", "--set", setting)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "index").exists()


def test_a_wrong_key_in_a_config_file_is_named_with_the_file(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("chunk:\n  presett: passage\n", encoding="utf-8")
    corpus = lines(tmp_path / "corpus.jsonl", DOCUMENT)
    done = run("index", corpus, "--out", tmp_path / "index", "--config", config)
    assert done.returncode == 2
    assert "mine.yaml" in done.stderr
    assert "unknown config key 'chunk.presett'" in done.stderr


def test_an_unknown_system_lists_those_there_are(tmp_path: Path) -> None:
    questions = lines(tmp_path / "q.jsonl", {"id": "q", "question": "Where?"})
    done = run("answer", questions, "--index", tmp_path / "none", "--out", tmp_path / "run", "--system", "hipporag3")
    assert done.returncode == 2
    assert "holds no published index" in done.stderr


@pytest.mark.parametrize("command", [("verify", "nothing"), ("evaluate", "nothing", "--questions", "nothing")])
def test_a_missing_folder_is_named(tmp_path: Path, command: tuple[str, ...]) -> None:
    done = run(*(tmp_path / word if word == "nothing" else word for word in command))
    assert done.returncode == 2
    assert str(tmp_path / "nothing") in done.stderr


def test_one_process_builds_and_another_only_queries(tmp_path: Path) -> None:
    corpus = lines(tmp_path / "corpus.jsonl", DOCUMENT)
    questions = lines(tmp_path / "q.jsonl", {"id": "q", "question": "When is the fair of Pell held?", "answers": ["March"],
                                             "answerable": True, "supporting_doc_ids": ["d1"]})  # fmt: skip
    index, out = tmp_path / "index", tmp_path / "run"
    built = run("index", corpus, "--out", index)
    assert built.returncode == 0, built.stderr
    labels = [json.loads(line)["label"] for line in built.stdout.splitlines() if line.startswith("{")]
    assert labels == [
        "01_ingest",
        "02_profile",
        "03_chunk",
        "04_extract",
        "05_embed",
        "06_govern",
        "07_graph",
        "08_communities",
        "09_summarize",
        "10_publish",
    ]
    answered = run("answer", questions, "--index", index, "--out", out, "--system", "bm25")
    assert answered.returncode == 0, answered.stderr
    evaluated = run("evaluate", out, "--questions", questions)
    assert evaluated.returncode == 0, evaluated.stderr
    assert "recall@5" in evaluated.stdout
    assert run("verify", index, "--hash").stdout.splitlines()[-1] == run("verify", index, "--hash").stdout.splitlines()[-1]
    missing = run("answer", tmp_path / "none.jsonl", "--index", index, "--out", tmp_path / "run2")
    assert missing.returncode == 2
    assert "none.jsonl" in missing.stderr
    unknown = run("answer", questions, "--index", index, "--out", tmp_path / "run3", "--system", "hipporag3")
    assert unknown.returncode == 2
    assert "there are: bm25, dense, embedded, hipporag2, lineage, rrf" in unknown.stderr


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("ingest.encoding=nope", "ingest.encoding"),
        ("ingest.encoding=base64", "ingest.encoding"),
        ("embed.encoder.model=''", "embed.encoder.model"),
    ],
)
def test_a_setting_of_no_use_is_named(tmp_path: Path, setting: str, message: str) -> None:
    done = run("index", lines(tmp_path / "corpus.jsonl", DOCUMENT), "--out", tmp_path / "index", "--set", setting)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("place", ["a file", "below a file"])
def test_an_out_folder_that_cannot_be_one_is_named(tmp_path: Path, place: str) -> None:
    corpus = lines(tmp_path / "corpus.jsonl", DOCUMENT)
    done = run("index", corpus, "--out", corpus if place == "a file" else corpus / "index")
    assert done.returncode == 2
    assert str(corpus) in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_folder_does_not_become_an_empty_index(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run("index", tmp_path / "empty", "--out", tmp_path / "index")
    assert done.returncode == 2
    assert not (tmp_path / "index" / "CURRENT").exists()


def test_a_config_name_is_no_path(tmp_path: Path) -> None:
    corpus = lines(tmp_path / "corpus.jsonl", DOCUMENT)
    done = run("index", corpus, "--out", tmp_path / "index", "--hardware", "../systems/embedded")
    assert done.returncode == 2
    assert "no hardware config" in done.stderr
