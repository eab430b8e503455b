"""The commands `jobs` and `tune`: searches over the jobs in `tuning/`."""

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dualnet._fields import field
from dualnet._files import check_new, read_json
from dualnet.cli.command import Options, argument
from dualnet.cli.console import Result, Table, comparison, silence
from dualnet.cli.options import Reading, Resuming, check_corpus, open_language_model
from dualnet.runs.folder import RESULTS
from dualnet.tuning.job import CORPUS, JOB, Searching, list_jobs, load_job, text_of


class Jobs(Options):
    """Options of `jobs`."""

    name: str | None = argument(None, nargs="?", metavar="JOB")
    """Name of a job, or the path of your own (.toml)."""


class Tune(Reading, Searching, Resuming):
    """Options of `tune`."""

    job: str = argument(metavar="JOB")
    """Name of a job (see 'dualnet jobs'), or the path of your own (.toml)."""

    run_folder: str | None = field(None, flags=["--run"], metavar="RUN")
    """RUN folder for a job that tunes a gate or an evaluation."""

    output: str = field(metavar="DIR")
    """Folder to write, new or empty."""


def jobs(options: Jobs) -> Result:
    """List the published searches, or print the file of one.

    Examples:
        dualnet jobs dual_table1
    """
    if options.name is not None:
        job = load_job(options.name)
        return Result(dataclasses.asdict(job), text_of(options.name).rstrip())
    rows = [
        [job.name, job.kind, job.tuner, len(job.space), job.table]
        for job in map(load_job, list_jobs())
    ]
    return Result(list_jobs(), Table(["job", "kind", "tuner", "searched", "source"], rows))


def tune(options: Tune) -> Result:
    """Search for good settings with KerasTuner.

    Examples:
        dualnet tune dual_table1 --corpus ptb --output searches/dual --max-trials 20
    """
    load_job(options.job)  # refuses a mistake before Keras is loaded
    run = options.run_folder
    if run is not None:
        run = str(open_language_model(run, name="run_folder").path)
    if not options.resume and "KERASTUNER_TUNER_ID" not in os.environ:
        check_new(Path(options.output), may_hold=(JOB, CORPUS))
    if "chief" in os.environ.get("KERASTUNER_TUNER_ID", "chief"):  # a worker needs no corpus
        check_corpus(options.corpus, options.reading(), resume=options.resume)
    with silence():  # starts no backend: the devices are for the trials
        from dualnet.tuning import search
    arguments = options.arguments_of("job", "run_folder")
    tuner = search(options.job, options.corpus, run=run, **arguments)
    if tuner.is_worker:
        return Result({"worker": tuner.tuner_id}, "The chief has no more trials.")
    results = read_json(Path(options.output) / RESULTS)
    return Result(results, *_lines(results, options.output))


def _lines(results: dict[str, Any], folder: str) -> Iterator[str]:
    """Yield the lines of the results of a search."""
    counts = ", ".join(f"{count} {status}" for status, count in results["trials"].items())
    yield f"{results['job']}: {counts}"
    best = results["best"]
    epoch = f" after epoch {best['best_epoch']}" if best["best_epoch"] else ""
    yield f"best: trial {best['trial']}, validation perplexity {best['val_perplexity']:.2f}{epoch}"
    yield comparison(best, "val_")
    for key, value in best["settings"].items():
        yield f"  {key} = {json.dumps(value)}"
    yield f"Saved in {folder}: trials.csv, best.toml and search.png"
