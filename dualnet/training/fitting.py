"""Fits the model of a training: one `fit` over its epochs, and callbacks."""

import math
import time
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from dualnet._backend import assign_all, restoring
from dualnet.corpora.token_batches import EpochBatches, TokenBatches
from dualnet.runs.folder import WEIGHTS
from dualnet.runs.loading import load_weights
from dualnet.training import checkpoints, kept
from dualnet.training.interrupts import Interrupts
from dualnet.training.optimizers import optimizer_of
from dualnet.training.reporting import Report, Tables
from dualnet.training.saving import Checkpoint, DivergedError
from dualnet.training.schedule import RESTART_FACTOR, History, is_round
from dualnet.training.start import NO_LIMIT, Training
from dualnet.training.user_callbacks import UserCallbacks
from dualnet.training.validation import Validate, figures_of

MOST_RESTARTS = 20  # 0.9 ** 20 = 0.12 of the learning rate


class FollowPlan(keras.callbacks.Callback):
    """Begins each epoch as its plan says, and gives each step its learning rate."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training = training

    def on_epoch_begin(self, epoch, logs=None):
        training, model = self.training, self.model
        plan, optimizer, step = training.plan, optimizer_of(model), training.progress.step
        self.params["epochs"] = plan.last  # more with each round
        training.batches.epoch = epoch
        if plan.begins and is_round(plan.phase) and not step:
            self.begin_round()
        if optimizer.averages_on != plan.averaged:
            optimizer.averages_on = plan.averaged
            model.make_train_function(force=True)  # the compiled step holds the old value
        self.rate, self.rates = math.nan, plan.rates(training.steps)
        if training.recipe.length_deviation and isinstance(training.batches, TokenBatches):
            length, lengths = training.recipe.sequence_length, training.batches.lengths
            self.rates = [rate * n / length for rate, n in zip(self.rates, lengths)]
        if step:  # resumed within the epoch: Keras has reset both
            model.training_rows.write(training.stream_state)
            assign_all(model.metrics_variables, training.progress.metrics)

    def on_train_batch_begin(self, batch, logs=None):
        training = self.training
        if self.rates[batch] != self.rate:
            self.model.optimizer.learning_rate = self.rate = self.rates[batch]
        if probability := training.recipe.drop_state_probability:
            rows = self.model.training_rows
            random = np.random.default_rng([training.card.seed, training.plan.epoch, batch])
            stays = random.random((rows.batch_size, 1)) >= probability
            if not stays.all():
                rows.write([ops.where(stays, state, 0) for state in rows.read(None)])

    def begin_round(self) -> None:
        """Start a round of fine-tuning from the best weights, with a fresh optimizer."""
        random_states = self.model.core.non_trainable_variables  # these continue
        with restoring(random_states):
            load_weights(self.model, self.training.folder / WEIGHTS)
        optimizer_of(self.model).begin_anew()


class Callbacks(keras.callbacks.CallbackList):
    """All callbacks of a training, for which its calls of `fit` are one.

    `begin` and `end` tell that the training begins and ends. The `fit` of a resumed epoch, which
    begins within it, counts its batches from there.

    Ours come first, where the user's callbacks need what they do, or last, where they need what
    the user's have done.
    """

    def __init__(
        self, training: Training, user: UserCallbacks, interrupts: Interrupts, *,
        stop: Callable[[History], bool] | None, checkpoint_steps: int, show: bool,
    ) -> None:  # fmt: skip
        self.training, self.user, self.stop = training, user, stop
        self.checkpoint = Checkpoint(training, user, interrupts, checkpoint_steps)
        self.tables = Tables(training)
        self.report = Report(training, show=show)
        validate = Validate(training, self.checkpoint, callbacks=self)
        put_back = keras.callbacks.LambdaCallback(on_epoch_end=validate.put_weights_back)
        first = [FollowPlan(training), validate]
        last = [put_back, self.report, self.checkpoint, self.tables]
        super().__init__(
            [*first, *user.named.values(), *last], add_history=True, model=training.model,
            verbose=int(self.report.show), epochs=training.recipe.epochs, steps=training.steps,
        )  # fmt: skip

    def begin(self) -> None:
        """Tell that the training begins; give the user's the state of the checkpoint."""
        progress, model = self.training.progress, self.training.model
        has_all = progress.callbacks.keys() <= self.user.named.keys()
        model.stop_training = progress.stopped and has_all
        self.user.set_directions()
        super().on_train_begin()
        self.user.note_beginning()
        self.user.state = progress.callbacks
        progress.stopped = bool(model.stop_training)

    def end(self) -> None:
        super().on_train_end(figures_of(self.training.progress.history[-1]))

    def on_train_begin(self, logs=None):
        self.training.model.stop_training = self.training.progress.stopped  # `fit` has reset it

    def on_train_end(self, logs=None):
        """Leave it to `end`: another `fit` may follow."""

    def on_epoch_begin(self, epoch, logs=None):
        self.first_step = self.training.progress.step
        super().on_epoch_begin(epoch, logs)
        if self.first_step:  # they know the epoch already
            self.user.state = self.training.progress.callbacks
        self.step_ended = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.training.model.stop_training = self.is_over()

    def is_over(self) -> bool:
        """Tell between two epochs whether the recipe, a callback or `stop` ends the training."""
        progress = self.training.progress
        if self.training.next_plan() is None:
            return True
        if not progress.history:
            return False
        return progress.stopped or bool(self.stop and self.stop(progress.history))

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(self.first_step + batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        progress = self.training.progress
        progress.step = self.first_step + batch + 1
        progress.seconds += time.perf_counter() - self.step_ended
        super().on_train_batch_end(progress.step - 1, logs)
        self.step_ended = time.perf_counter()  # leaves out what callbacks do, such as saving


def fit(training: Training, callbacks: Callbacks) -> None:
    """Fit the model until the training is over; go back where it diverges and may restart."""
    model = training.model
    callbacks.begin()
    if training.recipe.on_divergence == "restart" and not checkpoints.exist(training.folder):
        callbacks.checkpoint.save()
    is_over = not training.progress.step and callbacks.is_over()
    while not is_over:
        try:
            if training.progress.step:
                _finish_epoch(training, callbacks)
            else:
                epoch = len(training.progress.history)
                model.fit(
                    training.batches, initial_epoch=epoch, epochs=NO_LIMIT, callbacks=callbacks,
                    verbose=0,
                )  # fmt: skip
            is_over = model.stop_training
        except DivergedError as error:
            _restart(training, callbacks, error)


def _finish_epoch(training: Training, callbacks: Callbacks) -> None:
    """Take the steps of a resumed epoch that are left, and validate."""
    model, progress = training.model, training.progress
    epoch, steps_left = len(progress.history), training.steps - progress.step
    training.stream_state = model.training_rows.read(None)
    if progress.stopped or not steps_left:  # only the validation is left
        callbacks.on_train_begin()
        callbacks.on_epoch_begin(epoch)
        callbacks.on_epoch_end(epoch, model.get_metrics_result())
        return
    training.batches.epoch = epoch
    model.fit(
        _Remaining(training.batches, progress.step), steps_per_epoch=steps_left,
        initial_epoch=epoch, epochs=epoch + 1, callbacks=callbacks, verbose=0,
    )  # fmt: skip


def _restart(training: Training, callbacks: Callbacks, error: DivergedError) -> None:
    """Go back to the best epoch, or to the start, with a lower rate; save that at once."""
    folder, epoch = training.folder, len(training.progress.history) + 1
    restarts, best = [*training.progress.restarts, epoch], training.best_epoch
    if training.recipe.on_divergence != "restart":
        raise error
    if len(restarts) > MOST_RESTARTS:
        raise ValueError(f"{error} It has restarted {MOST_RESTARTS} times.") from None
    restored = checkpoints.restore(folder, training.model, training.progress.run, after=best)
    if restored is None:  # somebody has removed it
        raise error
    training.progress = restored
    restored.restarts = restarts
    kept.drop_after(folder, training.words_read(training.steps_read))
    callbacks.user.state = restored.callbacks
    callbacks.checkpoint.save()
    callbacks.report.bar.stop()
    callbacks.tables.num_events = 0  # the next epoch writes all anew
    place = f"the end of epoch {best}" if best else "the start"
    callbacks.report.print(
        f"{error.reason}, in epoch {epoch}. Restart {len(restarts)} goes back to {place}, with "
        f"{RESTART_FACTOR ** len(restarts):.2g} times the learning rate of the recipe."
    )


class _Remaining(keras.utils.PyDataset):
    """The batches of an epoch from step `start` on.

    Until the epoch begins it presents the whole epoch, of which Keras inspects the first two
    batches. So a resumed run compiles the same step as one that started the epoch at its
    first batch, and computes the same bits. `LanguageModel` reads `vocabulary`, `carried` and
    `lengths_vary`.
    """

    def __init__(self, batches: EpochBatches, start: int) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        self.batches, self.start, self.skipped = batches, start, 0
        self.vocabulary = batches.vocabulary
        self.carried = getattr(batches, "carried", True)
        self.lengths_vary = batches.lengths_vary

    def __len__(self) -> int:
        return len(self.batches) - self.skipped

    def on_epoch_begin(self) -> None:
        self.skipped = self.start

    def __getitem__(self, index: int):
        return self.batches[index + self.skipped]
