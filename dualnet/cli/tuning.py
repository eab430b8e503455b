"""The commands `jobs` and `tune`: searches over the jobs in `tuning/`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from dualnet import zoo
from dualnet.cli.console import (
    check_overrides,
    comparison,
    print_table,
    quietly,
    settings_of,
    silence,
)
from dualnet.cli.early import check_search, reading


def jobs(options: argparse.Namespace) -> None:
    from dualnet.tuning import list_jobs, load_job
    from dualnet.tuning.job_files import describe

    if options.name is not None:
        if zoo.is_file(options.name):
            quietly("dualnet.training")  # a job of your own is checked with it
        job = load_job(options.name)
        print(json.dumps(dataclasses.asdict(job)) if options.json else describe(job))
    elif options.json:
        print(json.dumps(list_jobs()))
    else:
        table = [load_job(name) for name in list_jobs()]
        rows = [[job.name, job.kind, job.tuner, str(len(job.space)), job.table] for job in table]
        print_table(["job", "kind", "tuner", "searched", "source"], rows)


def tune(options: argparse.Namespace) -> None:
    settings = settings_of(options.set)
    check_search(options)
    with silence():  # starts no backend: the devices are for the trials
        from dualnet.tuning import search
        from dualnet.tuning.report.tables import RESULTS
    check_overrides(settings, "the model, its training or its evaluation", search, "tune")
    names = (
        "output", "tuner", "max_trials", "max_hours", "max_hours_per_trial", "workers", "seed",
        "resume", "checkpoint_steps",
    )  # fmt: skip
    arguments = {name: getattr(options, name) for name in names}
    arguments |= {"run": options.run_folder, "progress": not options.quiet, **reading(options)}
    tuner = search(options.job, options.corpus, **arguments, **settings)
    if tuner.is_worker:
        worker = {"worker": tuner.tuner_id}
        print(json.dumps(worker) if options.json else "The chief has no more trials.")
        return
    results = json.loads((Path(options.output) / RESULTS).read_text("utf-8"))
    if options.json:
        print(json.dumps(results))
    else:
        _print_results(results, options.output)


def _print_results(results: dict[str, Any], folder: str) -> None:
    counts = ", ".join(f"{count} {status}" for status, count in results["trials"].items())
    print(f"{results['job']}: {counts}")
    best = results["best"]
    epoch = f" after epoch {best['best_epoch']}" if best["best_epoch"] else ""
    print(f"best: trial {best['trial']}, validation perplexity {best['val_perplexity']:.2f}{epoch}")
    print(comparison(best, "val_"))
    for key, value in best["settings"].items():
        print(f"  {key} = {json.dumps(value)}")
    if "comparison" in results:
        print()
        has_bits = any(row["test_bits_per_byte"] is not None for row in results["comparison"])
        rows = [
            [row["evaluation"], row["when"], _number(row["valid_perplexity"]),
             _number(row["test_perplexity"]), *[_number(row["test_bits_per_byte"], 3)] * has_bits,
             row.get("message", "")]
            for row in results["comparison"]
        ]  # fmt: skip
        bits = ["test, bits per byte"] * has_bits
        print_table(["evaluation", "", "validation", "test", *bits, ""], rows)
    left_out = results.get("left_out", {})
    plots = [
        name for name in ("parallel_coordinates.png", "importance.png") if name not in left_out
    ]
    print(f"Saved in {folder}: trials.csv, best.toml, {', '.join(plots)}, TensorBoard's HParams")
    for name, reason in left_out.items():
        print(f"No {name}: {reason}.")


def _number(figure: float | None, digits: int = 2) -> str:
    return "-" if figure is None else f"{figure:.{digits}f}"
