"""The trials of a search so far: what is shown, `trials.csv`, `best.toml` and `search.png`."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from dualnet._files import read_json, write_csv, write_whole
from dualnet.corpora import NAMES
from dualnet.runs import Run
from dualnet.runs.folder import LEARNT, card_table, tokenizer_file
from dualnet.tuning.job import CORPUS, SEARCH, Job, Parameter
from dualnet.tuning.trial import RUN, TRIALS, Outcome, Task, read_outcome, read_progress

if TYPE_CHECKING:
    from keras_tuner.engine.trial import Trial

EARLY = {"hopeless": ", pruned", "time": ", out of time"}
PLOT = "search.png"
COMPARABLE = ("val_bits_per_byte", "val_bits_per_character", "val_perplexity_per_word")
FIGURES = (*COMPARABLE, "val_not_comparable")
COLUMNS = (
    "trial", "status", "ended", "val_perplexity", "best_epoch", "epochs", "parameters", "seconds",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row(Outcome):
    """One trial of a search, and what it has reached."""

    trial: str  # its number as KerasTuner writes it, e.g. "07"
    drawn: Mapping[str, object]  # values of the searched parameters that are active

    @property
    def has_ended(self) -> bool:
        return self.status in ("completed", "failed")

    @property
    def per_byte(self) -> str:
        """What follows the perplexity in a sentence: the bits per byte, or nothing."""
        bits = self.val_bits_per_byte
        return "" if bits is None else f" ({bits:.3f} bits per byte)"


def read_rows(
    folder: Path, job: Job, trials: Iterable[Trial], running: Collection[str]
) -> list[Row]:
    """Return the rows of KerasTuner's `trials`.

    A process is working on those whose ids are in `running`; any other trial without an
    outcome is unfinished.
    """
    rows = []
    for trial in trials:
        trial_folder = folder / TRIALS / trial.trial_id
        if trial.trial_id in running:
            outcome = read_progress(trial_folder, "running")
        else:
            outcome = read_outcome(trial_folder) or read_progress(trial_folder, "unfinished")
        drawn = job.drawn(trial.hyperparameters.values)
        rows.append(Row(**vars(outcome), trial=trial.trial_id, drawn=drawn))
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


def text_of(value: object) -> str:
    """Return a value as in tables: strings as they are, other types in JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def write_report(folder: Path, job: Job, rows: Sequence[Row]) -> None:
    """Write `trials.csv`, one line per trial, and, once a trial is completed, `best.toml`; fast.

    After `COLUMNS` come `COMPARABLE`, if a trial has these figures, and the parameters of the
    space, empty where inactive, lists and booleans in JSON; a parameter with the name of another
    column is called `space.NAME`. The last column is the first line of the error message.
    """
    searched = [parameter.name for parameter in job.space]
    columns = [*COLUMNS, *(COMPARABLE if any(row.per_byte for row in rows) else ())]
    taken = (*COLUMNS, *COMPARABLE, "message")
    table = [[*columns, *(f"space.{x}" if x in taken else x for x in searched), "message"]]
    for row in rows:
        figures = [getattr(row, column) for column in columns]
        drawn = [text_of(row.drawn[name]) if name in row.drawn else "" for name in searched]
        message, _, _ = row.message.strip().partition("\n")
        table.append([*figures, *drawn, message])
    write_csv(folder / "trials.csv", table)
    if best := best_row(rows):
        write_best(folder, job, best, len(completed_rows(rows)))


def write_plot(folder: Path, job: Job, rows: Sequence[Row]) -> None:
    """Draw `search.png`: the perplexity of the completed trials against each parameter."""
    from dualnet.plots import plot_search

    completed, best = completed_rows(rows), best_row(rows)
    if best is None:
        return
    settings = {
        parameter.name: (
            [_position(parameter, row.drawn.get(parameter.name)) for row in completed],
            [text_of(value) for value in parameter.values],
        )
        for parameter in job.space
    }
    perplexities = [row.val_perplexity or math.nan for row in completed]
    logarithmic = [parameter.name for parameter in job.space if parameter.sampling == "log"]
    title = f"{job.name}: {len(completed)} trials; best: {best.trial}, {best.val_perplexity:.2f}"
    plot_search(settings, perplexities, folder / PLOT, title=title, logarithmic=logarithmic)


def _position(parameter: Parameter, value: object) -> float:
    """Return a value of a range, or the index of one of the choices; nan for None."""
    if isinstance(value, int | float) and not parameter.values:
        return value
    choices = [text_of(choice) for choice in parameter.values]
    return choices.index(text_of(value)) if value is not None else math.nan


# --- the progress, on standard error


class Display:
    """Shows a line for each trial that ends, other than those of `rows` at the beginning."""

    def __init__(self, rows: Sequence[Row], *, show: bool) -> None:
        self.show = show and sys.stderr is not None
        self.shown = {row.trial for row in rows if row.has_ended}

    def update(self, rows: Sequence[Row]) -> None:
        """Show what is new in the rows of all trials so far."""
        for row in rows:
            if row.has_ended and row.trial not in self.shown:
                self.shown.add(row.trial)
                self.say(f"trial {row.trial} {_result(row)}.  {_figures(rows)}")

    def say(self, line: str) -> None:
        """Show a line."""
        if self.show:
            print(line, file=sys.stderr, flush=True)


def _figures(rows: Sequence[Row]) -> str:
    count = collections.Counter(row.status for row in rows)
    text = ", ".join(f"{count[status]} {status}" for status in ("completed", "running", "failed"))
    if best := best_row(rows):
        text += f", best {best.val_perplexity:.2f} (trial {best.trial})"
    return text


def _result(row: Row) -> str:
    if row.status == "failed":
        first, _, _ = row.message.partition("\n")
        return f"failed: {first.rstrip('.')}"
    early = EARLY.get(row.ended, "")
    return f"has validation perplexity {row.val_perplexity:.2f}{row.per_byte}{early}"


# --- the best trial


def write_best(folder: Path, job: Job, row: Row, number: int) -> None:
    """Write `best.toml`, which reproduces the perplexity of trial `row`, with the command to use.

    For a training or a gate it is a card for `dualnet train best.toml`: the trial's card, with
    as many epochs as the trial had. For an evaluation it holds the RUN and the settings. The trial
    is completed, and the best of `number`.
    """
    epoch = "" if row.best_epoch is None else f" after epoch {row.best_epoch}"
    result = f"validation perplexity {row.val_perplexity:.2f}{row.per_byte}{epoch}"
    note = f"Best of {number} trials of job {job.name}: {result}."
    trial = folder / TRIALS / row.trial
    if job.kind == "evaluation":
        search, settings = read_json(folder / SEARCH), Task.read(trial).settings
        table = {"note": note, "run": search["run"], "paper": job.paper, "evaluation": settings}
        command = _evaluate_command(search["run"], search["corpus"], settings)
        commands = [f"{command} --split {split}" for split in ("valid", "test")]
    else:
        table = card_table(Run.open_folder(trial / RUN).card)
        options = _corpus_options(trial / RUN, table["corpus"])
        if job.kind == "gate":
            note += " It is trained with `--weights RUN`, the RUN of the model below the gate."
            options = [*options[:2], "--weights", table["weights"]]  # which has the tokeniser
        table |= {"note": note, "recipe": _recipe_as_trained(table["recipe"], row)}
        commands = [shlex.join(["dualnet", "train", "best.toml", *options, "--output", "RUN"])]
    lines = [note, "To reproduce it:", *(f"  {command}" for command in commands)]
    comment = "".join(f"# {line}\n" for line in lines)
    write_whole(folder / "best.toml", f"{comment}\n{tomli_w.dumps(table)}")


def _corpus_options(run: Path, trained_on: Mapping[str, Any]) -> list[str]:
    """Return the options of `train` that read the corpus as the RUN of a trial did."""
    name, source = trained_on["name"], trained_on["source"]
    is_named = name in NAMES and not Path(source).is_file()
    if not is_named and not Path(source).exists():
        return ["--corpus", "CORPUS"]  # it was made in Python
    options = ["--corpus", name if is_named else source]
    if not is_named or LEARNT & trained_on.keys():  # the very tokens
        options += ["--tokenizer", str(tokenizer_file(run.resolve()))]
    if "documents" in trained_on:
        options += ["--documents", trained_on["documents"]]
    if "fractions" in trained_on:
        options += ["--fractions", *map(str, trained_on["fractions"])]
    return options


def _recipe_as_trained(recipe: Mapping[str, Any], row: Row) -> dict[str, object]:
    """Return `recipe` with the epochs that the trial had, which may have ended early."""
    ended_early = row.epochs is not None and row.ended != "all epochs"
    # A linear decay is planned by the epochs; a recipe cannot end within its fine-tuning.
    if ended_early and not recipe.get("linear_decay") and row.epochs <= recipe["epochs"]:
        return {**recipe, "epochs": row.epochs, "finetune": "none"}
    return dict(recipe)


def _evaluate_command(run: str, corpus: str, settings: Mapping[str, object]) -> str:
    """Return the command that evaluates `run` with `settings`, those of a trial."""
    from dualnet.tuning.trial_process import evaluation_of

    cache, request = evaluation_of(settings)
    changed = request.changed()
    words = ["dualnet", "evaluate", run]
    if corpus:
        words += ["--corpus", "CORPUS" if corpus == CORPUS else corpus]
    if "rule" in changed:
        words += ["--dynamic", "--rule", changed.pop("rule")]
    if changed:
        words += ["--set", *(f"{name}={text_of(value)}" for name, value in changed.items())]
    if cache.is_used:
        values = cache.arguments().items()  # all: the default of the others is the published one
        words += ["--cache"]
        words += [f"{name.removeprefix('cache_')}={text_of(value)}" for name, value in values]
    return shlex.join(words)
