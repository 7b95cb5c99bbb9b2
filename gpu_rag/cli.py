"""The command line: thin wiring from options to the functions that do the work.

Exit codes: 0 if every row reached a final state, 3 if some did not (listed and exported) or a batch service has to answer
first, 2 for wrong input, 1 if an engine does not start or something it needs is missing, 130 if interrupted.
"""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gpu_rag.errors import AwaitingAnswersError, ConfigError, GpuRagError, InputError, StoreError
from gpu_rag.progress import JsonProgress, TerminalProgress
from gpu_rag.stage_report import Progress, StageReport

if TYPE_CHECKING:
    from gpu_rag.config import Config
    from gpu_rag.store import Cleaned, Generation

EXIT_UNFINISHED = 3
EXIT_WRONG_INPUT = 2
EXIT_FAILURE = 1
EXIT_INTERRUPTED = 130
_FILE_COLUMNS = 160

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
bench = typer.Typer(no_args_is_help=True, help="Benchmarks: ratios against a peer in the same run, the floor beside them.")
app.add_typer(bench, name="bench")

ConfigFiles = Annotated[list[Path] | None, typer.Option("--config", help="YAML file; repeatable, later ones win.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="key.key=value; repeatable, wins over files.")]
Hardware = Annotated[str | None, typer.Option(help="Name of a file of configs/hardware.")]
Address = Annotated[str | None, typer.Option(help="Ray cluster to run on, such as `auto`; default: this machine.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N documents or questions, for a trial run.")]
RetryListed = Annotated[bool, typer.Option(help="Try rows again that have used up their attempts.")]


@app.command()
def index(
    corpus: Annotated[Path, typer.Argument(help="A file, or a folder (corpus.jsonl in it, or texts).")],
    out: Annotated[Path, typer.Option(help="INDEX folder; what is committed there is reused.")],
    config: ConfigFiles = None,
    settings: Settings = None,
    hardware: Hardware = None,
    address: Address = None,
    limit: Limit = None,
    retry_listed: RetryListed = False,
) -> None:
    """Turn a corpus into a published, evidence-bound index."""
    from gpu_rag.config import INDEX_SECTIONS, load_config
    from gpu_rag.index.build import build_index

    reads = (*INDEX_SECTIONS, "llm", "run")
    loaded = load_config(hardware=hardware, files=config or (), settings=settings or (), reads=reads)
    with _progress() as progress:
        result = build_index(corpus, out, loaded, progress=progress, address=address, limit=limit, retry_listed=retry_listed)
    _print_governance(result.generation)
    counts = result.generation.manifest["counts"]
    typer.echo(
        f"{counts['documents']} documents, {counts['chunks']} chunks, {counts['entities']} entities, "
        f"{counts['relations']} relations, {counts['edges']} edges, {counts['communities']} communities -> {out}"
    )
    _finish(out, result.reports, result.num_unfinished())


@app.command()
def update(
    index: Annotated[Path, typer.Option(help="INDEX folder.")],
    corpus: Annotated[Path | None, typer.Argument(help="Added and changed documents; as for `index`.")] = None,
    delete: Annotated[Path | None, typer.Option(help="Documents to take out: one id a line.")] = None,
    config: ConfigFiles = None,
    settings: Settings = None,
    hardware: Hardware = None,
    address: Address = None,
    limit: Limit = None,
    retry_listed: RetryListed = False,
) -> None:
    """Add, change and delete documents of an index; the next generation is what a rebuild would give.

    The config is the index's own, unless options change it.
    """
    from gpu_rag.index.update import read_ids, update_index

    loaded = _index_config(index, hardware, config, settings)
    with _progress() as progress:
        result = update_index(
            corpus, index, loaded,
            delete=read_ids(delete) if delete is not None else (),
            progress=progress, address=address, limit=limit, retry_listed=retry_listed,
        )  # fmt: skip
    _print_governance(result.index.generation)
    typer.echo(f"{result.summary()} -> generation {result.index.generation.id} of {index}")
    _finish(index, result.index.reports, result.index.num_unfinished())


@app.command()
def nightly(
    index: Annotated[Path, typer.Option(help="INDEX folder.")],
    corpus: Annotated[Path | None, typer.Argument(help="Added and changed documents; as for `index`.")] = None,
    delete: Annotated[Path | None, typer.Option(help="Documents to take out: one id a line.")] = None,
    questions: Annotated[Path | None, typer.Option(help="Standing questions: JSONL or Parquet.")] = None,
    runs: Annotated[Path | None, typer.Option(help="Folder of the standing questions' runs.")] = None,
    system: Annotated[str, typer.Option(help="Name of a file of configs/systems.")] = "embedded",
    keep: Annotated[int, typer.Option(min=1, help="Generations and runs to keep.")] = 7,
    config: ConfigFiles = None,
    settings: Settings = None,
    hardware: Hardware = None,
    address: Address = None,
    retry_listed: RetryListed = False,
) -> None:
    """Update an index, answer the standing questions whose evidence changed, remove old generations; for schedulers.

    The last line says what was done. Exit code 0: all rows are final; 3: some are not, and are tried first the next night;
    2: wrong input, or another run has the index; 1: an engine does not start. The index is whole after each of them.
    """
    from gpu_rag.config import QUERY_SECTIONS, load_config
    from gpu_rag.index.update import read_ids
    from gpu_rag.nightly import StandingQuestions
    from gpu_rag.nightly import nightly as run_night

    if (questions is None) != (runs is None):
        raise InputError("--questions and --runs go together")
    of_index = [setting for setting in settings or () if setting.partition(".")[0].strip() not in QUERY_SECTIONS]
    loaded = _index_config(index, hardware, config, of_index)
    standing = None
    if questions is not None and runs is not None:
        of_queries = [setting for setting in settings or () if setting not in of_index or setting.startswith(("llm.", "run."))]
        asking = load_config(
            hardware=hardware, system=system, files=config or (), settings=of_queries, base={"embed": loaded.embed.model_dump()}
        )
        standing = StandingQuestions(questions, runs, system, asking)
    with _progress() as progress:
        result = run_night(
            corpus, index, loaded,
            delete=read_ids(delete) if delete is not None else (),
            standing=standing, keep=keep, progress=progress, address=address, retry_listed=retry_listed,
        )  # fmt: skip
    if result.standing is not None:
        typer.echo(
            f"answers: {result.standing.folder / 'answers.parquet'}, changes: {result.standing.folder / 'changes.parquet'}"
        )
    typer.echo(result.summary())
    _finish(index, result.reports(), result.num_unfinished())


@app.command()
def purge(
    index: Annotated[Path, typer.Argument(help="INDEX folder.")],
    ids: Annotated[Path, typer.Option(help="Documents: one id a line.")],
    config: ConfigFiles = None,
    settings: Settings = None,
    hardware: Hardware = None,
    address: Address = None,
) -> None:
    """Remove documents and every trace of them: from the current generation, older ones and the work cache.

    Older generations that hold one of them go whole, and so does work that no generation left was made from. RUN folders, which
    quote what they cite, are yours to delete.
    """
    from gpu_rag.index.update import purge_documents, read_ids

    loaded = _index_config(index, hardware, config, settings)
    with _progress() as progress:
        result = purge_documents(index, read_ids(ids), loaded, progress=progress, address=address)
    if result.update is not None:
        typer.echo(f"{result.update.summary()} -> generation {result.update.index.generation.id} of {index}")
    typer.echo(_cleaned(result.cleaned))
    if result.unknown:
        typer.echo(f"{len(result.unknown)} documents were in no generation, first {result.unknown[0]!r}", err=True)
    if result.update is not None:
        _finish(index, result.update.index.reports, result.update.index.num_unfinished())


@app.command()
def gc(
    index: Annotated[Path, typer.Argument(help="INDEX folder.")],
    keep: Annotated[int, typer.Option(min=1, help="Generations to keep, the current one among them.")] = 1,
    work: Annotated[
        bool, typer.Option("--work", help="Also remove work that no generation left needs: of deleted documents, of trials.")
    ] = False,
) -> None:
    """Remove old generations and what only they need; one that a reader has open stays."""
    from gpu_rag.store import collect_garbage, current_id, writer_lock

    current_id(index)  # before the lock, which makes the folder: a wrong path leaves nothing behind
    with writer_lock(index):
        cleaned = collect_garbage(index, keep, work=work)
    typer.echo(_cleaned(cleaned))
    if cleaned.in_use:
        typer.echo(f"in use, so still there: {', '.join(cleaned.in_use)}", err=True)
        raise typer.Exit(EXIT_UNFINISHED)


@app.command()
def answer(
    questions: Annotated[Path, typer.Argument(help="JSONL or Parquet.")],
    index: Annotated[Path, typer.Option(help="INDEX folder.")],
    out: Annotated[Path, typer.Option(help="RUN folder; a rerun resumes it.")],
    system: Annotated[str, typer.Option(help="Name of a file of configs/systems.")] = "embedded",
    ablation: Annotated[str | None, typer.Option(help="Name of a file of configs/ablations.")] = None,
    config: ConfigFiles = None,
    settings: Settings = None,
    hardware: Hardware = None,
    address: Address = None,
    limit: Limit = None,
    retry_listed: RetryListed = False,
) -> None:
    """Answer a file of questions over an index, with citations, or refuse."""
    from gpu_rag.config import QUERY_SECTIONS, load_config
    from gpu_rag.query.run import answer_questions
    from gpu_rag.store import open_generation

    built_with = open_generation(index, verify=False).manifest["config"]
    loaded = load_config(
        hardware=hardware,
        system=system,
        ablation=ablation,
        files=config or (),
        settings=settings or (),
        base={"embed": built_with["embed"]},
        reads=(*QUERY_SECTIONS, "embed", "llm", "run"),
    )
    with _progress() as progress:
        result = answer_questions(
            questions, index, out, loaded,
            system=system, progress=progress, address=address, limit=limit, retry_listed=retry_listed,
        )  # fmt: skip
    outcomes = result.answers.column("outcome").to_pylist()
    typer.echo(f"{outcomes.count('answered')} answered, {outcomes.count('refused')} refused -> {out / 'answers.parquet'}")
    _finish(out, result.reports, result.num_unfinished())


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="RUN folder.")],
    questions: Annotated[Path, typer.Option(help="The questions with their gold answers.")],
) -> None:
    """Write RUN/metrics.json and RUN/report.html, and print the metrics."""
    from gpu_rag.evaluation.run import evaluate_folder

    result = evaluate_folder(run, questions)
    _console().print(result.table)
    typer.echo(f"report: {result.report}")


@app.command()
def report(runs: Annotated[list[Path], typer.Argument(help="Evaluated RUN folders over one corpus.")]) -> None:
    """Print the metrics of several runs side by side."""
    from gpu_rag.evaluation.compare import compare_runs

    _console().print(compare_runs(runs))


@app.command()
def verify(
    index: Annotated[Path, typer.Argument(help="INDEX folder.")],
    hash_: Annotated[bool, typer.Option("--hash", help="Recompute the content hash from all rows; the last line.")] = False,
) -> None:
    """Check every file of the published generation against its manifest; with --hash, also every row against the hash."""
    from gpu_rag.schemas import TABLES
    from gpu_rag.store import open_generation

    generation = open_generation(index)
    files = sum(len(entry["files"]) for entry in generation.manifest["artifacts"].values())
    typer.echo(f"{index}: generation {generation.manifest['id']}, {files} files match their checksums")
    for label, rows in generation.manifest["unfinished"].items():
        typer.echo(f"published with {rows} rows of stage {label} that did not reach a final state")
    if hash_:
        typer.echo(generation.recompute_hash(TABLES))


@app.command()
def estimate(
    corpus: Annotated[Path, typer.Argument(help="A file, or a folder (corpus.jsonl in it, or texts).")],
    questions: Annotated[Path | None, typer.Option(help="JSONL or Parquet; without it the index alone is estimated.")] = None,
    system: Annotated[str, typer.Option(help="Name of a file of configs/systems.")] = "embedded",
    config: ConfigFiles = None,
    settings: Settings = None,
    hardware: Hardware = None,
    limit: Limit = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where the figures go too.")] = None,
) -> None:
    """Print the rows, tokens and GPU-hours that a run would take; starts no engine and keeps nothing."""
    from gpu_rag.config import INDEX_SECTIONS, QUERY_SECTIONS, load_config
    from gpu_rag.evaluation.estimate import estimate_run
    from gpu_rag.evaluation.terminal import estimate_table

    reads = (*INDEX_SECTIONS, *QUERY_SECTIONS, "llm", "run")
    loaded = load_config(hardware=hardware, system=system, files=config or (), settings=settings or (), reads=reads)
    estimated = estimate_run(corpus, loaded, questions=questions, limit=limit)
    console = _console()
    console.print(estimate_table(estimated))
    for note in estimated.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    if json_file is not None:
        _write_figures(json_file, estimated.as_dict())


@app.command()
def doctor() -> None:
    """Say which backends are here and work."""
    from gpu_rag.doctor import check_backends

    failed = False
    for name, works, detail in check_backends():
        typer.echo(f"{'ok  ' if works else 'no  '} {name}: {detail}")
        failed |= not works and name in ("encoder", "ray", "faiss", "bm25s", "numba")
    if failed:
        raise typer.Exit(EXIT_FAILURE)


@bench.command("index")
def bench_index(
    corpus: Annotated[Path, typer.Argument(help="Folder with corpus.jsonl, openie.jsonl beside it if there is one.")],
    json_file: Annotated[Path, typer.Option("--json", help="Where the figures go.")],
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions; medians are reported.")] = 3,
    config: ConfigFiles = None,
    settings: Settings = None,
    limit: Limit = None,
) -> None:
    """Measure embedding against the float32 product rate of this machine and plain SentenceTransformer.encode."""
    from gpu_rag.config import load_config
    from gpu_rag.evaluation.bench_embed import bench_corpus

    loaded = load_config(files=config or (), settings=settings or ())
    typer.echo(_write_figures(json_file, bench_corpus(corpus, loaded, repeats=repeats, limit=limit)))


@bench.command("update")
def bench_update(
    corpus: Annotated[Path, typer.Argument(help="A file, or a folder (corpus.jsonl in it, or texts).")],
    json_file: Annotated[Path, typer.Option("--json", help="Where the figures go.")],
    repeats: Annotated[int, typer.Option(min=1, help="Updates, each of another document; the median is reported.")] = 3,
    config: ConfigFiles = None,
    settings: Settings = None,
    hardware: Hardware = None,
    limit: Limit = None,
) -> None:
    """Measure an update of one document against a rebuild without any cache; both must give the same content hash."""
    from gpu_rag.config import INDEX_SECTIONS, load_config
    from gpu_rag.evaluation.bench_tables import update_table
    from gpu_rag.evaluation.bench_update import bench_update as measure

    reads = (*INDEX_SECTIONS, "llm", "run")
    loaded = load_config(hardware=hardware, files=config or (), settings=settings or (), reads=reads)
    figures = measure(corpus, loaded, repeats=repeats, limit=limit)
    _write_figures(json_file, figures)
    _console().print(update_table(figures))


@bench.command("llm")
def bench_llm(
    questions: Annotated[Path, typer.Argument(help="JSONL or Parquet.")],
    index: Annotated[Path, typer.Option(help="INDEX folder.")],
    json_file: Annotated[Path, typer.Option("--json", help="Where the figures go.")],
    rows: Annotated[int, typer.Option(min=1, help="Questions.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Pairs of measurements; medians are reported.")] = 3,
    system: Annotated[str, typer.Option(help="Name of a file of configs/systems.")] = "lineage",
    config: ConfigFiles = None,
    settings: Settings = None,
) -> None:
    """Measure the select stage against a bare LLM.chat, and what the prefix cache saves in the reading stages."""
    from gpu_rag.config import load_config
    from gpu_rag.evaluation.bench_llm import bench_llm as measure
    from gpu_rag.store import open_generation

    embed = open_generation(index, verify=False).manifest["config"]["embed"]
    loaded = load_config(system=system, files=config or (), settings=settings or (), base={"embed": embed})
    typer.echo(_write_figures(json_file, measure(questions, index, loaded, rows=rows, repeats=repeats)))


@bench.command("ppr")
def bench_ppr(
    json_file: Annotated[Path, typer.Option("--json", help="Where the figures go.")],
    index: Annotated[Path | None, typer.Option(help="INDEX folder; without it a graph is generated.")] = None,
    questions: Annotated[list[Path] | None, typer.Option(help="JSONL or Parquet; with --index; repeatable.")] = None,
    system: Annotated[str, typer.Option(help="Whose graph and resets: a file of configs/systems.")] = "hipporag2",
    nodes: Annotated[int, typer.Option(min=1, help="Of the generated graph.")] = 18_000,
    edges: Annotated[int, typer.Option(min=1, help="Drawn for the generated graph.")] = 66_000,
    skew: Annotated[float, typer.Option(min=0, max=0.99, help="Of its degrees: they fall as rank^-skew.")] = 0.6,
    seed: Annotated[int, typer.Option(help="Of the generated graph.")] = 0,
    passages: Annotated[
        int, typer.Option(min=0, help="First nodes of the generated graph, a seed of every query each.")
    ] = 1_800,
    batch: Annotated[int, typer.Option(min=1, help="Queries at once.")] = 256,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of measurements; medians are reported.")] = 7,
    checked: Annotated[int, typer.Option(min=1, help="Resets whose scores are compared with igraph's.")] = 200,
    damping: Annotated[float, typer.Option(min=0, max=0.999)] = 0.5,
    tol: Annotated[float, typer.Option(help="Bound of the L1 error.")] = 5e-6,
    scaling: Annotated[int, typer.Option(min=0, help="Edges of the largest graph of a scaling series; 0: none.")] = 0,
    plots: Annotated[Path | None, typer.Option(help="Folder for the plots of the series; with --scaling.")] = None,
) -> None:
    """Measure batched personalized PageRank against igraph, scipy, torch and PyG, and against what the machine allows."""
    from gpu_rag.evaluation.bench_graphs import generated_walk, walk_of_index
    from gpu_rag.evaluation.bench_plots import plot_scaling
    from gpu_rag.evaluation.bench_ppr import bench_scaling, bench_walk
    from gpu_rag.evaluation.bench_tables import walk_table

    if plots is not None and not scaling:
        raise InputError("--plots draws the series of --scaling, give that too")
    if index is not None:
        case = walk_of_index(index, questions or (), system, batch)
    else:
        case = generated_walk(nodes, edges, num_queries=batch, skew=skew, seed=seed, num_passages=passages)
    figures = bench_walk(case, damping=damping, tol=tol, pairs=pairs, checked=checked)
    if scaling:
        figures["scaling"] = bench_scaling(damping=damping, tol=tol, skew=skew, seed=seed, largest=scaling, num_queries=batch)
        if plots is not None:
            figures["plots"] = [str(path) for path in plot_scaling(figures["scaling"], plots)]
    _write_figures(json_file, figures)
    _console().print(walk_table(figures))


@bench.command("activation")
def bench_activation(
    json_file: Annotated[Path, typer.Option("--json", help="Where the figures go.")],
    index: Annotated[Path | None, typer.Option(help="INDEX folder; without it arcs are generated.")] = None,
    questions: Annotated[list[Path] | None, typer.Option(help="JSONL or Parquet; with --index; repeatable.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Of the generated graph.")] = 18_000,
    arcs: Annotated[int, typer.Option(min=1, help="Of the generated graph.")] = 17_000,
    skew: Annotated[float, typer.Option(min=0, max=0.99, help="Of its degrees: they fall as rank^-skew.")] = 0.6,
    seed: Annotated[int, typer.Option(help="Of the generated graph.")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Queries at once.")] = 256,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of measurements; medians are reported.")] = 7,
    checked: Annotated[int, typer.Option(min=1, help="Queries that are compared with the references.")] = 100,
    seeds: Annotated[int, typer.Option(min=1, help="Entities that are activated at the start.")] = 3,
    hops: Annotated[int, typer.Option(min=0, help="How far a query's subgraph reaches.")] = 4,
    c: Annotated[float, typer.Option(min=0, max=0.999, help="Rescaling constant.")] = 0.4,
    tau_a: Annotated[float, typer.Option(min=0, help="Activation threshold.")] = 0.5,
    outgoing: Annotated[bool, typer.Option("--outgoing/--both", help="Which way the subgraph follows arcs.")] = False,
) -> None:
    """Measure batched spreading activation against its authors' algorithm in plain Python and numpy."""
    from gpu_rag.evaluation.bench_activation import bench_spreading
    from gpu_rag.evaluation.bench_graphs import activation_of_index, generated_activation
    from gpu_rag.evaluation.bench_tables import activation_table

    if index is not None:
        case = activation_of_index(index, questions or (), batch, seeds)
    else:
        case = generated_activation(nodes, arcs, num_queries=batch, num_seeds=seeds, skew=skew, seed=seed)
    figures = bench_spreading(
        case, hops=hops, c=c, tau_a=tau_a, follow="outgoing" if outgoing else "both", pairs=pairs, checked=checked
    )
    _write_figures(json_file, figures)
    _console().print(activation_table(figures))


def _index_config(index: Path, hardware: str | None, files: list[Path] | None, settings: list[str] | None) -> "Config":
    """Return the config of an index's current generation, with what the options change."""
    from gpu_rag.config import INDEX_SECTIONS, load_config
    from gpu_rag.store import open_generation

    built_with = open_generation(index, verify=False).manifest["config"]
    reads = (*INDEX_SECTIONS, "llm", "run")
    return load_config(hardware=hardware, files=files or (), settings=settings or (), base=built_with, reads=reads)


def _print_governance(generation: "Generation") -> None:
    from gpu_rag.evaluation.terminal import governance_table

    _console().print(governance_table(generation))


def _cleaned(cleaned: "Cleaned") -> str:
    return (
        f"removed {len(cleaned.generations)} generations, {cleaned.artifacts} artifacts, {cleaned.work_rows} rows of work: "
        f"{cleaned.freed_bytes / 1e6:.1f} MB"
    )


def _write_figures(path: Path, figures: dict[str, Any]) -> str:
    """Write figures as JSON and return that."""
    text = json.dumps(figures, indent=1, sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors that a user can act on become one line and an exit code."""
    level = os.environ.get("GPU_RAG_LOG", "WARNING").upper()
    if level not in logging.getLevelNamesMapping():
        _fail(ConfigError(f"GPU_RAG_LOG={level!r} is no log level"), EXIT_WRONG_INPUT)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("gpu_rag").setLevel(level)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app(args=list(arguments) if arguments is not None else None, prog_name="gpu-rag")
    except (InputError, StoreError) as error:
        _fail(error, EXIT_WRONG_INPUT)
    except AwaitingAnswersError as error:
        typer.echo(str(error), err=True)
        sys.exit(EXIT_UNFINISHED)
    except GpuRagError as error:
        _fail(error, EXIT_FAILURE)
    except OSError as error:  # a path that is a file, a folder that is read-only, a full disk: the message names the path
        _fail(error, EXIT_WRONG_INPUT)
    except KeyboardInterrupt:
        typer.echo("interrupted; the same command goes on where it stopped", err=True)
        sys.exit(EXIT_INTERRUPTED)


def _fail(error: Exception, code: int) -> None:
    typer.echo("error: " + " ".join(str(error).split("\n")), err=True)
    sys.exit(code)


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    console = Console(stderr=True)
    if console.is_terminal:
        with TerminalProgress(console) as progress:
            yield progress
    else:
        yield JsonProgress(sys.stdout)


def _console() -> Console:
    """Return where tables are printed: as wide as the terminal, or into a file as wide as they are."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_COLUMNS)


def _finish(out: Path, reports: Sequence[StageReport], num_unfinished: int) -> None:
    """Export and list the rows that did not reach a final state, and exit with 3 if there are any."""
    path = out / "unfinished.jsonl"
    path.unlink(missing_ok=True)
    if not num_unfinished:
        return
    rows: list[dict[str, Any]] = [{"stage": report.label} | row for report in reports for row in report.listed]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    for row in rows[:10]:
        typer.echo(f"{row['stage']} {row['row_id']}: {row['state']}: {row['reason']}", err=True)
    typer.echo(f"{num_unfinished} rows did not reach a final state; all stand in {path}", err=True)
    typer.echo("the same command tries them again (--retry-listed: also those that used up their attempts)", err=True)
    raise typer.Exit(EXIT_UNFINISHED)
