"""Keeps a RUN folder while a model trains: progress, checkpoints, metrics, curves, best weights."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from dualnet._files import write_whole
from dualnet.builders import LanguageModel
from dualnet.plots import plot_curves
from dualnet.runs.folder import WEIGHTS
from dualnet.runs.loading import load_weights, put_weights
from dualnet.training import checkpoints
from dualnet.training.checkpoints import Progress
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.training.optimizers import optimizer_of
from dualnet.training.recipe import Recipe
from dualnet.training.schedule import TRAIN, Plan, is_round

DRAWN_EVERY = 2.0  # seconds: to draw the curves takes longer than a small epoch


class Recorder(keras.callbacks.Callback):
    """Follows the steps of one run, and of each of its epochs keeps what is found.

    Args:
        folder: The RUN folder.
        recipe: The run's `Recipe`.
        state: `Progress` to begin with; goes on with the run.
        interrupts: `Interrupts`, whose wish is heard after each step.
        checkpoint_steps: Steps between two checkpoints within an epoch.
        steps: Steps of an epoch.
        num_tokens: Tokens predicted in an epoch.
        show: Whether to show a progress bar and a line per epoch on standard error.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        state: Progress,
        interrupts: Interrupts,
        *,
        checkpoint_steps: int,
        steps: int,
        num_tokens: int,
        show: bool,
    ) -> None:
        super().__init__()
        self.folder = folder
        self.recipe = recipe
        self.state = state
        self.interrupts = interrupts
        self.checkpoint_steps = checkpoint_steps
        self.steps = steps
        self.num_tokens = num_tokens
        self.show = show
        self.unsaved = 0  # steps since the last checkpoint
        self.shown = -math.inf
        self.drawn = -math.inf
        self.averages = contextlib.ExitStack()  # open while they stand for the weights
        self.rate = math.nan
        self.rates: list[float] | None = None  # of the steps, where they differ
        self.bar: Any = None
        self.events: Any = None

    # --- one epoch

    def train(self, model: LanguageModel, batches: keras.utils.PyDataset, plan: Plan) -> None:
        """Run the steps that are left of the epoch under way."""
        self.plan = plan
        self.start = self.state.step
        if plan.begins and is_round(plan.phase) and not self.start:
            self._begin_round(model)
        optimizer = optimizer_of(model)
        if optimizer.averages_on != plan.averaged:
            optimizer.averages_on = plan.averaged
            model.train_function = None  # compiled without or with them
        batches.epoch = plan.epoch - 1
        self._set_rates(model, batches)
        self.began = time.perf_counter() - self.state.seconds
        self.rows = model.training_rows.read(None)
        if self.start == self.steps:  # stopped between the last step and its validation
            self._restore_metrics(model)
        else:
            self._open_bar()
            model.fit(
                _Remaining(batches, self.start),
                steps_per_epoch=self.steps - self.start,
                initial_epoch=plan.epoch - 1,
                epochs=plan.epoch,
                callbacks=[self],
                verbose=0,
            )
        self.logs = {metric.name: float(metric.result()) for metric in model.metrics}
        self._check_loss(self.logs["loss"])
        self._note_metrics(model)

    def validate(self, model: LanguageModel, batches: keras.utils.PyDataset, plan: Plan) -> None:
        """Evaluate on the validation text, and keep what the epoch has given."""
        with self.averages:
            if plan.averaged:
                self.averages.enter_context(_averages_in(model))
            found = model.evaluate(batches, verbose=0, return_dict=True, callbacks=[self])
            self._check_loss(found["loss"])
            row = self._row(found, plan)
            history = self.state.history
            history.append(row)
            self.state.step, self.state.seconds, self.state.metrics = 0, 0.0, []
            if row["val_perplexity"] <= min(past["val_perplexity"] for past in history):
                put_weights(self.folder, model)
        self._save(model)
        self.write_tables(model.name, draw=time.perf_counter() - self.drawn > DRAWN_EVERY)
        if self.show:
            phase = "" if plan.phase == TRAIN else f" ({plan.phase})"
            self._say(
                f"epoch {plan.epoch}/{plan.last}{phase}  train perplexity "
                f"{row['perplexity']:.2f}  valid {row['val_perplexity']:.2f}  "
                f"{row['tokens_per_second']:,.0f} tokens/s  {row['seconds']:.0f} s"
            )

    def _row(self, found: dict[str, Any], plan: Plan) -> dict[str, Any]:
        return {
            "epoch": plan.epoch,
            "phase": plan.phase,
            "loss": self.logs["loss"],
            "perplexity": self.logs["perplexity"],
            "val_loss": float(found["loss"]),
            "val_perplexity": float(found["perplexity"]),
            "learning_rate": plan.learning_rate,
            "seconds": self.state.seconds,
            "tokens_per_second": self.num_tokens / self.state.seconds,
        }

    def write_tables(self, name: str, *, draw: bool = True) -> None:
        """Write `metrics.csv`, the TensorBoard scalars and, with `draw`, `curves.png` anew."""
        history = self.state.history
        text = io.StringIO()
        writer = csv.DictWriter(text, history[0])
        writer.writeheader()
        writer.writerows(history)
        write_whole(self.folder / "metrics.csv", text.getvalue())
        self._write_scalars()
        if not draw:
            return
        curves = {
            f"{name} valid": [past["val_perplexity"] for past in history],
            f"{name} train": [past["perplexity"] for past in history],
        }
        plot_curves(curves, self.folder / "curves.png")
        self.drawn = time.perf_counter()

    def close(self) -> None:
        """Close what is open."""
        for opened in (self.bar, self.events):
            if opened is not None:
                opened.close()

    # --- what Keras calls

    def on_epoch_begin(self, epoch, logs=None):
        if self.start:  # in the middle: Keras has set all back to zero
            self.model.training_rows.write(self.rows)
            self._restore_metrics(self.model)

    def on_train_batch_begin(self, batch, logs=None):
        if self.rates is None:
            return
        rate = self.rates[self.start + batch]
        if rate != self.rate:  # else on JAX no variable need be brought up to date
            self.rate = rate
            self.model.optimizer.learning_rate = rate

    def on_train_batch_end(self, batch, logs=None):
        self.state.step = self.start + batch + 1
        self.state.seconds = time.perf_counter() - self.began
        self.unsaved += 1
        if self.bar is not None:
            self.bar.update(1)
        now = time.perf_counter()
        if now - self.shown > 0.5:  # reading a number waits for the device
            self.shown = now
            self._check_loss(logs["loss"])
            if self.bar is not None:
                self.bar.set_postfix_str(f"perplexity {float(logs['perplexity']):.1f}")
        due = self.unsaved >= self.checkpoint_steps and self.state.step < self.steps
        if due or self.interrupts.asked:
            self._check_loss(logs["loss"])
            model = self.model  # on JAX brings the variables up to date
            self._note_metrics(model)
            self._save(model)
        if self.interrupts.asked:
            self._stop()

    def on_test_batch_end(self, batch, logs=None):
        if self.interrupts.asked:
            model = self.model  # on JAX brings the variables up to date
            self.averages.close()  # the weights are back
            self._save(model)
            self._stop()

    # --- details

    def _begin_round(self, model: LanguageModel) -> None:
        """Begin a round of fine-tuning: from the best weights so far, with a fresh optimizer."""
        random = model.core.non_trainable_variables  # states of generators, which go on
        before = [_copy(variable) for variable in random]
        load_weights(model, self.folder / WEIGHTS)
        _assign(random, before)
        optimizer_of(model).begin_anew()

    def _set_rates(self, model: LanguageModel, batches: Any) -> None:
        """Set the learning rate of the epoch, or keep the rates of its steps."""
        self.rate, self.rates = math.nan, None
        if self.recipe.length_deviation:
            rate = self.plan.learning_rate
            self.rates = [rate * n / self.recipe.sequence_length for n in batches.lengths]
        else:
            model.optimizer.learning_rate = self.plan.learning_rate

    def _save(self, model: LanguageModel) -> None:
        checkpoints.save(self.folder, model, self.state)
        self.unsaved = 0
        self.began = time.perf_counter() - self.state.seconds  # saving is no training

    def _stop(self) -> None:
        raise Stopped(
            f"Stopped and saved after step {self.state.step} of {self.steps} of epoch "
            f"{len(self.state.history) + 1}. Go on with the same command and --resume."
        )

    def _note_metrics(self, model: LanguageModel) -> None:
        self.state.metrics = [float(variable) for variable in model.metrics_variables]

    def _restore_metrics(self, model: LanguageModel) -> None:
        for variable, value in zip(model.metrics_variables, self.state.metrics):
            variable.assign(value)

    def _check_loss(self, loss: Any) -> None:
        if math.isfinite(float(loss)):
            return
        clip = "global_clipnorm" if self.recipe.global_clipnorm else "clipnorm"
        raise ValueError(
            f"The loss is no longer a number, in epoch {len(self.state.history) + 1} by step "
            f"{self.state.step}. The last checkpoint in {str(self.folder)!r} is kept: go on from "
            "it with --resume, or start anew, with a smaller learning_rate (it was "
            f"{self.plan.learning_rate:g}) or a {clip} (it was {getattr(self.recipe, clip):g}; "
            "try 1)."
        )

    def _open_bar(self) -> None:
        if not self.show:
            return
        if self.bar is None:
            from tqdm.auto import tqdm

            self.bar = tqdm(
                initial=self.steps * (self.plan.epoch - 1) + self.start,
                unit="token",
                unit_scale=self.num_tokens / self.steps,
                disable=None,
                dynamic_ncols=True,
                leave=False,
            )
        self.bar.total = self.steps * self.plan.last
        self.bar.set_description(f"epoch {self.plan.epoch}/{self.plan.last}")

    def _write_scalars(self) -> None:
        # tensorboard's record writer: its event writer, as Keras's callback, loads TensorFlow.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        rows = self.state.history[-1:]
        if self.events is None:  # anew, so that a resumed run has each epoch once
            (self.folder / "tensorboard").mkdir(exist_ok=True)
            self.events = (self.folder / "tensorboard" / "events.out.tfevents.0.dualnet").open("wb")
            version = Event(wall_time=time.time(), file_version="brain.Event:2")
            RecordWriter(self.events).write(version.SerializeToString())
            rows = self.state.history
        for row in rows:
            values = [
                Summary.Value(tag=tag, simple_value=value)
                for tag, value in row.items()
                if tag != "phase"
            ]
            event = Event(
                wall_time=time.time(), step=int(row["epoch"]), summary=Summary(value=values)
            )
            RecordWriter(self.events).write(event.SerializeToString())
        self.events.flush()

    def _say(self, line: str) -> None:
        if self.bar is not None:
            self.bar.clear()
        print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _averages_in(model: LanguageModel) -> Iterator[None]:
    """Let the averages stand for the weights of `model`; these are put back bit for bit."""
    weights = model.trainable_variables
    before = [_copy(weight) for weight in weights]
    try:
        _assign(weights, [_copy(average) for average in optimizer_of(model).averages])
        yield
    finally:
        _assign(weights, before)


def _copy(variable: Any) -> np.ndarray:
    # In NumPy: JAX gives the memory of a weight away in a step.
    return np.array(keras.ops.convert_to_numpy(variable))


def _assign(variables: list[Any], values: list[np.ndarray]) -> None:
    for variable, value in zip(variables, values):
        variable.assign(value)


class _Remaining(keras.utils.PyDataset):
    """The batches of an epoch from step `start` on.

    Until an epoch begins it shows the whole epoch, of which Keras looks at the
    first two batches: a resumed run then compiles the same step as one that
    began the epoch at its first batch, and counts to the same bits. The model
    looks at `vocabulary`, `carried` and `lengths_vary` of the batches.
    """

    def __init__(self, batches: keras.utils.PyDataset, start: int) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        self.batches = batches
        self.start = start
        self.skipped = 0
        self.vocabulary = getattr(batches, "vocabulary", None)
        self.carried = getattr(batches, "carried", True)
        self.lengths_vary = getattr(batches, "lengths_vary", False)

    def __len__(self) -> int:
        return len(self.batches) - self.skipped

    def on_epoch_begin(self) -> None:
        self.skipped = self.start

    def __getitem__(self, index: int) -> Any:
        return self.batches[index + self.skipped]
