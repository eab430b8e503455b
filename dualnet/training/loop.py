"""Training into a RUN folder."""

import collections
import contextlib
import dataclasses
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Unpack

import keras
import numpy as np

from dualnet import runs, zoo
from dualnet._checks import StrPath, check_count
from dualnet._fields import documented
from dualnet._files import write_whole
from dualnet.builders import LanguageModel
from dualnet.builders.arguments import ModelSettings
from dualnet.cards import Card
from dualnet.corpora import SPLITS, Corpus, PairCorpus
from dualnet.devices import data_parallel
from dualnet.evaluation import Evaluation
from dualnet.evaluation import evaluate as evaluate_text
from dualnet.evaluation.pair_perplexity import PairEvaluation, evaluate_pairs
from dualnet.requests import ReadingCorpus, ReadingCorpusArguments
from dualnet.runs.folder import RESULTS, WEIGHTS, write_file
from dualnet.runs.loading import load_weights
from dualnet.runs.model_cards import README, model_card
from dualnet.text import UNK
from dualnet.training.fitting import Callbacks, fit
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.training.optimizers import optimizer_of
from dualnet.training.recipe import RecipeArguments
from dualnet.training.schedule import RESTART_FACTOR, History
from dualnet.training.start import (
    PAIRS_OF_ONES_OWN,
    Training,
    begin,
    has_begun,
    policy_of,
    prepare,
    resumed,
)
from dualnet.training.user_callbacks import UserCallbacks

ENOUGH_SECONDS = 3  # of steps, to tell the time of an epoch


class TrainingArguments(ModelSettings, RecipeArguments, ReadingCorpusArguments, total=False):
    """The keyword arguments of `train` beside its own, for type checkers."""

    share_embeddings: bool


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished training: the model with its best weights, and its results.

    Attributes:
        model: `LanguageModel` with the weights of the best epoch.
        folder: The RUN folder.
        results: The contents of `results.json`; {} with `evaluate=False`.
        history: One dict per epoch, the rows of `metrics.csv`.

    Example (see `train` for how to get one):

    >>> from pathlib import Path
    >>> from dualnet import training, zoo
    >>> model = zoo.build("lstm", vocabulary_size=9, units=4)
    >>> run = training.Run(model, Path("RUN"), results={}, history=[{"epoch": 1}])
    >>> run.model.name, len(run.history)
    ('lstm', 1)
    """

    model: LanguageModel
    folder: Path
    results: dict[str, Any]
    history: History

    def __repr__(self) -> str:
        text = f"Run({self.model.name!r}, {str(self.folder)!r}, epochs={len(self.history)}"
        for split in ("valid", "test"):
            if perplexity := self.results.get(f"{split}_perplexity"):
                text += f", {split}={perplexity:.2f}"
        return f"{text})"


@documented(ReadingCorpus, rest="overrides")
def train(
    name: StrPath | Card,
    corpus: Corpus | PairCorpus | str,
    *,
    output: StrPath,
    seed: int | None = None,
    weights: StrPath | None = None,
    resume: bool = False,
    checkpoint_steps: int = 500,
    progress: bool = True,
    stop: Callable[[History], bool] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] | None = None,
    evaluate: bool = True,
    devices: int | str | None = None,
    **settings: Unpack[TrainingArguments],
) -> Run:
    """Train model `name` of the zoo on `corpus` into the folder `output`.

    With weights to start from, the validation perplexity before the first step is in the log, in
    `curves.png` and, as `start_perplexity`, in `results.json`.

    Each epoch updates `metrics.csv`, `curves.png`, TensorBoard scalars and the weights of
    the best epoch by validation perplexity. After each epoch, and every `checkpoint_steps`
    steps within one, a checkpoint is written. The last is kept, and the one after the last
    epoch; within the first, and at the end of one, the last two. At the end the best weights
    are evaluated with batch size 1, and `results.json` is written. Ctrl-C finishes and saves
    the current step first.

    A run that is killed and resumed ends like an uninterrupted one: bit for bit on a CPU in
    float32. On TensorFlow that takes the environment variable TF_NUM_INTEROP_THREADS=1,
    which the command line sets; otherwise the order in which the gradients of a shared
    matrix are summed may vary.

    If the recipe averages the weights, validation and the saved best weights use the
    averages; training continues from the raw weights. Rounds of fine-tuning follow the last
    epoch (see `Recipe`). To fine-tune a finished run that averages with "asgd", pass
    `resume=True, finetune="once"`.

    Args:
        name: a name from `zoo.list_models()`, the path of a card as for `zoo.card`, or a
            `Card`. With a RUN folder or the name of a shipped model, training goes on from its
            weights, with its settings and tokeniser.
        corpus: `Corpus`, or what `corpora.load` takes.
        output: folder, new or empty unless `resume`.
        seed: int. Seeds weights, masks and batches; defaults to that of the card, which only
            the card of a RUN folder has, else to 0.
        weights: a RUN folder or a `.keras` file to start from. Weights whose names and
            shapes agree are copied, see `dualnet.transfer`; with `progress` the rest is
            listed on standard error. A corpus loaded by name gets the vocabulary of that
            model, unless `tokenizer`, `vocabulary_size` or `min_count` asks for another. Of
            another vocabulary, words that both have keep their weights; others start at the mean.
            Required for a model with a gate: all weights but the gate's.
        resume: bool. Continue the run in `output` from its last checkpoint, with its
            settings and seed. `epochs`, `patience`, `learning_rate`, `clipnorm`,
            `global_clipnorm`, `finetune`, `finetune_epochs`, `finetune_learning_rate` and
            `keep_every` may change. A run stopped before its first checkpoint loads its `weights`
            again.
        checkpoint_steps: int. Steps between two checkpoints; does not affect the result.
        progress: bool. Show a progress bar and a line per epoch on standard error.
        stop: function of the history, the rows of `metrics.csv`. Called after each epoch,
            and on resuming between epochs; if it returns True, training ends. Resuming
            without it continues.
        callbacks: Keras callbacks, called in their order as one `fit` over all epochs would call
            them. `stop_training` is obeyed. Resuming gives them their state again as far as it is
            plain values; the guide to training says more of that, and of what they cannot do.
        evaluate: bool. False skips the final evaluation and `results.json`; `resume` makes
            up for them. A run may then be resumed even if no epochs are left.
        devices: int or "all". Split the rows of each batch across this many devices (JAX
            only), see `dualnet.data_parallel`. May change on resuming. With several
            processes, each needs an `output` of its own, and all write the same.
        {arguments}
        **overrides: arguments of the builder and of `Recipe` that replace the card's.

    Returns:
        A `Run`.

    Raises:
        ValueError: for a corpus of less than one batch, a loss that is not finite, a RUN folder
            that is in use, altered or finished, or `weights` of which none matches.
        FileExistsError: if `output` holds files and `resume` is False.
        FileNotFoundError: if `output` holds no run to resume.
        KeyboardInterrupt: after Ctrl-C or SIGTERM.

    Example:

    >>> import dataclasses, tempfile
    >>> from dualnet import corpora, training
    >>> corpus = corpora.load("python-reference")
    >>> splits = {split: corpus.split(split)[:60] for split in corpora.SPLITS}
    >>> corpus = dataclasses.replace(corpus, **splits)
    >>> small = {"units": 4, "batch_size": 4, "epochs": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = training.train("lstm", corpus, output=f"{folder}/RUN", progress=False, **small)
    >>> run.results["epochs"], run.results["corpus"]["tokens"]["test"]
    (1, 60)
    """
    check_count("checkpoint_steps", checkpoint_steps)
    user, folder = UserCallbacks(callbacks), Path(output)
    run: dict[str, Any] = {"seed": seed, "weights": weights, "settings": settings}
    with contextlib.ExitStack() as stack:
        if devices is not None:
            stack.enter_context(data_parallel(devices).scope())
        if resume and has_begun(folder):
            begun = resumed(name, corpus, folder, **run, may_be_finished=not evaluate)
            training = stack.enter_context(begun)
        else:
            training = prepare(name, corpus, folder, **run)
            stack.enter_context(begin(training))
        if training.card.weights and not training.steps_read:
            before = training.model.evaluate(training.valid_batches, verbose=0, return_dict=True)
            training.progress.start = float(before["perplexity"])
        if progress and sys.stderr is not None:  # None: `print` takes the output
            _tell_of_start(training, name, is_new=not resume)
        interrupts = stack.enter_context(Interrupts())
        all_callbacks = Callbacks(
            training, user, interrupts, stop=stop, checkpoint_steps=checkpoint_steps, show=progress
        )
        stack.callback(all_callbacks.report.bar.stop)
        fit(training, all_callbacks)
        interrupts.at_once = "Stopped after the last epoch. Evaluate it with --resume."
        if interrupts.asked:
            raise Stopped(interrupts.at_once)
        all_callbacks.end()
        all_callbacks.tables.write()  # a kill may have come between checkpoint and tables
        return _finish(training, evaluate=evaluate)


def epoch_seconds(
    name: StrPath | Card,
    corpus: Corpus | PairCorpus | str,
    *,
    weights: StrPath | None = None,
    **settings: Unpack[TrainingArguments],
) -> float:
    """Return about how many seconds the training steps of an epoch take on this machine.

    A model is built as `train` builds it, takes some steps and is thrown away. Nothing is kept.

    Args:
        name, corpus, weights: as for `train`.
        **settings: how to read the corpus, and other settings, as for `train`.

    Raises:
        ValueError: as `train`, before its first step.

    Example:

    >>> from dualnet import corpora, training
    >>> corpus = corpora.load("python-reference")
    >>> training.epoch_seconds("lstm", corpus, units=4, batch_size=1000) > 0
    True
    """
    training = prepare(name, corpus, Path("RUN"), seed=None, weights=weights, settings=settings)
    model, batches = training.model, training.batches
    steps = min(2, training.steps)  # of two lengths, if the first is shorter
    model.fit(batches, steps_per_epoch=steps, verbose=0)  # compiles
    while True:
        began = time.perf_counter()
        model.fit(batches, steps_per_epoch=steps, verbose=0)
        seconds = time.perf_counter() - began
        if steps == training.steps or seconds > ENOUGH_SECONDS:
            return seconds * training.steps / steps
        steps = min(4 * steps, training.steps)


def _tell_of_start(training: Training, name: StrPath | Card, *, is_new: bool) -> None:
    """Print the weights that were copied, the card that is used, and how the text is read."""
    corpus, lines = training.corpus, []
    if training.transferred is not None:
        source = training.card.weights
        lines.append(f"Starting from the weights in {source!r}. {training.transferred}")
        lines.append(f"Validation perplexity before the first step: {training.progress.start:.2f}")
    if is_new and isinstance(corpus, Corpus):
        lines += [corpus.note, _unseen(corpus)]
    elif is_new and not isinstance(name, Card):
        listed = zoo.card(name).corpora
        if corpus.name not in listed and PAIRS_OF_ONES_OWN in listed:
            lines.append(
                f"The card of {str(name)!r} does not list {corpus.name!r}: sizes and recipe are "
                f"those for {PAIRS_OF_ONES_OWN}. To choose another corpus of the card: --card-for, "
                "or `zoo.card(name, corpus)` as the name."
            )
    for line in filter(None, lines):
        print(line, file=sys.stderr, flush=True)


def _unseen(corpus: Corpus) -> str:
    """Return a warning if a held-out split has `<unk>` and train has none, else ""."""
    unk_id = corpus.vocabulary.unk_id
    if unk_id is None or unk_id in corpus.train:
        return ""
    for split in ("test", "valid"):
        if share := np.mean(corpus.split(split) == unk_id):
            return (
                f"Warning: {UNK} is {share:.1%} of {split!r} and not in train, so no model learns "
                "to expect it. Read the text as byte-level BPE, the default, or as words with a "
                "`min_count` of at least 2."
            )
    return ""


def _finish(training: Training, *, evaluate: bool) -> Run:
    """Return the run with its best weights; with `evaluate`, write `results.json` first."""
    folder, model, history = training.folder, training.model, training.progress.history
    optimizer = optimizer_of(model).plain()
    if policy_of(training.recipe) == keras.config.dtype_policy().name:
        load_weights(model, folder / WEIGHTS)
    else:
        model = runs.load(folder)
    results = {}
    if evaluate:
        results = _results_of(model, training)
        write_file(folder, RESULTS, json.dumps(results, indent=2) + "\n")
    elif runs.Run.open_folder(folder).results.get("epochs") != len(history):
        (folder / RESULTS).unlink(missing_ok=True)  # outdated
    # With one of Keras's own optimizers, a saved model loads without dualnet.training.
    model.compile(optimizer=optimizer)
    model.run = runs.Run.open_folder(folder)
    write_whole(folder / README, model_card(model, model.run))
    return Run(model, folder, results, history)


def _results_of(model: LanguageModel, training: Training) -> dict[str, Any]:
    """Evaluate `model` with batch size 1 and return the results of its run."""
    corpus, history = training.corpus, training.progress.history
    by_sentence = training.recipe.batching == "sentences"
    figures: dict[str, float | str | None] = {}
    for split in ("valid", "test"):
        result: Evaluation | PairEvaluation
        if isinstance(corpus, PairCorpus):
            result = evaluate_pairs(model, corpus, split)
        else:
            result = evaluate_text(model, corpus.split(split), by_sentence=by_sentence)
        figures[f"{split}_perplexity"] = result.perplexity
        figures |= {f"{split}_{key}": value for key, value in result.figures().items()}
    steady = history[1:] or history  # the first epoch includes compilation
    restarts = training.progress.restarts
    restarted = {"epochs": restarts, "learning_rate_factor": RESTART_FACTOR ** len(restarts)}
    return {
        "name": model.name,
        "parameters": model.count_params(),
        **figures,
        "batch_size": 1,  # of these figures
        "by_sentence": by_sentence,  # each sentence from the zero state
        "tokens_per_second": statistics.median(row["tokens_per_second"] for row in steady),
        "best_epoch": training.best_epoch,
        **({} if (start := training.progress.start) is None else {"start_perplexity": start}),
        "epochs": len(history),
        "phases": dict(collections.Counter(row["phase"] for row in history)),  # epochs of each
        **({"restarts": restarted} if training.recipe.on_divergence == "restart" else {}),
        "seed": training.card.seed,
        "corpus": {
            "name": corpus.name,
            "lowercase": corpus.lowercase,
            "sha256": corpus.sha256,
            "pairs" if isinstance(corpus, PairCorpus) else "tokens": {
                split: len(corpus.split(split)) for split in SPLITS
            },
        },
        "vocabulary": {"size": len(corpus.vocabulary), "sha256": corpus.vocabulary.sha256},
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, dualnet, Keras, its backend and NumPy.

    Example:

    >>> from dualnet import training
    >>> sorted({"python", "backend", "dualnet", "keras", "numpy"} - training.versions().keys())
    []
    """
    backend = keras.config.backend()
    result = {"python": platform.python_version(), "backend": backend}
    for package in dict.fromkeys(["dualnet", "keras", backend, "numpy"]):
        try:
            result[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a checkout that is not installed
            result[package] = "not installed"
    return result
