"""Trains the models of docs/results.md and docs/claims.md, one after another, and measures them.

Usage: DUALNET_DATA=FOLDER_WITH_ptb_multi30k_AND_prose python benchmarks/published.py OUTPUT
       [--group NAME ...] [--set KEY=VALUE ...] [--done benchmarks/results/FILE.csv ...]

The queue is benchmarks/published.toml. A run over another one is a gate on it, and one over several
an ensemble. What `then` names is measured once a run is trained: dynamic evaluation, its rate found
on valid, a cache, or how unequally experts are used. After each run, OUTPUT holds `published.csv`,
one row per epoch and run, and one of results, with the hours of processor time. A model that
translates is measured at the end: its RUN holds the translations of valid and test, with a beam of
5, and `bleu.json`, in both protocols. Groups that choose settings stop at the perplexities on
valid. Ctrl-C or SIGTERM finishes the step under way, saves and stops; the same command resumes,
also after a kill.
Several commands may share OUTPUT, one for each core: none takes a run that another has. One that
is started with `nice` yields to all other work, also where Linux shares cores by session.
`--set` overrides the queue: `--set dtype_policy=float32` is for a processor on which bfloat16 is
slower, `--set epochs=1` for a first look in an OUTPUT of its own. What a file of `--done`, an
earlier `published.csv`, has whole is copied, and not run again unless a gate or an ensemble needs
it.

On a GPU, put KERAS_BACKEND=jax in front, and `timeout 25m` if there is no more time than that.
Models that leave it idle can share it, a command each, with XLA_PYTHON_CLIENT_MEM_FRACTION=0.15.
"""

import contextlib
import csv
import io
import json
import os
import shutil
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")  # a resumed run is then bit-equal

import filelock

from dualnet import adaptation, analysis, builders, corpora, evaluation, generation, runs, training
from dualnet._files import write_whole
from dualnet.cli.command import settings_of
from dualnet.evaluation.translations import check_packages
from dualnet.training.interrupts import Stopped

QUEUE = Path(__file__).with_suffix(".toml")
COLUMNS = [
    "group", "run", "epoch", "perplexity", "val_perplexity", "seconds", "valid_perplexity",
    "test_perplexity", "core_hours", "evaluation", "learning_rate", "parameters", "dtype_policy",
    "valid_bleu", "test_bleu", "valid_bleu_multi30k", "test_bleu_multi30k", "valid_variation",
    "test_variation",
]  # fmt: skip
BEAM = 5


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training of the queue.

    Attributes:
        model: Name of the model in the zoo.
        seed: Random seed of weights and dropout masks.
        settings: Arguments of the builder or the recipe that override the card, `epochs` too.
        label: Name of the run in its group; default `model`.
        over: Labels of runs of the group: the one that a gate stands on, or those of an ensemble,
            "LABEL seed N" where the seed is another.
        then: Names of EVALUATIONS, measured after training.
    """

    group: "Group"
    model: str
    seed: int
    settings: dict[str, Any]
    label: str = ""
    over: tuple[str, ...] = ()
    then: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.label or self.model} seed {self.seed}"

    def folder(self, output: Path) -> Path:
        return output / self.group.name / self.name.replace(" ", "-")

    def history(self, output: Path) -> list[dict[str, str]]:
        """Return the rows of metrics.csv, one per epoch."""
        try:
            with (self.folder(output) / "metrics.csv").open(newline="", encoding="utf-8") as file:
                return list(csv.DictReader(file))
        except FileNotFoundError:
            return []

    def results(self, output: Path) -> dict[str, Any]:
        """Return what was measured of a finished run, else {}."""
        results = _read(self.folder(output) / "results.json")
        if not results or not self.group.translates:
            return results
        bleu = _read(self.folder(output) / "bleu.json")
        return {**results, **bleu} if bleu else {}

    def evaluations(self, output: Path) -> dict[str, dict[str, float]]:
        """Return what was measured after training, by the names of `then`."""
        return _read(self.folder(output) / "evaluations.json")

    def is_finished(self, output: Path) -> bool:
        if self.group.chooses:
            return len(self.history(output)) >= self.settings["epochs"]
        return bool(self.results(output)) and {*self.then} <= self.evaluations(output).keys()

    def is_whole_in(self, done: dict[tuple[str, str], Any]) -> bool:
        """Return whether earlier tables have all figures of this run."""
        rows = done.get((self.group.name, self.name), [])
        if self.group.chooses:
            return len(rows) >= self.settings["epochs"]
        ended = any(row["test_perplexity"] for row in rows)
        return ended and {*self.then} <= {row.get("evaluation") for row in rows}

    def best_rate(self, done: dict[tuple[str, str], Any]) -> float:
        """Return its own rate, or that of "LABEL at RATE" in group `rates` that ends lowest."""
        ends = {
            float(name.split(" at ")[1].split()[0]): float(rows[-1]["val_perplexity"])
            for (group, name), rows in done.items()
            if group == self.group.rates.name and name.startswith(f"{self.label or self.model} at ")
        }
        return self.settings.get("learning_rate") or min(ends, key=ends.get)

    def below(self) -> list["Run"]:
        """Return the runs that this one stands on."""
        names = [name if " seed " in name else f"{name} seed {self.seed}" for name in self.over]
        return [run for run in self.group.runs if run.name in names]

    def names(self) -> set[str]:
        """Return the names of the run and of all that it stands on."""
        return {self.name}.union(*(run.names() for run in self.below()))

    def train(self, output: Path) -> None:
        """Train the run, and measure it unless its group chooses settings."""
        folder = self.folder(output)
        corpus = self.group.load()
        resume = (folder / "card.toml").is_file()
        settings = {k: v for k, v in self.settings.items() if not resume or k == "epochs"}
        if self.group.rates and not resume:
            settings["learning_rate"] = self.best_rate(rows_of([output / "published.csv"]))
        settings |= {"evaluate": not self.group.chooses, "seed": self.seed, "resume": resume}
        below = [run.folder(output) for run in self.below()]
        if _read(folder / "results.json"):
            pass
        elif len(below) > 1:
            combine(below, folder, self.group.splits())
        elif below:
            training.train_gate(below[0], corpus, output=folder, **settings)
        else:
            training.train(self.model, corpus, output=folder, **settings)
        if self.group.chooses:
            return
        for name in self.then:
            evaluate(folder, name, self.group.splits())
        if self.group.translates:
            translate(folder, corpus)

    @contextlib.contextmanager
    def timed(self, output: Path) -> Iterator[None]:
        """Add the processor time of the context to that of the run, also where it is stopped."""
        began = time.process_time()
        try:
            yield
        finally:
            file = self.folder(output) / "processor.json"
            seconds = _read(file).get("seconds", 0.0) + time.process_time() - began
            if file.parent.is_dir():
                _write(file, {"seconds": seconds})

    def core_hours(self, output: Path) -> float | None:
        """Return the processor time of the run so far, in hours of one core, if it is known."""
        seconds = _read(self.folder(output) / "processor.json").get("seconds")
        return None if seconds is None else seconds / 3600


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that are compared with each other, at equal numbers of epochs.

    Attributes:
        corpus: str. Name of a corpus; with `tokenizer` or languages, of a folder in DUALNET_DATA.
        tokenizer: str or None. Name of the tokeniser's file in that folder.
        documents: str. What ends a document there.
        source, target: str or None. Languages of the pairs.
        lowercase: bool. Whether the pairs are lower-cased.
        chooses: bool. Whether the runs choose settings, so that nothing may read the test split.
        rates: The group that chooses the learning rates of this one, by runs named "LABEL at RATE".
    """

    name: str
    title: str
    corpus: str
    tokenizer: str | None = None
    documents: str = "line"
    source: str | None = None
    target: str | None = None
    lowercase: bool = False
    chooses: bool = False
    rates: "Group | None" = None
    runs: list[Run] = field(default_factory=list)

    @property
    def translates(self) -> bool:
        return self.source is not None

    def load(self) -> Any:
        """Return the corpus as `training.train` takes it."""
        if not self.translates and self.tokenizer is None:
            return self.corpus
        folder = Path(os.environ["DUALNET_DATA"]) / self.corpus
        if self.tokenizer is not None:
            tokenizer = folder / self.tokenizer
            return corpora.load(folder, tokenizer=tokenizer, documents=self.documents)
        languages = {"source": self.source, "target": self.target}
        return corpora.load_pairs(folder, lowercase=self.lowercase, **languages)

    def splits(self) -> dict[str, Any]:
        """Return the tokens of valid and test."""
        corpus = self.load()
        if isinstance(corpus, str):
            corpus = corpora.load(corpus)
        return {split: corpus.split(split) for split in ("valid", "test")}

    def train_next(self, output: Path, names: set[str]) -> bool:
        """Train the first run of `names` that is not finished; say whether there was one.

        Runs that another command trains are left to it, and runs over others wait for these, as a
        group does for its rates.
        """
        if self.rates:
            known = rows_of([output / "published.csv"])
            if not all(run.is_whole_in(known) for run in self.rates.runs):
                return False
        for run in self.runs:
            if run.name not in names or not all(base.results(output) for base in run.below()):
                continue
            folder = run.folder(output)
            folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(filelock.Timeout), filelock.FileLock(f"{folder}.lock", 0):
                if not run.is_finished(output):
                    print(f"{self.name}: {run.name}", file=sys.stderr, flush=True)
                    with run.timed(output):
                        run.train(output)
                    return True
        return False


def _read(file: Path) -> dict[str, Any]:
    """Return the contents of a JSON file, {} if there is none."""
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def _write(file: Path, values: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    write_whole(file, json.dumps(values, indent=2) + "\n")


def translate(folder: Path, corpus: Any) -> None:
    """Translate valid and test of `corpus`, and write the translations and what they score."""
    model = runs.load(folder)
    found = {}
    for split in ("valid", "test"):
        pairs = corpus.split(split)
        lines = generation.translate(model, pairs.source_lines, beam=BEAM)
        write_whole(folder / f"{split}.{corpus.target}", "".join(f"{line}\n" for line in lines))
        for protocol, name in (("sacrebleu", "bleu"), ("multi30k", "bleu_multi30k")):
            scores = evaluation.translation_metrics(
                lines, pairs.target_lines, protocol=protocol, language=corpus.target
            )
            found[f"{split}_{name}"] = scores["bleu"]
            found[f"{name}_signature"] = scores["bleu_signature"]
    _write(folder / "bleu.json", {**found, "beam": BEAM})


# Arguments of `dynamic_evaluation`, of `with_cache` or of `expert_shares`.
EVALUATIONS: dict[str, dict[str, Any]] = {
    "nadam": {"rule": "nadam"},
    "nadam, epsilon 1e-3": {"rule": "nadam", "epsilon": 1e-3},
    "sgd": {"rule": "sgd"},
    "cache": {"size": 2000},  # the rest as in the code of Takase et al., 2017
    "experts": {},
}


def evaluate(folder: Path, name: str, splits: dict[str, Any]) -> None:
    """Measure EVALUATIONS[name] of the model in `folder`, and keep it in evaluations.json."""
    file, settings = folder / "evaluations.json", dict(EVALUATIONS[name])
    measured = _read(file)
    if name in measured:
        return
    model, found = runs.load(folder), {}
    if name == "cache":
        model = builders.with_cache(model, **settings)
    for split, tokens in splits.items():
        if name == "experts":
            used = analysis.expert_shares(model, tokens)
            found[f"{split}_variation"] = used.coefficient_of_variation
            continue
        if name == "cache":
            found[f"{split}_perplexity"] = evaluation.perplexity(model, tokens)
            continue
        result = adaptation.dynamic_evaluation(model, tokens, **settings)
        settings["learning_rate"] = result.settings["learning_rate"]  # found before valid was read
        found[f"{split}_perplexity"] = result.perplexity
    measured[name] = found | {"learning_rate": settings.get("learning_rate")}
    _write(file, measured)


def combine(members: list[Path], folder: Path, splits: dict[str, Any]) -> None:
    """Write the ensemble of `members` into `folder`, and measure it."""
    if not (folder / "README.md").is_file():  # which is written last
        shutil.rmtree(folder, ignore_errors=True)
        training.combine_runs(members, folder)
    model = runs.load(folder)
    found = {f"{s}_perplexity": evaluation.perplexity(model, ids) for s, ids in splits.items()}
    found |= {"epochs": 0, "parameters": model.count_params()}
    _write(folder / "results.json", found)


def rows_of(files: Iterable[Path]) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Return the rows of earlier tables by group and run."""
    rows: dict[tuple[str, str], list[dict[str, str]]] = {}
    for path in files:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                rows.setdefault((row["group"], row["run"]), []).append(row)
    return rows


def read_queue(overrides: dict[str, Any]) -> dict[str, Group]:
    """Return the groups by name; `overrides` are settings of all runs."""
    groups = {}
    for table in tomllib.loads(QUEUE.read_text("utf-8"))["groups"]:
        runs, shared = table.pop("runs"), table.pop("settings")
        seeds, then = table.pop("seeds", []), tuple(table.pop("then", ()))
        rates = groups.get(table.pop("rates", ""))
        group = Group(**table, rates=rates)
        own = [run["seed"] for run in runs if "seed" in run]
        for seed in dict.fromkeys(seeds + own):  # all runs with one before any with the next
            for run in runs:
                if seed not in ([run["seed"]] if "seed" in run else seeds):
                    continue
                settings = {**shared, **run.get("settings", {}), **overrides}
                run = {"then": then, **run, "seed": seed, "settings": settings}
                group.runs.append(Run(group=group, **run | {"over": tuple(run.get("over", ()))}))
        groups[group.name] = group
    return groups


def write_table(groups: list[Group], output: Path, done: dict[tuple[str, str], Any]) -> None:
    """Write published.csv: a row per epoch, one with the test figures of a finished run, and one
    for each evaluation after it."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore")
    writer.writeheader()
    for group in groups:
        for run in group.runs:
            names = {"group": group.name, "run": run.name}
            if not run.history(output) and not run.results(output):
                writer.writerows(done.get((group.name, run.name), []))
            for row in run.history(output):
                writer.writerow(row | names)
            if results := run.results(output):
                recipe = runs.read_card(run.folder(output)).recipe
                about = {
                    "core_hours": run.core_hours(output),
                    "epoch": results["epochs"],
                    "dtype_policy": recipe.get("dtype_policy", "float32"),
                }
                writer.writerow(results | names | about)
            for name, measured in run.evaluations(output).items():
                writer.writerow(measured | names | {"evaluation": name})
    write_whole(output / "published.csv", text.getvalue())


def main() -> None:
    from options import options_of  # a script of its folder, which tests import from above

    options = options_of(__doc__, "output", group=[], set=[], done=[])
    done = rows_of(map(Path, options.done))
    queue = read_queue(settings_of(options.set))
    groups = [queue[name] for name in options.group or queue]
    with contextlib.suppress(OSError):  # else `nice` counts only within a session (`setsid`)
        Path("/proc/self/autogroup").write_text(str(os.nice(0)))
    if any(group.translates and not group.chooses for group in groups):
        check_packages("multi30k")  # before a training, not after it
    options.output.mkdir(parents=True, exist_ok=True)
    write_table([*queue.values()], options.output, done)
    for group in groups:
        wanted = {name for run in group.runs if not run.is_whole_in(done) for name in run.names()}
        is_at_work = True
        while is_at_work:
            try:
                is_at_work = group.train_next(options.output, wanted)
            finally:
                write_table([*queue.values()], options.output, done)


if __name__ == "__main__":
    stopped = ""
    try:
        main()
    except Stopped as error:  # its frames hold a batch iterator, which takes 20 s to end at exit
        stopped = str(error)
    if stopped:
        sys.exit(stopped)
