"""The callback that writes checkpoints, and raises before they would hold ruined weights."""

import math
import shutil
from collections.abc import Mapping
from typing import NoReturn

import keras

from dualnet.training import checkpoints, kept
from dualnet.training.averages import averages_of, weights_in
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.training.start import Training
from dualnet.training.user_callbacks import UserCallbacks


class DivergedError(ValueError):
    """Training has diverged, for this `reason`; see `Recipe`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Checkpoint(keras.callbacks.Callback):
    """Saves every few steps, after each epoch, and when the training is stopped.

    Raises `DivergedError` once a loss or a weight is not finite, and keeps the models of
    `Recipe.keep_every`.
    """

    def __init__(
        self, training: Training, user: UserCallbacks, interrupts: Interrupts, every: int
    ) -> None:
        super().__init__()
        self.training, self.user, self.interrupts = training, user, interrupts
        self.every = every
        # Checkpoints with whose weights no finite perplexity was seen yet.
        is_within_epoch = training.progress.step > 0
        self.unproven = checkpoints.newest_first(training.folder)[:is_within_epoch]

    def on_train_batch_end(self, batch, logs=None):
        self.check_losses(logs)
        self.keep()
        progress = self.training.progress
        progress.stopped = bool(self.training.model.stop_training)
        is_due = progress.step % self.every == 0 and progress.step < self.training.steps
        if is_due or self.interrupts.asked:
            self.check_weights()
            self.note()
            self.save()
        if self.interrupts.asked:
            self.stop()

    def on_epoch_end(self, epoch, logs=None):
        progress = self.training.progress
        progress.step, progress.seconds = 0, 0.0
        progress.stopped = bool(self.model.stop_training)
        self.note()
        progress.metrics = []
        self.save()

    def note(self) -> None:
        """Note the metrics of the epoch so far, and the state of the user's callbacks."""
        progress = self.training.progress
        # On JAX, reading `self.model` synchronizes its variables.
        progress.metrics = [float(value) for value in self.model.metrics_variables]
        progress.callbacks = self.user.state

    def save(self) -> None:
        training, progress = self.training, self.training.progress
        best = training.best_epoch if training.recipe.on_divergence == "restart" else None
        path = checkpoints.save(training.folder, self.model, progress, best=best)
        if progress.step:
            self.unproven.append(path)

    def keep(self) -> None:
        """Keep the model if this step has read the words after which it is due."""
        training = self.training
        before, after = (training.words_read(training.steps_read - i) for i in (1, 0))
        if due := kept.due(training.recipe.keep_every, before, after):
            self.check_weights()
            with weights_in(self.model, averages_of(training)):
                for count in due:
                    kept.keep(training.folder, count, self.model, training.card)

    def stop(self) -> NoReturn:
        progress, steps = self.training.progress, self.training.steps
        place = f"step {progress.step} of {steps} of epoch {len(progress.history) + 1}"
        way_out = "To continue, repeat the command with --resume."
        raise Stopped(f"Stopped and saved after {place}. {way_out}")

    # --- divergence

    def check_losses(self, logs: Mapping[str, float]) -> None:
        if not math.isfinite(logs["loss"]):
            for path in self.unproven:
                shutil.rmtree(path, ignore_errors=True)
            self.refuse_to_go_on("The loss is no longer a number")
        if math.isfinite(logs["perplexity"]):
            self.unproven.clear()

    def check_weights(self) -> None:
        """Raise for a weight that is not finite; a loss tells of earlier steps."""
        if not checkpoints.is_finite(self.model):
            self.refuse_to_go_on("A weight or a moment is no longer a number")

    def refuse_to_go_on(self, reason: str) -> NoReturn:
        folder, progress = self.training.folder, self.training.progress
        way_out = "Train again"
        if checkpoints.exist(folder):
            way_out = f"The last checkpoint in {str(folder)!r} is intact: resume from it with "
            way_out += "--resume, or train again"
        raise DivergedError(
            reason,
            f"{reason}, in epoch {len(progress.history) + 1} by step {progress.step}. {way_out}, "
            f"with a smaller learning_rate (it was {self.training.plan.learning_rate:g}) or with "
            "clipnorm=1.",
        )
