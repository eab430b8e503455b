"""The models of a job, for any KerasTuner tuner."""

import dataclasses
from typing import Any

import keras
import keras_tuner

from dualnet import zoo
from dualnet._checks import ArgumentError, StrPath
from dualnet.builders import LanguageModel
from dualnet.corpora import Corpus
from dualnet.training import Recipe, batches_of, card_for, split_overrides
from dualnet.training.schedule import TRAIN, plan
from dualnet.training.start import compiled_model, fit_to_corpus
from dualnet.tuning.budget import solved
from dualnet.tuning.job import Job, load_job

# Settings of a recipe that a plain `fit` leaves out.
BEYOND_FIT = {
    "averaging",
    "finetune",
    "length_deviation",
    "linear_decay",
    "drop_state_probability",
    "on_divergence",
    "patience",
}


class HyperModel(keras_tuner.HyperModel):
    """The models of a job of the kind "training", for a KerasTuner tuner of your own.

    `dualnet.tuning.search` is the complete search: each trial in a process of its own, with
    checkpoints, budgets and reports.

    Args:
        job: `Job`, or its name or file; see `load_job`.
        corpus: `Corpus`.
        card: card of the job's model; default: the one for the name of `corpus`.

    Raises:
        ValueError: for a job of another kind; from `build`, for a recipe that a plain `fit`
            cannot follow.

    Example:

    >>> import keras_tuner
    >>> from dualnet import corpora, tuning
    >>> job = tuning.load_job("dual_table1").with_settings({"units": 4, "rounds": 0})
    >>> hypermodel = tuning.HyperModel(job, corpora.load("python-reference"))
    >>> hp = keras_tuner.HyperParameters()
    >>> model = hypermodel.build(hp)
    >>> model.name, hp.get("connection")
    ('dual_mdlstm', 'plain')
    """

    def __init__(self, job: Job | StrPath, corpus: Corpus, card: zoo.Card | None = None) -> None:
        job = job if isinstance(job, Job) else load_job(job)
        if job.kind != "training":
            raise ArgumentError("job", "must be of the kind 'training'.", kind=job.kind)
        self.job = job
        self.corpus = corpus
        self.card = card or card_for(job.model, corpus)
        super().__init__(name=job.name)

    def declare_hyperparameters(self, hp: keras_tuner.HyperParameters) -> None:
        """Declare the whole space."""
        self.job.declare(hp)

    def build(self, hp: keras_tuner.HyperParameters) -> LanguageModel:
        """Return the compiled model for `hp`; the same values give the same weights."""
        self.declare_hyperparameters(hp)
        card, recipe = self._trial(hp)
        for key in BEYOND_FIT & recipe.changed().keys():
            default = getattr(Recipe, key)
            recipe.refuse(
                key,
                f"must be {default!r} if KerasTuner trains the model with a plain `fit`.",
                way_out=" Use dualnet.tuning.search.",
            )
        keras.utils.set_random_seed(self.job.seed)
        return compiled_model(card, recipe, self.corpus)

    def fit(self, hp: keras_tuner.HyperParameters, model: LanguageModel, **kwargs: Any) -> Any:
        """Train `model` by its recipe; arguments of the tuner's `search` take precedence."""
        _, recipe = self._trial(hp)

        def planned(epoch: int, rate: float) -> float:
            past = model.history.history.get("val_perplexity", [])
            # Epochs skipped by `initial_epoch` count as improved.
            past = [*(1e300 / 2**i for i in range(epoch - len(past))), *past]
            next_epoch = plan(recipe, [{"phase": TRAIN, "val_perplexity": x} for x in past])
            return next_epoch.learning_rate if next_epoch else rate  # None past the last epoch

        schedule = keras.callbacks.LearningRateScheduler(planned)
        settings = {
            "x": batches_of(self.corpus, "train", recipe, seed=self.job.seed),
            "validation_data": batches_of(self.corpus, "valid", recipe),
            "epochs": recipe.epochs,
            **kwargs,
            "callbacks": [*kwargs.get("callbacks", ()), schedule],
        }
        return model.fit(**settings)

    def _trial(self, hp: keras_tuner.HyperParameters) -> tuple[zoo.Card, Recipe]:
        """Return the card and the recipe of the trial with the values of `hp`."""
        settings, size = self.job.settings(hp.values), len(self.corpus.vocabulary)
        settings = solved(self.job, self.card, settings, size)
        config, recipe = split_overrides(self.card, settings)
        config = fit_to_corpus(config, recipe, self.corpus, settings)
        return dataclasses.replace(self.card, config=config), recipe
