"""Training into a RUN folder: the loop over epochs, and what is kept of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from dualnet import zoo
from dualnet._checks import ArgumentError, check_count
from dualnet._files import claim, remove_unfinished, write_whole
from dualnet.builders import BUILDERS, LanguageModel
from dualnet.corpora import Corpus
from dualnet.devices import check_rows, data_parallel
from dualnet.runs.folder import BEGUN, CARD, RESULTS, WEIGHTS, WORDS, put_words, write_card
from dualnet.runs.loading import load, load_weights
from dualnet.training import checkpoints
from dualnet.training.checkpoints import Progress
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.training.optimizers import optimizer_of
from dualnet.training.recipe import Recipe, split_overrides
from dualnet.training.recorder import Recorder
from dualnet.training.results import results_of
from dualnet.training.resuming import absolute, finished_epochs, resumed_card, resumed_corpus
from dualnet.training.schedule import plan
from dualnet.training.start import is_gated, load_corpus, load_source, load_start

RANDOM = ("length_deviation", "longest_length", "partial_shuffle")  # of training batches alone


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished training: the model with its best weights, and what was measured.

    Attributes:
        model: `LanguageModel` with the weights of the best epoch.
        folder: The RUN folder.
        results: What `results.json` holds; {} without the last evaluation.
        history: One dict for each epoch, the rows of `metrics.csv`.
    """

    model: LanguageModel
    folder: Path
    results: dict[str, Any]
    history: list[dict[str, Any]]


def train(
    name: str | zoo.Card,
    corpus: Corpus | str,
    *,
    output: str | os.PathLike[str],
    seed: int | None = None,
    weights: str | os.PathLike[str] | None = None,
    resume: bool = False,
    checkpoint_steps: int = 500,
    progress: bool = True,
    stop: Callable[[list[dict[str, Any]]], bool] | None = None,
    evaluate: bool = True,
    devices: int | str | None = None,
    **overrides: Any,
) -> Run:
    """Train model `name` of the zoo on `corpus` and keep everything in the folder `output`.

    After each epoch the folder holds `metrics.csv`, `curves.png`, TensorBoard
    scalars and the weights of the best epoch by validation perplexity; after
    each epoch, and every `checkpoint_steps` steps within one, a checkpoint, of
    which the last two are kept. A run that was killed and resumed ends as an
    undisturbed one: bit for bit on a CPU in float32, on TensorFlow if the
    environment variable TF_NUM_INTEROP_THREADS is 1 (the command line sets it),
    else up to the order in which it adds up the gradients of a shared matrix.
    At the end the best weights are evaluated with batch size 1, and
    `results.json` is written. Ctrl-C finishes the step and saves first.

    Where the recipe averages the weights, the averages are validated and kept as
    best weights, while the weights go on; with fine-tuning, rounds of it follow the
    last epoch (see `Recipe`). A finished run that averages with "asgd" is fine-tuned
    with `resume=True, finetune="once"`.

    Args:
        name: one of `zoo.list_models()`, or the path of a card, as for `zoo.card`; or a card.
        corpus: `Corpus`, or what `corpora.load` takes.
        output: folder, new or empty unless `resume`.
        seed: int. Of weights and masks; default that of the card, which the card of a RUN
            folder has, else 0.
        weights: a RUN folder or a `.keras` file, to begin with its weights: those whose
            names and shapes agree, as `dualnet.transfer` says. What did not match is told
            on standard error, with `progress`. A corpus that is loaded by its name gets
            the vocabulary of that model. A model with a gate needs them, all but those of
            the gate.
        resume: bool. Go on with the run in `output`, from its last checkpoint, with
            its own settings and seed; `epochs`, `learning_rate`, `clipnorm`,
            `global_clipnorm`, `finetune`, `finetune_epochs` and `finetune_learning_rate`
            may be given anew. A run that was stopped before its first checkpoint
            reads its `weights` once more.
        checkpoint_steps: int. Steps between two checkpoints; without influence on
            the result.
        progress: bool. Show a progress bar and a line per epoch on standard error.
        stop: function of the history, the rows of `metrics.csv`, asked after each epoch,
            and when a run is resumed at the end of one. If it returns True, that epoch is
            the last; without it, a resumed run goes on.
        evaluate: bool. False leaves out the last evaluation and `results.json`. Both are
            made by `resume`, where with False a run may also have no epochs left.
        devices: int or "all". Divide the rows of each batch among so many devices, on JAX
            alone; see `dualnet.data_parallel`. A run may go on with another number. Of
            several processes each needs an `output` of its own, and writes the same.
        **overrides: arguments of the builder and of `Recipe`, in place of the card's.

    Raises:
        ValueError: for an unknown model or override, a value out of range, a corpus
            of less than one batch, a loss that is no longer a number, a RUN
            folder that is in use, altered or finished, or `weights` of a model
            with another vocabulary or of which none fits.
        FileExistsError: if `output` holds files and `resume` is False.
        FileNotFoundError: if there is no run in `output` to resume, or no `weights`.
        OSError: if `output` cannot be written to.
        KeyboardInterrupt: after Ctrl-C or SIGTERM.
    """
    folder = Path(output)
    check_count("checkpoint_steps", checkpoint_steps, least=1)
    if seed is not None:
        _check_seed(seed)
    with contextlib.ExitStack() as held:
        if devices is not None:
            held.enter_context(data_parallel(devices).scope())
        if resume:
            if not (folder / CARD).is_file():
                raise FileNotFoundError(
                    "--resume needs a RUN folder, in which a training has begun. Received: "
                    f"{str(folder)!r}, without {CARD}. Train anew, without --resume."
                )
            held.enter_context(claim(folder, holds="run", resume=True))
            remove_unfinished(folder)
            used = resumed_card(
                folder, name, seed, weights, overrides, may_be_finished=not evaluate
            )
            corpus = resumed_corpus(folder, used, corpus)
            config, recipe = used["config"], Recipe(**used["recipe"])
            begun = checkpoints.exist(folder)  # with the weights in it
            begin = used.get("weights", "")
            source = None if begun else load_source(begin, config, resume=True)
        else:
            if isinstance(name, zoo.Card):
                card = name
            else:
                card = card_for(name, corpus)
            with zoo.located(card, overrides):
                config, recipe = split_overrides(card, overrides)
                if seed is None:
                    seed = _check_seed(card.seed or 0)
            if "members" in config and not is_gated(config):
                raise ArgumentError(
                    "name",
                    "must be a model that is trained as a whole, or an ensemble with a "
                    f"gate. Received: {card.name!r}, an ensemble. Train each member, and put "
                    "the RUN folders together with `dualnet ensemble`.",
                )
            begin = absolute(weights)
            source = load_source(begin, config, resume=False)
            corpus = load_corpus(corpus, source, lowercase=card.lowercase)
            with zoo.located(card, overrides):
                config = zoo.with_vocabulary_size(config, _vocabulary_size(corpus, overrides))
                by_sentence = recipe.batching == "sentences"
                if by_sentence and config.setdefault("padded", True) is False:
                    raise ArgumentError(
                        "padded",
                        "must be True with batching='sentences', of which a batch is "
                        "padded. Received: padded=False. Leave it out.",
                    )
            used = {
                "name": card.name,
                "builder": card.builder,
                "paper": card.paper,
                "seed": seed,
                "corpus": {
                    "name": corpus.name,
                    "source": corpus.source,
                    "lowercase": corpus.lowercase,
                    "sha256": corpus.sha256,
                },
                "config": config,
                "recipe": {**dataclasses.asdict(recipe), "dtype_policy": _policy_of(recipe)},
            }
            if begin:
                used["weights"] = begin
        check_rows(recipe.batch_size)
        train_batches = batches_of(corpus, "train", recipe, seed=used["seed"])
        valid_batches = batches_of(corpus, "valid", recipe)
        if len(corpus.test) < 2:
            raise ValueError(
                "The split 'test' must hold at least 2 tokens. Received: "
                f"{len(corpus.test)} in {corpus.source!r}. Take a longer text."
            )
        keras.utils.set_random_seed(used["seed"])
        located = contextlib.nullcontext() if resume else zoo.located(card, overrides)
        with located, _computing_in(_policy_of(recipe)):
            model = BUILDERS[used["builder"]](**config, name=used["name"])
        model.vocabulary = corpus.vocabulary
        model.loss_reduction = recipe.loss_reduction
        model.compile(optimizer=recipe.make_optimizer())
        # All variables now, so that a checkpoint finds its own in a new model.
        model.optimizer.build(model.trainable_variables)
        for rows in (model.training_rows, model.evaluation_rows):
            rows.resize(recipe.batch_size)  # else JAX compiles the step once more
        taken = None
        if source is not None:
            taken = load_start(source, model, begin, config)
            del source  # its memory is needed
        if not resume:
            # Now that nothing is left that could be refused.
            held.enter_context(claim(folder, holds="run", resume=False, may_hold=BEGUN))
            remove_unfinished(folder)
        if not resume or not (folder / WORDS).is_file():
            put_words(folder, corpus.vocabulary)
        write_card(folder, used)
        if taken is not None and progress:
            print(f"Begins with the weights in {begin!r}. {taken}", file=sys.stderr, flush=True)
        state = (checkpoints.restore(folder, model) if resume else None) or Progress()
        interrupts = held.enter_context(Interrupts())
        recorder = Recorder(
            folder,
            recipe,
            state,
            interrupts,
            checkpoint_steps=checkpoint_steps,
            steps=len(train_batches),
            num_tokens=train_batches.num_tokens,
            show=progress,
        )
        held.callback(recorder.close)
        while not _is_stopped(state, stop):
            coming = plan(recipe, state.history)
            if coming is None:
                break
            recorder.train(model, train_batches, coming)
            recorder.validate(model, valid_batches, coming)
        interrupts.at_once = (
            "Stopped in the last evaluation. Make it with --resume."
            if evaluate
            else "Stopped after the last epoch. All of it is kept."
        )
        if interrupts.asked:
            raise Stopped(interrupts.at_once)
        recorder.write_tables(model.name)  # a kill may have come between checkpoint and tables
        optimizer = optimizer_of(model).plain()
        if _policy_of(recipe) == keras.config.dtype_policy().name:
            load_weights(model, folder / WEIGHTS)
        else:
            model = load(folder)
        results: dict[str, Any] = {}
        if evaluate:
            results = results_of(
                model,
                corpus,
                state.history,
                seed=used["seed"],
                by_sentence=recipe.batching == "sentences",
            )
            write_whole(folder / RESULTS, json.dumps(results, indent=2) + "\n")
        elif finished_epochs(folder) != len(state.history):
            (folder / RESULTS).unlink(missing_ok=True)  # of fewer epochs
        # Saved with one of ours, the model could be loaded only where that is registered.
        model.compile(optimizer=optimizer)
        return Run(model, folder, results, state.history)


def _check_seed(seed: int) -> int:
    check_count("seed", seed, least=0)
    if seed >= 2**32:
        raise ArgumentError("seed", f"must be below 2**32. Received: seed={seed}.")
    return seed


def _policy_of(recipe: Recipe) -> str:
    return recipe.dtype_policy or keras.config.dtype_policy().name


@contextlib.contextmanager
def _computing_in(policy: str) -> Iterator[None]:
    """Let layers be made with the dtype policy `policy` meanwhile."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _is_stopped(state: Progress, stop: Callable[[list[dict[str, Any]]], bool] | None) -> bool:
    """Return whether the run is at the end of an epoch and `stop` wants no other."""
    return stop is not None and bool(state.history) and not state.step and stop(state.history)


def card_for(name: str, corpus: Corpus | str) -> zoo.Card:
    """Return the card of model `name`, the one for `corpus` if there is one."""
    known = corpus.name if isinstance(corpus, Corpus) else str(corpus)
    return zoo.card(name, known if known in zoo.card(name).corpora else None)


def _vocabulary_size(corpus: Corpus, overrides: Mapping[str, Any]) -> int:
    size = len(corpus.vocabulary)
    if overrides.get("vocabulary_size") not in (None, size):
        raise ArgumentError(
            "vocabulary_size",
            f"must be that of the corpus, {size}. Received: "
            f"vocabulary_size={overrides['vocabulary_size']!r}. Leave it out, or cut the "
            "vocabulary with corpora.load(..., vocabulary_size=...).",
        )
    return size


def batches_of(corpus: Corpus, split: str, recipe: Recipe, *, seed: int | None = None) -> Any:
    """Return the batches of `split`, in another order each epoch where there is a `seed`."""
    if recipe.batching == "sentences":
        return corpus.sentence_batches(
            split, batch_size=recipe.batch_size, shuffle=seed is not None, seed=seed or 0
        )
    tokens = corpus.split(split)
    if len(tokens) <= recipe.batch_size:
        raise ValueError(
            f"The split {split!r} must hold at least batch_size + 1 = {recipe.batch_size + 1} "
            f"tokens. Received: {len(tokens)} tokens in {corpus.source!r}. Take a smaller "
            "batch_size or a longer text."
        )
    random: dict[str, Any] = {}
    if seed is not None:
        random = {name: getattr(recipe, name) for name in RANDOM} | {"seed": seed}
    return corpus.batches(
        split, batch_size=recipe.batch_size, sequence_length=recipe.sequence_length, **random
    )
