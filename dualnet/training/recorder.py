"""Runs the epochs of a training and saves what they produce: checkpoints, metrics, curves."""

import contextlib
import math
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import keras
import numpy as np
from keras import ops

from dualnet import _tensorboard
from dualnet._backend import assign_all, restoring, values_of
from dualnet._contexts import progress_bar
from dualnet._files import write_csv
from dualnet.builders import LanguageModel
from dualnet.corpora import PairCorpus
from dualnet.evaluation import translation_metrics
from dualnet.generation import translate
from dualnet.plots import plot_curves
from dualnet.runs.folder import PLAIN_WEIGHTS, WEIGHTS
from dualnet.runs.loading import load_weights, write_weights
from dualnet.training import checkpoints, kept, two_tailed
from dualnet.training.callbacks import Callbacks
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.training.optimizers import optimizer_of
from dualnet.training.schedule import RESTART_FACTOR, TRAIN, Plan, has_diverged, is_round, watched
from dualnet.training.start import Start
from dualnet.training.two_tailed import LONG, PLAIN, SHORT

REDRAW_SECONDS = 2.0  # drawing the curves takes longer than a small epoch
REFRESH_SECONDS = 0.5  # reading a metric waits for the device
LOG_SECONDS = 60.0  # between lines where there is no terminal
MOST_RESTARTS = 20  # 0.9 ** 20 = 0.12 of the learning rate
NOT_LOGGED = ("epoch", "phase", "seconds", "tokens_per_second")  # columns callbacks do not get
TIMED_SECONDS = 5.0  # of steps, after which it is told how long an epoch takes


class DivergedError(ValueError):
    """Training has diverged, for this `reason`; see `Recipe`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Recorder(keras.callbacks.Callback):
    """Trains and validates epoch by epoch; keeps the RUN folder and `start.progress` current."""

    def __init__(
        self, start: Start, interrupts: Interrupts, callbacks: Callbacks, checkpoint_steps: int, *,
        show: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.start = start
        self.state = start.progress
        self.callbacks = callbacks
        self.epoch_logs: dict[str, float] = {}  # of the last epoch, for callbacks
        self.may_restart = start.recipe.on_divergence == "restart"
        self.steps = len(start.train_batches)
        self.is_two_tailed = start.recipe.averaging == "two_tailed"  # from the first step on
        self.interrupts, self.checkpoint_steps = interrupts, checkpoint_steps
        self.show = show and sys.stderr is not None
        self.draws = self.show and sys.stderr.isatty()
        self.refreshed = self.drawn = self.logged = -math.inf  # times
        self.is_timed = False
        # Checkpoints with whose weights no finite perplexity was seen yet.
        self.unproven = checkpoints.newest_first(start.folder)[: self.state.step > 0]
        self.swapped = contextlib.ExitStack()  # open while averages replace the weights
        self.num_events = 0  # epochs that this process has written for TensorBoard
        self.bar = progress_bar(show=self.draws, auto_refresh=False)
        self.task = self.bar.add_task("", completed=self._steps_so_far(), figures="")

    # --- the whole training, for callbacks

    def begin(self) -> None:
        """Tell the callbacks that training begins; give them the state of the checkpoint."""
        model, state = self.start.model, self.state
        same = state.callbacks.keys() <= self.callbacks.named.keys()
        model.stop_training = state.stopped and same
        epochs = self.start.recipe.epochs
        self.callbacks.begin(model, verbose=int(self.show), epochs=epochs, steps=self.steps)
        self.callbacks.state = state.callbacks
        state.stopped = bool(model.stop_training)

    # --- one epoch

    def run(self, plan: Plan) -> None:
        """Train and validate an epoch; go back to the best one if it diverges and may restart."""
        self.plan = plan
        self.callbacks.params["epochs"] = plan.last  # more with each round
        try:
            if self.may_restart and not checkpoints.exist(self.start.folder):
                self._save()
            self.train(plan)
            self.validate(plan)
        except DivergedError as error:
            self._restart(plan, error)

    def train(self, plan: Plan) -> None:
        """Run the remaining steps of the current epoch."""
        model, batches = self.start.model, self.start.train_batches
        self.first_step = self.state.step
        self.timed_from: tuple[float, int] | None = None  # when a step had ended, and which
        if plan.begins and is_round(plan.phase) and not self.first_step:
            self._begin_round()
        optimizer = optimizer_of(model)
        if optimizer.averages_on != plan.averaged:
            optimizer.averages_on = plan.averaged
            model.train_function = None  # the compiled step holds the old value
        batches.epoch = plan.epoch - 1
        self.rate, self.rates = math.nan, plan.rates(self.steps)
        if self.start.recipe.length_deviation:
            length = self.start.recipe.sequence_length
            self.rates = [rate * n / length for rate, n in zip(self.rates, batches.lengths)]
        self.started = time.perf_counter() - self.state.seconds
        self.stream_state = model.training_rows.read(None)
        stopped = self.state.stopped and self.first_step  # by a callback
        if stopped or self.first_step == self.steps:  # only the validation is left
            assign_all(model.metrics_variables, self.state.metrics)
            self._tell_of_epoch(plan.epoch - 1)
        else:
            epoch = f"epoch {plan.epoch}/{plan.last}"
            self.bar.update(self.task, description=epoch, total=self.steps * plan.last)
            self.bar.start()
            self._report(f"{self._tokens()}, compiling")
            model.fit(
                _Remaining(batches, self.first_step), steps_per_epoch=self.steps - self.first_step,
                initial_epoch=plan.epoch - 1, epochs=plan.epoch, callbacks=[self], verbose=0,
            )  # fmt: skip
        self.logs = {metric.name: float(metric.result()) for metric in model.metrics}
        self._check_loss(self.logs)
        self._update_state()

    def validate(self, plan: Plan) -> None:
        """Evaluate on the validation split and save the results of the epoch."""
        model, history, folder = self.start.model, self.state.history, self.start.folder
        candidates = self._candidates(plan)
        results = {name: self._evaluate(weights) for name, weights in candidates.items()}
        reported = LONG if plan.averaged else PLAIN
        if self.is_two_tailed:
            results.setdefault(SHORT, results[LONG])
            reported = PLAIN if watched(results[PLAIN]) < watched(results[LONG]) else LONG
        row: dict[str, Any] = {
            "epoch": plan.epoch,
            "phase": plan.phase,
            **{name: self.logs[name] for name in ("loss", "perplexity")},
            **results[reported],
            "learning_rate": plan.learning_rate,
            "seconds": self.state.seconds,
            "tokens_per_second": self._tokens_read() / self.state.seconds,
            **(two_tailed.columns(results) if self.is_two_tailed else {}),
        }
        if self.may_restart and has_diverged(row, history):
            plain = row.get("val_perplexity_plain", row["val_perplexity"])
            what = "over twice the best" if math.isfinite(plain) else "no longer a number"
            self._refuse_to_go_on(f"The validation perplexity is {what}")
        history.append(row)
        self.epoch_logs = {key: float(row[key]) for key in row if key not in NOT_LOGGED}
        with _weights_in(model, candidates[reported]):
            if min(history, key=watched) is row:  # of equals the first
                write_weights(folder, model)
            self.callbacks.tell("on_epoch_end", plan.epoch - 1, logs=self.epoch_logs)
        self.state.step, self.state.seconds, self.state.metrics = 0, 0.0, []
        self.state.callbacks, self.state.stopped = self.callbacks.state, bool(model.stop_training)
        if self.is_two_tailed:
            if min(history, key=lambda row: two_tailed.result_of(row, PLAIN)) is row:
                write_weights(folder, model, PLAIN_WEIGHTS)
            action = two_tailed.next_action(history)
            if action == two_tailed.SHORTEN:
                optimizer_of(model).shorten()
            elif action != two_tailed.KEEP:
                optimizer_of(model).empty(short_only=action == two_tailed.EMPTY_SHORT)
        self._save()
        self.write_tables(draw=time.perf_counter() - self.drawn > REDRAW_SECONDS)
        phase = "" if plan.phase == TRAIN else f" ({plan.phase})"
        bleu = f", BLEU {row['val_bleu']:.2f}" if "val_bleu" in row else ""
        self.bar.update(self.task, completed=self._steps_so_far(), refresh=True)
        self._print(
            f"epoch {plan.epoch}/{plan.last}{phase}  train perplexity {row['perplexity']:.2f}  "
            f"valid {row['val_perplexity']:.2f}{bleu}  {row['tokens_per_second']:,.0f} tokens/s  "
            f"{row['seconds']:.0f} s"
        )
        if row["val_perplexity"] > (units := len(self.start.corpus.vocabulary)):
            self._print(
                f"Validation is worse than the uniform distribution over {units:,} units. Unless "
                "it falls in the next epochs, try a smaller learning_rate than "
                f"{plan.learning_rate:g}, or clip the gradients."
            )

    def _candidates(self, plan: Plan) -> dict[str, list[Any] | None]:
        """Return the averages to validate by name; None stands for the weights themselves."""
        optimizer = optimizer_of(self.start.model)
        if not self.is_two_tailed:
            return {LONG: optimizer.averages} if plan.averaged else {PLAIN: None}
        candidates = {PLAIN: None, LONG: optimizer.averages}
        if int(optimizer.short_steps) != int(optimizer.averaged_steps):  # else they are equal
            candidates[SHORT] = optimizer.short_averages
        return candidates

    def _evaluate(self, weights: list[Any] | None) -> dict[str, float]:
        """Return the validation results of the model with these weights, None for its own."""
        model = self.start.model
        with self.swapped:
            self.swapped.enter_context(_weights_in(model, weights))
            batches = self.start.valid_batches
            logs = model.evaluate(batches, verbose=0, return_dict=True, callbacks=[self])
            self._check_loss(logs)
            results = {f"val_{name}": float(logs[name]) for name in ("loss", "perplexity")}
            if self.start.recipe.watch == "bleu":
                assert isinstance(self.start.corpus, PairCorpus)  # the recipe has checked it
                pairs, language = self.start.corpus.valid, self.start.corpus.target
                lines = translate(model, pairs.source_lines, beam=1)
                scores = translation_metrics(lines, pairs.target_lines, language=language)
                results["val_bleu"] = scores["bleu"]
        return results

    def write_tables(self, *, draw: bool = True) -> None:
        """Rewrite `metrics.csv`, the TensorBoard scalars and, with `draw`, `curves.png`."""
        folder, history = self.start.folder, self.state.history
        names = list(history[0])
        rows = [[row.get(name, "") for name in names] for row in history]
        write_csv(folder / "metrics.csv", [names, *rows])
        events = []
        for row in history[self.num_events :]:
            scalars = {tag: value for tag, value in row.items() if tag != "phase"}
            events.append((int(row["epoch"]), _tensorboard.scalars(scalars)))
        # At first a fresh file, so that a resumed run has each epoch once.
        _tensorboard.write(folder / "tensorboard", events, append=self.num_events > 0)
        self.num_events = len(history)
        if draw:
            columns = {"valid": "val_perplexity", "train": "perplexity"}
            if self.is_two_tailed:
                columns["valid, without averages"] = f"val_perplexity_{PLAIN}"
            model = self.start.model.name
            curves = {f"{model} {n}": [row[key] for row in history] for n, key in columns.items()}
            plot_curves(curves, folder / "curves.png")
            self.drawn = time.perf_counter()

    # --- hooks of Keras; on JAX, reading `self.model` synchronizes its variables

    def on_train_begin(self, logs=None):
        self.start.model.stop_training = self.state.stopped  # `fit` has reset it

    def on_epoch_begin(self, epoch, logs=None):
        if self.first_step:  # resumed within the epoch: Keras has reset everything
            self.model.training_rows.write(self.stream_state)
            assign_all(self.model.metrics_variables, self.state.metrics)
        self._tell_of_epoch(epoch)

    def on_train_batch_begin(self, batch, logs=None):
        step = self.first_step + batch
        rate = self.rates[step]
        if rate != self.rate:
            self.rate = rate
            self.model.optimizer.learning_rate = rate
        if probability := self.start.recipe.drop_state_probability:
            random = np.random.default_rng([self.start.card.seed, self.plan.epoch, step])
            rows = self.model.training_rows
            kept = random.random((rows.batch_size, 1)) >= probability
            if not kept.all():
                rows.write([ops.where(kept, state, 0) for state in rows.read(None)])
        self.callbacks.tell("on_train_batch_begin", step, logs=logs)

    def on_train_batch_end(self, batch, logs=None):
        self.state.step = self.first_step + batch + 1
        self.state.seconds = time.perf_counter() - self.started
        self._keep(logs)
        self.callbacks.tell("on_train_batch_end", self.state.step - 1, logs=logs)
        self.state.stopped = bool(self.start.model.stop_training)
        now = time.perf_counter()
        if self.unproven or now - self.refreshed > REFRESH_SECONDS:
            self.refreshed = now
            self._check_loss(logs)
            speed = self._tokens_read() / self.state.seconds
            figures = f"{self._tokens()}  {speed:,.0f} tokens/s  "
            self._report(f"{figures}perplexity {float(logs['perplexity']):.1f}")
            self._tell_time()
        due = not self.state.step % self.checkpoint_steps and self.state.step < self.steps
        if due or self.interrupts.asked:
            self._check_loss(logs)
            _ = self.model  # synchronizes
            self._update_state()
            self._save()
        if self.interrupts.asked:
            self._stop()

    def on_test_begin(self, logs=None):
        self.callbacks.tell("on_test_begin", logs=logs)

    def on_test_batch_begin(self, batch, logs=None):
        self.callbacks.tell("on_test_batch_begin", batch, logs=logs)

    def on_test_end(self, logs=None):
        self.callbacks.tell("on_test_end", logs=logs)

    def on_test_batch_end(self, batch, logs=None):
        self.callbacks.tell("on_test_batch_end", batch, logs=logs)
        if self.interrupts.asked:
            _ = self.model  # synchronizes
            self.swapped.close()  # puts the weights back
            self._save()
            self._stop()

    # --- details

    def _tokens(self) -> str:
        """Return a text: how many of the tokens of the epoch have been read."""
        return f"{self._tokens_read():,} of {self.start.train_batches.num_tokens:,} tokens"

    def _tokens_read(self) -> int:
        """Return about how many tokens of the epoch have been read; at its end it is exact."""
        return self.start.train_batches.num_tokens * self.state.step // self.steps

    def _tell_time(self) -> None:
        """Print once, after some steps, about how long the epochs take."""
        now, done = time.perf_counter(), self._steps_so_far()
        began, step = self.timed_from = self.timed_from or (now, done)  # the first step compiles
        if not self.is_timed and now - began > TIMED_SECONDS:
            self.is_timed = True
            self._print(told_time((now - began) / (done - step) * self.steps, self.plan.last))

    def _report(self, figures: str) -> None:
        """Show `figures` in the bar; without a terminal as a line, the first of them at once."""
        done, now = self._steps_so_far(), time.perf_counter()
        if self.draws:
            self.bar.update(self.task, completed=done, figures=figures, refresh=True)
        elif now - self.logged > LOG_SECONDS:
            self.logged = now
            self._print(f"epoch {self.plan.epoch}/{self.plan.last}  {figures}")

    def _print(self, line: str) -> None:
        if self.show:
            self.bar.console.print(line, highlight=False, soft_wrap=True)

    def _steps_so_far(self) -> int:
        return self.steps * len(self.state.history) + self.state.step

    def _begin_round(self) -> None:
        """Start a round of fine-tuning from the best weights, with a fresh optimizer."""
        model = self.start.model
        random_states = model.core.non_trainable_variables  # these continue
        with restoring(random_states):
            load_weights(model, self.start.folder / WEIGHTS)
        optimizer_of(model).begin_anew()

    def _check_weights(self) -> None:
        """Raise `DivergedError` for a weight that is not finite; a loss tells of earlier steps."""
        _ = self.model  # synchronizes
        if not checkpoints.is_finite(self.start.model):
            self._refuse_to_go_on("A weight or a moment is no longer a number")

    def _save(self) -> None:
        self._check_weights()
        best = _best_epoch(self.state.history) if self.may_restart else None
        path = checkpoints.save(self.start.folder, self.start.model, self.state, best=best)
        self.unproven += [path] * (self.state.step > 0)
        self.started = time.perf_counter() - self.state.seconds  # leaves out the saving

    def _words_read(self, steps: int) -> int:
        return steps * self.start.words // self.steps

    def _keep(self, logs: Mapping[str, Any]) -> None:
        """Keep the model if this step has read the words after which it is due."""
        start, steps = self.start, self._steps_so_far()
        before, read = self._words_read(steps - 1), self._words_read(steps)
        if not (due := kept.due(start.recipe.keep_every, before, read)):
            return
        self._check_loss(logs)
        self._check_weights()
        optimizer = optimizer_of(start.model)
        is_averaged = self.plan.averaged and not self.is_two_tailed
        with _weights_in(start.model, optimizer.averages if is_averaged else None):
            for count in due:
                kept.keep(start.folder, count, start.model, start.card)
        self.started = time.perf_counter() - self.state.seconds  # leaves out the keeping

    def _update_state(self) -> None:
        self.state.metrics = [float(value) for value in self.start.model.metrics_variables]
        self.state.callbacks = self.callbacks.state

    def _tell_of_epoch(self, epoch: int) -> None:
        """Tell callbacks of an epoch that begins, or that goes on with the state of then."""
        self.callbacks.tell("on_epoch_begin", epoch)
        if self.first_step:
            self.callbacks.state = self.state.callbacks

    def _stop(self) -> None:
        place = f"step {self.state.step} of {self.steps} of epoch {len(self.state.history) + 1}"
        way_out = "To continue, repeat the command with --resume."
        raise Stopped(f"Stopped and saved after {place}. {way_out}")

    def _check_loss(self, logs: Mapping[str, Any]) -> None:
        if not math.isfinite(float(logs["loss"])):
            for path in self.unproven:
                shutil.rmtree(path, ignore_errors=True)
            self._refuse_to_go_on("The loss is no longer a number")
        if math.isfinite(float(logs["perplexity"])):
            self.unproven.clear()

    def _refuse_to_go_on(self, what: str) -> NoReturn:
        recipe, folder = self.start.recipe, self.start.folder
        clip = "global_clipnorm" if recipe.global_clipnorm else "clipnorm"
        message = f"{what}, in epoch {len(self.state.history) + 1} by step {self.state.step}. "
        way_out = "Train again"
        if checkpoints.exist(folder):
            way_out = f"The last checkpoint in {str(folder)!r} is intact: resume from it with "
            way_out += "--resume, or train again"
        way_out += f", with a smaller learning_rate (it was {self.plan.learning_rate:g}) or a "
        way_out += f"{clip} (it was {getattr(recipe, clip):g}; try 1)."
        raise DivergedError(what, message + way_out)

    def _restart(self, plan: Plan, error: DivergedError) -> None:
        """Go back to the best epoch, or to the start, with a lower rate; save that at once."""
        folder, restarts = self.start.folder, [*self.state.restarts, plan.epoch]
        if not self.may_restart:
            raise error
        if len(restarts) > MOST_RESTARTS:
            raise ValueError(f"{error} It has restarted {MOST_RESTARTS} times.") from None
        best = _best_epoch(self.state.history[: plan.epoch - 1])
        restored = checkpoints.restore(folder, self.start.model, self.state.run, after=best)
        if restored is None:  # somebody has removed it
            raise error
        self.start.progress = self.state = restored
        restored.restarts = restarts
        kept.drop_after(folder, self._words_read(self._steps_so_far()))
        self.callbacks.state = restored.callbacks
        self._save()
        self.bar.stop()
        self.num_events = 0  # the next epoch writes all anew
        place = f"the end of epoch {best}" if best else "the start"
        factor = RESTART_FACTOR ** len(restarts)
        self._print(
            f"{error.reason}, in epoch {plan.epoch}. Restart {len(restarts)} goes back to "
            f"{place}, with {factor:.2g} times the learning rate of the recipe."
        )


def _best_epoch(history: list[dict[str, Any]]) -> int:
    """Return the number of the best epoch, the first of equals, 0 for none."""
    return history.index(min(history, key=watched)) + 1 if history else 0


def told_time(seconds: float, epochs: int) -> str:
    """Return a sentence that says how long an epoch takes, and all of them.

    Example:

    >>> from dualnet.training.recorder import told_time
    >>> told_time(90.4, 40)
    'An epoch takes about 90 s here, 40 epochs about 1.0 h.'
    """
    several = f", {epochs} epochs about {duration(seconds * epochs)}" if epochs > 1 else ""
    return f"An epoch takes about {duration(seconds)} here{several}."


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours, such as "8.0 s", "90 s", "15 min", "1.5 h"."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"


@contextlib.contextmanager
def _weights_in(model: LanguageModel, values: list[Any] | None) -> Iterator[None]:
    """Replace the weights of `model` by `values`, if any; restore them bit for bit afterwards."""
    weights = [] if values is None else model.trainable_variables
    with restoring(weights):
        assign_all(weights, values_of(values or ()))
        yield


class _Remaining(keras.utils.PyDataset):
    """The batches of an epoch from step `start` on.

    Until the epoch begins it presents the whole epoch, of which Keras inspects the first two
    batches. So a resumed run compiles the same step as one that started the epoch at its
    first batch, and computes the same bits. `LanguageModel` reads `vocabulary`, `carried` and
    `lengths_vary`.
    """

    def __init__(self, batches: Any, start: int) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        self.batches, self.start, self.skipped = batches, start, 0
        self.vocabulary = batches.vocabulary
        self.carried = getattr(batches, "carried", True)
        self.lengths_vary = batches.lengths_vary

    def __len__(self) -> int:
        return len(self.batches) - self.skipped

    def on_epoch_begin(self) -> None:
        self.skipped = self.start

    def __getitem__(self, index: int) -> Any:
        return self.batches[index + self.skipped]
