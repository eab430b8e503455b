"""The training loop: one `fit` over all epochs, and the callbacks that run between its steps."""

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

import keras
import numpy as np
from keras import ops

from dualnet._backend import assign_all, restoring
from dualnet.corpora import PairCorpus
from dualnet.corpora.token_batches import EpochBatches, TokenBatches
from dualnet.evaluation import translation_metrics
from dualnet.generation import translate
from dualnet.runs.folder import PLAIN_WEIGHTS, WEIGHTS
from dualnet.runs.loading import load_weights, write_weights
from dualnet.training import checkpoints, kept, two_tailed
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.training.optimizers import Weights, optimizer_of, weights_in
from dualnet.training.reporting import Report, Tables
from dualnet.training.schedule import RESTART_FACTOR, History, Row, has_diverged, is_round, watched
from dualnet.training.start import NO_LIMIT, Stage, Training
from dualnet.training.two_tailed import LONG, PLAIN, SHORT
from dualnet.training.user_callbacks import UserCallbacks

MOST_RESTARTS = 20  # 0.9 ** 20 = 0.12 of the learning rate
NOT_LOGGED = ("epoch", "phase", "seconds", "tokens_per_second")  # columns callbacks do not get


class DivergedError(ValueError):
    """Training has diverged, for this `reason`; see `Recipe`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def fit(training: Training, callbacks: "Callbacks") -> None:
    """Fit the model until the training is over; go back where it diverges and may restart."""
    model = training.model
    callbacks.begin()
    if training.recipe.on_divergence == "restart" and not checkpoints.newest_first(training.folder):
        callbacks.checkpoint.save()
    is_over = not training.progress.step and callbacks.is_over()
    while not is_over:
        try:
            if training.progress.step:
                _finish_epoch(training, callbacks)
            else:
                epoch = len(training.progress.history)
                model.fit(
                    training.batches,
                    initial_epoch=epoch,
                    epochs=NO_LIMIT,
                    callbacks=callbacks,
                    verbose=0,
                )
            is_over = model.stop_training
        except DivergedError as error:
            _restart(training, callbacks, error)


def _finish_epoch(training: Training, callbacks: "Callbacks") -> None:
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
        _Remaining(training.batches, progress.step),
        steps_per_epoch=steps_left,
        initial_epoch=epoch,
        epochs=epoch + 1,
        callbacks=callbacks,
        verbose=0,
    )


def _restart(training: Training, callbacks: "Callbacks", error: DivergedError) -> None:
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


class Callbacks(keras.callbacks.CallbackList):
    """The user's callbacks, followed by the training's own: validation, checkpoints and reports.

    The user's callbacks see one `fit`: `begin` and `end` call `on_train_begin` and `on_train_end`.
    The `fit` of a resumed epoch, which begins within it, counts its batches from there.
    """

    def __init__(
        self,
        training: Training,
        user: UserCallbacks,
        interrupts: Interrupts,
        *,
        stop: Callable[[History], bool] | None,
        checkpoint_steps: int,
        show: bool,
    ) -> None:
        self.training, self.user, self.interrupts, self.stop = training, user, interrupts, stop
        self.checkpoint = Checkpoint(training, user, interrupts, checkpoint_steps)
        self.tables = Tables(training)
        self.report = Report(training, show=show)
        super().__init__(
            [FollowPlan(training), *user.named.values()],
            add_history=True,
            model=training.model,
            verbose=int(self.report.show),
            epochs=training.recipe.epochs,
            steps=training.steps,
        )

    def begin(self) -> None:
        """Call `on_train_begin` of the user's callbacks; restore their state, if any is saved."""
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
        self.params["epochs"] = self.training.plan.last  # more with each round
        super().on_epoch_begin(epoch, logs)
        self.report.begin_epoch(epoch, self.training.plan.last)
        if self.first_step:  # they know the epoch already
            self.user.state = self.training.progress.callbacks
        self.step_ended = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        with self.validated(_floats(logs)) as figures:
            super().on_epoch_end(epoch, figures)
        self.report.end_epoch()
        self.checkpoint.end_epoch()
        self.tables.end_epoch()
        self.training.model.stop_training = self.is_over()

    def is_over(self) -> bool:
        """Return True between two epochs if the recipe, a callback or `stop` ends the training."""
        progress = self.training.progress
        if self.training.next_plan() is None:
            return True
        if not progress.history:
            return False
        return progress.stopped or bool(self.stop and self.stop(progress.history))

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(self.first_step + batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        progress, logs = self.training.progress, _floats(logs)
        progress.step = self.first_step + batch + 1
        progress.seconds += time.perf_counter() - self.step_ended
        super().on_train_batch_end(progress.step - 1, logs)
        self.report.end_step(logs["perplexity"])
        self.checkpoint.end_step(logs)
        self.step_ended = time.perf_counter()  # leaves out what callbacks do, such as saving

    def on_test_batch_end(self, batch, logs=None):
        super().on_test_batch_end(batch, logs)
        if self.interrupts.asked:
            _ = self.model  # synchronizes
            raise _AskedInValidation

    # --- validation

    @contextlib.contextmanager
    def validated(self, logs: dict[str, float]) -> Iterator[dict[str, float]]:
        """Validate, add to the history and write the best weights; yield the figures of the epoch.

        Within the context the model has the weights or averages with the best result.
        """
        training, plan, progress = self.training, self.training.plan, self.training.progress
        self.checkpoint.check_losses(logs)
        self.checkpoint.check_weights()
        self.checkpoint.note()
        candidates = self._candidates()
        try:
            results = {name: self._evaluate(weights) for name, weights in candidates.items()}
        except _AskedInValidation:
            self.checkpoint.save()
            self.checkpoint.stop()
        best = next(iter(results))
        if training.is_two_tailed:
            results.setdefault(SHORT, results[LONG])
            best = PLAIN if watched(results[PLAIN]) < watched(results[LONG]) else LONG
        row = {
            "epoch": plan.epoch,
            "phase": plan.phase,
            "loss": logs["loss"],
            "perplexity": logs["perplexity"],
            **results[best],
            "learning_rate": plan.learning_rate,
            "seconds": progress.seconds,
            "tokens_per_second": training.tokens_read / progress.seconds,
            **(two_tailed.columns(results) if training.is_two_tailed else {}),
        }
        if training.recipe.on_divergence == "restart" and has_diverged(row, progress.history):
            plain = results.get(PLAIN, results[best])["val_perplexity"]
            fault = "over twice the best" if math.isfinite(plain) else "no longer a number"
            self.checkpoint.refuse_to_go_on(f"The validation perplexity is {fault}")
        progress.history.append(row)
        with weights_in(training.model, candidates[best]):
            if training.best_epoch == plan.epoch:
                write_weights(training.folder, training.model)
            yield {**logs, **figures_of(row)}
        if training.is_two_tailed:
            self._continue_averages(progress.history)

    def _candidates(self) -> dict[str, Weights]:
        """Return the weights and averages to validate, by name."""
        if not self.training.is_two_tailed:
            return {PLAIN: self.training.averages}
        optimizer = optimizer_of(self.training.model)
        candidates = {PLAIN: None, LONG: optimizer.averages}
        if int(optimizer.short_steps) != int(optimizer.averaged_steps):  # else they are equal
            candidates[SHORT] = optimizer.short_averages
        return candidates

    def _evaluate(self, weights: Weights) -> dict[str, float]:
        """Return the validation results of the model with these weights."""
        training, model = self.training, self.training.model
        with weights_in(model, weights):
            logs = model.evaluate(
                training.valid_batches, verbose=0, return_dict=True, callbacks=self
            )
            self.checkpoint.check_losses(logs)
            results = {f"val_{name}": float(logs[name]) for name in ("loss", "perplexity")}
            if training.recipe.watch == "bleu":
                assert isinstance(training.corpus, PairCorpus)  # the recipe has checked it
                pairs, language = training.corpus.valid, training.corpus.target
                lines = translate(model, pairs.source_lines, beam=1)
                scores = translation_metrics(lines, pairs.target_lines, language=language)
                results["val_bleu"] = scores["bleu"]
        return results

    def _continue_averages(self, history: History) -> None:
        """Empty or shorten the two averages; save the best weights without averaging."""
        model = self.training.model
        if min(history, key=lambda row: two_tailed.result_of(row, PLAIN)) is history[-1]:
            write_weights(self.training.folder, model, PLAIN_WEIGHTS)
        action, optimizer = two_tailed.next_action(history), optimizer_of(model)
        if action == two_tailed.SHORTEN:
            optimizer.shorten()
        elif action != two_tailed.KEEP:
            optimizer.empty(short_only=action == two_tailed.EMPTY_SHORT)


class _AskedInValidation(Exception):  # noqa: N818
    """A stop was asked for during the validation."""


def _floats(logs: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in logs.items()}


def figures_of(row: Row) -> dict[str, float]:
    """Return the figures of an epoch that callbacks get."""
    return {key: float(value) for key, value in row.items() if key not in NOT_LOGGED}


class FollowPlan(Stage):
    """Begins each epoch as its plan says, and gives each step its learning rate."""

    def on_epoch_begin(self, epoch, logs=None):
        training, model = self.training, self.model
        plan, optimizer, step = training.plan, optimizer_of(model), training.progress.step
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


class Checkpoint(Stage):
    """Saves every few steps, after each epoch, and when the training is stopped.

    Raises `DivergedError` once a loss or a weight is not finite, and keeps the models of
    `Recipe.keep_every`.
    """

    def __init__(
        self, training: Training, user: UserCallbacks, interrupts: Interrupts, every: int
    ) -> None:
        super().__init__(training)
        self.user, self.interrupts, self.every = user, interrupts, every
        # Checkpoints with whose weights no finite perplexity was seen yet.
        is_within_epoch = training.progress.step > 0
        self.unproven = checkpoints.newest_first(training.folder)[:is_within_epoch]

    def end_step(self, logs: Mapping[str, float]) -> None:
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

    def end_epoch(self) -> None:
        progress = self.training.progress
        progress.step, progress.seconds = 0, 0.0
        progress.stopped = bool(self.model.stop_training)
        self.note()
        progress.metrics = []
        self.save()

    def note(self) -> None:
        """Record the epoch's metrics so far, and the state of the user's callbacks."""
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
            with weights_in(self.model, training.averages):
                for count in due:
                    kept.keep(training.folder, count, self.model, training.card)

    def stop(self) -> NoReturn:
        progress, steps = self.training.progress, self.training.steps
        raise Stopped(
            f"Stopped and saved after step {progress.step} of {steps} of epoch "
            f"{len(progress.history) + 1}. To continue, repeat the command with --resume."
        )

    # --- divergence

    def check_losses(self, logs: Mapping[str, float]) -> None:
        if not math.isfinite(logs["loss"]):
            for path in self.unproven:
                shutil.rmtree(path, ignore_errors=True)
            self.refuse_to_go_on("The loss is no longer a number")
        if math.isfinite(logs["perplexity"]):
            self.unproven.clear()

    def check_weights(self) -> None:
        """Raise for a weight that is not finite: a loss shows the steps before it only."""
        if not checkpoints.is_finite(self.model):
            self.refuse_to_go_on("A weight or a moment is no longer a number")

    def refuse_to_go_on(self, reason: str) -> NoReturn:
        folder, progress = self.training.folder, self.training.progress
        has_norm = self.training.recipe.global_clipnorm  # which excludes clipnorm
        clip = "a smaller global_clipnorm" if has_norm else "clipnorm=1"
        way_out = "Train again"
        if checkpoints.newest_first(folder):
            way_out = f"The last checkpoint in {str(folder)!r} is intact: resume from it with "
            way_out += "--resume, or train again"
        raise DivergedError(
            reason,
            f"{reason}, in epoch {len(progress.history) + 1} by step {progress.step}. {way_out}, "
            f"with a smaller learning_rate (it was {self.training.plan.learning_rate:g}) or with "
            f"{clip}.",
        )
