"""The table of a case, printed and kept as CSV."""

from __future__ import annotations

import csv
import datetime
import io
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from dualnet._files import write_whole
from dualnet.cli.console import Table
from peers.cases import CASES, Case, described
from peers.products import parameters

PEERS = ("torch", "keras")
COLUMNS = (
    "setting", "seconds", "iqr", "repeats", "cores", "threads", "tokens_per_second", "peak_mb",
    "import_mb", "share", "ratio", "first_loss", "start_seconds", "note",
)  # fmt: skip
FULL = 0.75  # of the cores, below which a peer may have been held back


def threads() -> int:
    """Return the number of cores that this process and its workers may use."""
    return len(os.sched_getaffinity(0))


def processor() -> str:
    """Return what the machine says that its processor is."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """Return the commit of this checkout, with a + where files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+"]
    found = subprocess.run(command, capture_output=True, text=True)
    return found.stdout.strip() or "no commit"


def conditions(case: Case) -> str:
    about = described(case)
    config = about["config"]
    size = f"batch {case.batch or 'best'}, time {case.time or '2048 / batch'}"
    what = {
        "training": f"a training step with {about['recipe']['optimizer']}",
        "dynamic": "dynamic evaluation with nadam, a segment",
        "evaluation": f"evaluation of {case.tokens:,} tokens",
    }[case.kind]
    return (
        f"{what}; {case.model}, {size}, vocabulary {config['vocabulary_size']:,}, "
        f"{parameters(config):,} weights{'; ' * bool(case.note)}{case.note}"
    )


def machine(found: list) -> str:
    """Return the processor, the threads, and the versions that the workers told."""
    versions: dict[str, str] = {}
    for each in found:
        versions |= each.facts.get("versions", {})
    versions = {key: versions[key] for key in versions if key not in ("backend", "dualnet")}
    told = " ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return (
        f"{processor()}, {threads()} threads of {os.cpu_count()} cores; {told}; dualnet at "
        f"{commit()}"
    )


def tokens_of(case: Case) -> int:
    """Return the tokens that the seconds of a setting are for."""
    return case.tokens or case.batch * case.time


def header(case: Case, found: list, limits: dict, idle: float, options: Any) -> list[str]:
    """Return the conditions, the versions, the limits and the ratios, one line each."""
    lines = [
        f"{datetime.date.today()}, {case.name}: {conditions(case)}",
        machine(found),
        f"median of {options.repeats} rounds in turn, after one that does not count and the steps "
        f"that compile; waiting workers took {100 * idle:.2f} % of a core",
        "dualnet-tensorflow runs with TF_NUM_INTEROP_THREADS=1, all others without it; TensorFlow "
        "with TF_ENABLE_ONEDNN_OPTS=1, dualnet's and stock Keras's; bfloat16: "
        "weights, their sums and logits float32",
        "ratio: seconds of the setting over those of dualnet's fastest; import_mb: memory after "
        "the imports; start_seconds: from there to the last warm-up, while others started, too",
    ]
    for (precision, rows), each in sorted(limits.items()):
        lines.append(
            f"limit {precision}, batch {rows}: {each.flop / 1e9:,.2f} GFLOP; "
            f"{each.seconds:.4g} s each product at the best rate for its shape (share)"
        )
        for product, number, rate, by in each.rows:
            lines.append(
                f"  {number} x ({product.rows}, {product.inner}) @ ({product.inner}, "
                f"{product.columns}): {rate / 1e9:,.0f} GFLOP/s by {by}"
            )
    return lines + ratios(found)


def held_back(peer_cores: float, own_cores: float, cores: int) -> bool:
    """Say if a peer used less than three quarters of the `cores`, and dualnet more."""
    return peer_cores < FULL * cores <= own_cores


def ratios(found: list) -> list[str]:
    """Return how many times as fast dualnet is as its peers, and where it takes less memory."""
    done = [each for each in found if each.seconds]
    lines = []
    for name, precisions in (
        ("float32 against float32", ("float32",)),
        ("best against best", ("float32", "bfloat16")),
    ):
        fitting = [each for each in done if each.setting.precision in precisions]
        ours = [each for each in fitting if each.setting.library == "dualnet"]
        peers = [each for each in fitting if each.setting.library != "dualnet"]
        for family in ("", "torch", "torch-eager", "keras"):
            own = [each for each in peers if each.setting.name.startswith(family)]
            if not ours or not own:
                continue
            us = min(ours, key=lambda each: each.median)
            peer = min(own, key=lambda each: each.median)
            if held_back(peer.cores, us.cores, threads()):
                lines.append(
                    f"{name}, {family or 'any peer'}: no ratio, {peer.setting.name} used "
                    f"{peer.cores:.2f} of {threads()} cores and {us.setting.name} {us.cores:.2f}"
                )
                continue
            lines.append(
                f"{name}, {family or 'any peer'}: {peer.median / us.median:.2f} x as fast "
                f"({us.setting.name} {us.median:.4g} s, {peer.setting.name} {peer.median:.4g} s); "
                f"memory above the imports {above(us) / above(peer):.2f} x"
            )
    return lines


def above(measured: Any) -> float:
    """Return the peak memory of a setting in MB, less what its imports take."""
    return float(measured.peak_mb - measured.facts["import_mb"])


def rows(case: Case, found: list, limits: dict, repeats: int) -> list[dict[str, Any]]:
    """Return one row for each setting, the ratio to the fastest of dualnet among them."""
    ours = [each for each in found if each.setting.library == "dualnet" and each.seconds]
    best = min(ours, key=lambda each: each.median, default=None)
    made = []
    for each in found:
        fewer = f"only {len(each.seconds)} repeats" if len(each.seconds) < repeats else ""
        row: dict[str, Any] = {"setting": each.setting.name, "note": each.error}
        made.append(row)
        if not each.seconds:
            continue
        bound = limits[each.setting.precision, each.facts["rows"]]
        ratio = ""
        if best and not held_back(each.cores, best.cores, threads()):
            ratio = f"{each.median / best.median:.2f}"
        row |= {
            "seconds": f"{each.median:.5g}",
            "iqr": f"{each.spread:.3g}",
            "repeats": len(each.seconds),
            "tokens_per_second": f"{tokens_of(case) / each.median:.0f}",
            "peak_mb": f"{each.peak_mb:.0f}",
            "import_mb": f"{each.facts['import_mb']:.0f}",
            "share": f"{bound.seconds / each.median:.3f}",
            "cores": f"{each.cores:.2f}",
            "threads": each.threads,
            "ratio": ratio,
            "first_loss": f"{each.facts['first_loss']:.3f}",
            "start_seconds": f"{each.facts['start_seconds']:.0f}",
            "note": "; ".join(filter(None, [fewer, *each.facts["notes"], each.error])),
        }
    return made


def table(rows: list[dict[str, Any]], lines: list[str]) -> str:
    cells = [[str(row.get(name, ""))[:100] for name in COLUMNS] for row in rows]
    return "\n".join([str(Table(COLUMNS, cells)), *lines])


def keep(folder: Path, case: Case, lines: list[str], rows: list[dict[str, Any]]) -> Path:
    """Write the table to `folder` as CSV, its conditions before it; return the file."""
    text = io.StringIO()
    text.writelines(f"# {line}\n" for line in lines)
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.date.today()}-speed-{case.name}.csv"
    write_whole(path, text.getvalue().encode())
    return path


def summary(folder: Path) -> str:
    """Return the last table kept of each case, in a row of Markdown each."""
    lines = [
        "| case | dualnet, float32 | cores | share of the limit | fastest PyTorch | cores "
        "| fastest stock Keras | times as fast as PyTorch, as stock Keras | memory beside PyTorch "
        "| times as fast, best precision of each |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in CASES:
        kept = sorted(folder.glob(f"????-??-??-speed-{name}.csv"))
        if not kept:
            continue
        text = kept[-1].read_text("utf-8").splitlines()
        table = csv.DictReader(line for line in text if not line.startswith("#"))
        rows = [row for row in table if row["seconds"]]
        own, torch, stock = (_fastest(rows, each, "float32") for each in ("dualnet", *PEERS))
        best, best_torch = _fastest(rows, "dualnet", ""), _fastest(rows, "torch", "")
        on_jax = ", on JAX" if "jax" in own["setting"] else ""
        cells = [
            f"`{name}`{on_jax}",
            _time(own),
            own["cores"],
            f"{100 * float(own['share']):.0f} %",
            _time(torch),
            torch.get("cores", ""),
            _time(stock),
            ", ".join(_ratio(own, peer) for peer in (torch, stock) if peer),
            f"{_above(own) / _above(torch):.2f}" if torch else "",
            _ratio(best, best_torch) if _fastest(rows, "torch", "bfloat16") else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _time(row: dict[str, str]) -> str:
    return f"{float(row['seconds']):.3g} ({float(row['iqr']):.1g})" if row else ""


def _ratio(own: dict[str, str], peer: dict[str, str]) -> str:
    """Return how many times as fast `own` is, or "-" where the peer was held back."""
    return f"{float(peer['seconds']) / float(own['seconds']):.2f}" if peer["ratio"] else "-"


def _above(row: dict[str, str]) -> float:
    return float(row["peak_mb"]) - float(row["import_mb"])


def _fastest(rows: list[dict[str, str]], library: str, precision: str) -> dict[str, str]:
    """Return the fastest of a library's rows in a precision, or in any; {} without one."""
    fitting = [
        row for row in rows if row["setting"].startswith(library) and precision in row["setting"]
    ]
    return min(fitting, key=lambda row: float(row["seconds"]), default={})
