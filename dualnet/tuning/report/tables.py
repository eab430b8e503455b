"""The trials of a search so far, and its tables: `trials.csv`, and `best.toml`."""

import dataclasses
import json
import math
import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from dualnet._files import read_json, write_csv, write_whole
from dualnet.corpora import NAMES
from dualnet.runs import Run
from dualnet.runs.folder import LEARNT, READ_AS, card_table, tokenizer_file
from dualnet.tuning.job import CORPUS, SEARCH, Job
from dualnet.tuning.trial import RUN, TRIALS, read_outcome, read_progress, read_task

RESULTS = "results.json"
COMPARABLE = ("val_bits_per_byte", "val_bits_per_character", "val_perplexity_per_word")
FIGURES = (*COMPARABLE, "val_not_comparable")
COLUMNS = (
    "trial", "status", "ended", "val_perplexity", "best_epoch", "epochs", "parameters", "seconds",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One trial of a search."""

    trial: str  # its number as KerasTuner writes it, e.g. "07"
    status: str  # "completed", "failed", "running" or "unfinished"
    drawn: dict[str, Any]  # values of the searched parameters that are active
    val_perplexity: float | None = None  # the lowest so far; None before the first epoch
    val_bits_per_byte: float | None = None  # the figures of `Comparable`, of a completed trial
    val_bits_per_character: float | None = None
    val_perplexity_per_word: float | None = None
    val_not_comparable: str | None = None  # why there are none
    best_epoch: int | None = None  # with that perplexity, from 1; None for an evaluation
    epochs: int | None = None  # number so far; None for an evaluation
    parameters: int | None = None  # number of weights of the model
    seconds: float | None = None  # of a trial that has not ended, of its epochs only
    ended: str = ""  # of a completed trial: "all epochs", "hopeless" (pruned) or "time"
    message: str = ""  # why a failed trial failed

    @property
    def has_ended(self) -> bool:
        return self.status in ("completed", "failed")

    @property
    def per_byte(self) -> str:
        """What follows the perplexity in a sentence: the bits per byte, or nothing."""
        bits = self.val_bits_per_byte
        return "" if bits is None else f" ({bits:.3f} bits per byte)"


def read_rows(folder: Path, job: Job, trials: Iterable[Any], running: Collection[str]) -> list[Row]:
    """Return the rows of KerasTuner's `trials`.

    A process is working on those whose ids are in `running`; any other trial without an
    outcome is unfinished.
    """
    names = {field.name for field in dataclasses.fields(Row)}
    rows = []
    for trial in trials:
        trial_folder = folder / TRIALS / trial.trial_id
        if trial.trial_id in running:
            fields = {**read_progress(trial_folder), "status": "running"}
        elif outcome := read_outcome(trial_folder):
            fields = outcome
        elif trial.status == "COMPLETED":
            fields = {"status": "completed", "val_perplexity": trial.score}
        elif trial.status in ("FAILED", "INVALID"):
            fields = {"status": "failed", "message": getattr(trial, "message", None)}
        else:
            fields = {**read_progress(trial_folder), "status": "unfinished"}
        fields = {key: fields[key] for key in names & fields.keys() if fields[key] is not None}
        fields |= {"trial": trial.trial_id, "drawn": job.drawn(trial.hyperparameters.values)}
        rows.append(Row(**fields))
    return rows


def best_row(rows: Iterable[Row]) -> Row | None:
    """Return the completed trial with the lowest perplexity, the first of equals, or None."""
    return min(completed_rows(rows), key=lambda row: row.val_perplexity or 0.0, default=None)


def completed_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the completed trials with a finite perplexity."""
    return [
        row
        for row in rows
        if row.status == "completed" and math.isfinite(row.val_perplexity or math.nan)
    ]


def text_of(value: Any) -> str:
    """Return a value as in tables: strings as they are, other types in JSON."""
    return value if isinstance(value, str) else json.dumps(value)


# --- tables


def write_tables(folder: Path, job: Job, rows: Sequence[Row]) -> None:
    """Write `trials.csv`, one line per trial, and, once a trial is completed, `best.toml`; fast.

    After `COLUMNS` come `COMPARABLE`, if a trial has these figures, and the parameters of the
    space, empty where inactive, lists and booleans in JSON; a parameter with the name of another
    column is called `space.NAME`. The last column is the first line of the error message.
    """
    names = [parameter.name for parameter in job.space]
    taken = (*COLUMNS, *COMPARABLE, "message")
    known = [*COLUMNS, *(COMPARABLE if any(row.per_byte for row in rows) else ())]
    columns = [f"space.{name}" if name in taken else name for name in names]
    table = [[*known, *columns, "message"]]
    for row in rows:
        fields = [getattr(row, column) for column in known]
        drawn = [text_of(row.drawn[name]) if name in row.drawn else "" for name in names]
        message = next(iter(row.message.strip().splitlines()), "").strip()
        # A path in a message may not be valid UTF-8.
        table.append([*fields, *drawn, message.encode("utf-8", "replace").decode()])
    write_csv(folder / "trials.csv", table)
    if best := best_row(rows):
        write_best(folder, job, best, len(rows))


def write_best(folder: Path, job: Job, row: Row, number: int) -> None:
    """Write `best.toml`, which reproduces the perplexity of trial `row`, with the command to use.

    For a training or a gate it is a card for `dualnet train best.toml`: the trial's card, with
    as many epochs as the trial had and without settings that have no effect, such as the rank of
    a Mogrifier of no rounds. For an evaluation it holds the RUN and the settings. The
    trial is completed, and the best of `number`.
    """
    epoch = "" if row.best_epoch is None else f" after epoch {row.best_epoch}"
    result = f"validation perplexity {row.val_perplexity:.2f}{row.per_byte}{epoch}"
    name = " ".join(job.name.split())  # a comment is one line
    note = f"Best of {number} trials of job {name}: {result}."
    trial_folder = folder / TRIALS / row.trial
    settings = read_task(trial_folder).settings
    search = read_json(folder / SEARCH)
    run, corpus = search["run"], search["corpus"]
    written = folder / CORPUS if corpus == CORPUS else None
    corpus = "CORPUS" if written else corpus  # it may have no name or path
    if job.kind == "evaluation":
        paper = {"paper": job.paper} if job.paper else {}
        table = {"note": note, "run": run, **paper, "evaluation": settings}
        command = _evaluate_command(run, corpus, settings)
        split = " --split test" * os.path.isfile(corpus)  # a file is read whole without it
        on_test = f"On the test split:\n  {command}{split}"
        comment = f"To reproduce it:\n  {command} --split valid\n{on_test}"
    else:
        from dualnet.tuning.report.effects import config_with_effect, recipe_with_effect

        used = card_table(Run.open_folder(trial_folder / RUN).card)
        weights = ""
        if job.kind == "gate":
            note += " It is trained with `--weights RUN`, the RUN of the model below the gate."
            weights = " --weights " + shlex.quote(used["weights"])
        recipe = _recipe_as_trained(used["recipe"], row)
        used["recipe"] = recipe_with_effect(recipe, searched=row.drawn)
        used["config"] = config_with_effect(used["builder"], used["config"], searched=row.drawn)
        keys = [key for key in ("name", "builder", "paper") if key in used]
        table = {**{key: used.pop(key) for key in keys}, "note": note, **used}
        place = "name" if used["corpus"]["source"] == "embedded" else "source"
        options = ["--corpus", corpus or used["corpus"][place]]  # a gate's is that of its RUN
        if written and not weights:
            options = _corpus_options(written, used["corpus"]) or options
        words = f"{shlex.join(options)}{weights} --output RUN"
        comment = f"To reproduce it:\n  dualnet train best.toml {words}"
    lines = [f"# {line}\n" for line in [note, *comment.splitlines()]]
    write_whole(folder / "best.toml", "".join(lines) + "\n" + tomli_w.dumps(table))


def _corpus_options(written: Path, table: Mapping[str, Any]) -> list[str]:
    """Return the options of `train` that read a corpus as the trials did, from its table.

    [] if it is read by default, or is a `Corpus` that has no path.
    """
    read_as = {key: table[key] for key in READ_AS if key in table}
    is_named = table["name"] in NAMES and not Path(table["source"]).is_file()
    if not read_as and (is_named or not Path(table["source"]).exists()):
        return []
    options = ["--corpus", table["name"] if is_named else table["source"]]
    if not is_named or LEARNT & read_as.keys():  # the very units
        options += ["--tokenizer", str(tokenizer_file(written.resolve()))]
    if "documents" in read_as:
        options += ["--documents", read_as["documents"]]
    if "fractions" in read_as:
        options += ["--fractions", *map(str, read_as["fractions"])]
    return options


def _recipe_as_trained(recipe: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """Return `recipe` with the epochs that the trial had, which may have ended early."""
    if row.epochs is None or row.ended == "all epochs" or recipe.get("linear_decay"):
        return dict(recipe)  # a linear decay is planned by the epochs
    if row.epochs <= recipe["epochs"]:  # it ended before its fine-tuning
        return {**recipe, "epochs": row.epochs, "finetune": "none"}
    if recipe["finetune"] == "once":
        return {**recipe, "finetune_epochs": row.epochs - recipe["epochs"]}
    # A recipe cannot end within a later round; it reaches the perplexity before.
    return dict(recipe)


def _evaluate_command(run: str, corpus: str, settings: Mapping[str, Any]) -> str:
    """Return the command that evaluates `run` on the test split with `settings`."""
    from dualnet.builders.stations import WRAPPERS

    words = ["dualnet", "evaluate", run, *(["--corpus", corpus] if corpus else [])]
    left = dict(settings)
    cache = {name: left.pop(name, WRAPPERS[name]) for name in WRAPPERS if name.startswith("cache_")}
    if left.pop("evaluation", "static") == "dynamic":
        words += ["--dynamic", "--rule", left.pop("rule", "nadam")]
        if not left.get("clipnorm"):
            left.pop("clipnorm", None)  # 0 means none
    for name in ("temperature", "sequence_length", "batch_size", "window"):
        if name in left:
            words += [f"--{name.replace('_', '-')}", text_of(left.pop(name))]
    if left:
        words += ["--set", *(f"{name}={text_of(value)}" for name, value in left.items())]
    if cache["cache_size"]:
        words.append("--cache")  # with all values: the default of the others is the published one
        words += [f"{name.removeprefix('cache_')}={text_of(cache[name])}" for name in cache]
    return shlex.join(words)
