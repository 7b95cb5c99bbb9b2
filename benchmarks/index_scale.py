"""Seconds and peak memory of `gpu-rag index` against the number of documents, by table and plot.

    python benchmarks/index_scale.py --sizes 1000,10000,100000 --out FOLDER

Documents are short and made from templates over a growing stock of names, so that sentences vary and entities grow with the
corpus. Memory is the sum of the proportional set sizes (PSS, shared pages counted once) of the command and all processes under
it, Ray's own included, sampled twice a second from /proc; Linux alone. Further arguments go to `gpu-rag index`.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path

_FIRST = "Ilse Tomas Varvara Edmund Salim Katerina Anna Fuyuki Quorra Brannock Odile Jarek Mirela Hollis Petra Ansel".split()  # noqa: SIM905
_LAST = "Marrow Reed Olshanskaya Carrow Darghami Vassaki Thorley Saegusa Blythe Tenn Harrow Lund Vane Orlo Pike Sorrel".split()  # noqa: SIM905
_PLACE = "Pell Haldreth Quillmouth Ambry Corrow Sele Lefkonisi Verrin Orme Stony Vesper Lull".split()  # noqa: SIM905
_KIND = "Bridge Mill Observatory Harbour Weir Chapel Quarry Lighthouse Viaduct Tannery Museum Works".split()  # noqa: SIM905
_TEXTS = (
    "{thing} was built by {person} in {year}. It lies near {place}.",
    "{person} surveyed {thing} for the {place} Trust. The work ended in {year}.",
    "{thing} closed in {year}, when {person} moved to {place}.",
    "In {year} {person} of {place} bought {thing}.",
)


def write_corpus(path: Path, num_documents: int) -> None:
    """Write a corpus of short documents, the same for the same number."""
    rng = random.Random(num_documents)
    stock = max(16, num_documents // 10)  # people and things: a tenth of the documents each
    with open(path, "w", encoding="utf-8") as file:
        for number in range(num_documents):
            thing = _thing(number % stock if number % 2 else rng.randrange(stock))
            text = _TEXTS[number % len(_TEXTS)].format(
                thing=thing, person=_person(rng.randrange(stock)), place=rng.choice(_PLACE), year=1700 + rng.randrange(300)
            )
            file.write(json.dumps({"doc_id": f"d{number:07d}", "title": thing, "text": text}) + "\n")


def _person(number: int) -> str:
    rest, first = divmod(number, len(_FIRST))
    return f"{_FIRST[first]} {_LAST[rest % len(_LAST)]}{_suffix(rest // len(_LAST))}"


def _thing(number: int) -> str:
    rest, place = divmod(number, len(_PLACE))
    return f"{_PLACE[place]}{_suffix(rest // len(_KIND))} {_KIND[rest % len(_KIND)]}"


def _suffix(number: int) -> str:
    """Return letters that make a name of its own of every number."""
    letters = ""
    while number:
        number, digit = divmod(number, 20)
        letters += "bcdfghjklmnpqrstvwxz"[digit] + "aeiou"[digit % 5]
    return letters


def measure(corpus: Path, index: Path, arguments: list[str]) -> dict[str, float]:
    """Return seconds and peak memory in bytes of one run; raises `CalledProcessError` if it fails."""
    command = [sys.executable, "-c", "from gpu_rag.cli import main; main()", "index", str(corpus), "--out", str(index)]
    started = time.perf_counter()
    with open(index.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen([*command, *arguments], stdout=log, stderr=log)
        peak = 0
        while process.poll() is None:
            peak = max(peak, sum(_pss(pid) for pid in _tree(process.pid)))
            time.sleep(0.5)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return {"seconds": time.perf_counter() - started, "peak_bytes": peak}


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def plot(rows: list[dict[str, float]], path: Path) -> None:
    """Draw seconds and memory against documents, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4), layout="constrained")
    sizes = [row["documents"] for row in rows]
    for axis, name, factor, label in ((axes[0], "seconds", 1.0, "seconds"), (axes[1], "peak_bytes", 1e-9, "peak memory, GB")):
        axis.loglog(sizes, [row[name] * factor for row in rows], marker="o")
        axis.set_xlabel("documents")
        axis.set_ylabel(label)
        axis.grid(visible=True, which="both", alpha=0.3)
    figure.savefig(path)


def main() -> None:
    """Measure every size, write figures.json and scale.svg, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--out", type=Path, required=True)
    options, arguments = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for size in map(int, options.sizes.split(",")):
        corpus, index = options.out / f"corpus-{size}.jsonl", options.out / f"index-{size}"
        write_corpus(corpus, size)
        figures = measure(corpus, index, arguments)
        stages = json.loads((index / "report.json").read_text(encoding="utf-8"))["stages"]
        rows.append({"documents": size, **figures, "stages": {stage["label"]: stage["seconds"] for stage in stages}})
        print(f"{size:>8} documents: {figures['seconds']:8.1f} s, {figures['peak_bytes'] / 1e9:6.2f} GB", flush=True)
        (options.out / "figures.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    plot(rows, options.out / "scale.svg")


if __name__ == "__main__":
    main()
