"""Keeps a RUN folder while a model trains: progress, checkpoints, metrics, curves, best weights."""

from __future__ import annotations

import csv
import io
import math
import sys
import time
from pathlib import Path
from typing import Any

import keras

from dualnet._files import write_whole
from dualnet.builders import LanguageModel
from dualnet.plots import plot_curves
from dualnet.training import checkpoints
from dualnet.training.checkpoints import Progress
from dualnet.training.interrupts import Interrupts, Stopped
from dualnet.training.recipe import Recipe
from dualnet.training.run_folder import put_weights


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
        self.bar: Any = None
        self.events: Any = None

    # --- one epoch

    def train(self, model: LanguageModel, batches: keras.utils.PyDataset) -> None:
        """Run the steps that are left of the epoch under way."""
        self.start = self.state.step
        self.began = time.perf_counter() - self.state.seconds
        self.rows = model.training_rows.read(None)
        if self.start == self.steps:  # stopped between the last step and its validation
            self._restore_metrics(model)
        else:
            epoch = len(self.state.history)
            self._open_bar(epoch)
            model.fit(
                _Remaining(batches, self.start),
                steps_per_epoch=self.steps - self.start,
                initial_epoch=epoch,
                epochs=epoch + 1,
                callbacks=[self],
                verbose=0,
            )
        self.logs = {metric.name: float(metric.result()) for metric in model.metrics}
        self._check_loss(self.logs["loss"])
        self._note_metrics(model)

    def validate(self, model: LanguageModel, batches: keras.utils.PyDataset) -> None:
        """Evaluate on the validation text, and keep what the epoch has given."""
        found = model.evaluate(batches, verbose=0, return_dict=True, callbacks=[self])
        self._check_loss(found["loss"])
        row = {
            "epoch": len(self.state.history) + 1,
            "loss": self.logs["loss"],
            "perplexity": self.logs["perplexity"],
            "val_loss": float(found["loss"]),
            "val_perplexity": float(found["perplexity"]),
            "learning_rate": float(model.optimizer.learning_rate),
            "seconds": self.state.seconds,
            "tokens_per_second": self.num_tokens / self.state.seconds,
        }
        history = self.state.history
        history.append(row)
        self.state.step, self.state.seconds, self.state.metrics = 0, 0.0, []
        if row["val_perplexity"] <= min(past["val_perplexity"] for past in history):
            put_weights(self.folder, model)
        self._save(model)
        self.write_tables(model.name)
        if self.show:
            self._say(
                f"epoch {row['epoch']}/{self.recipe.epochs}  train perplexity "
                f"{row['perplexity']:.2f}  valid {row['val_perplexity']:.2f}  "
                f"{row['tokens_per_second']:,.0f} tokens/s  {row['seconds']:.0f} s"
            )

    def write_tables(self, name: str) -> None:
        """Write `metrics.csv`, `curves.png` and the TensorBoard scalars anew."""
        history = self.state.history
        text = io.StringIO()
        writer = csv.DictWriter(text, history[0])
        writer.writeheader()
        writer.writerows(history)
        write_whole(self.folder / "metrics.csv", text.getvalue())
        curves = {
            f"{name} valid": [past["val_perplexity"] for past in history],
            f"{name} train": [past["perplexity"] for past in history],
        }
        plot_curves(curves, self.folder / "curves.png")
        self._write_scalars()

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
            self._save(self.model)
            self._stop()

    # --- details

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
        raise ValueError(
            f"The loss is no longer a number, in epoch {len(self.state.history) + 1} by step "
            f"{self.state.step}. The last checkpoint in {str(self.folder)!r} is kept: go on from "
            "it with --resume, or start anew, with a smaller learning_rate (it was "
            f"{self.recipe.learning_rate:g}) or a clipnorm (it was {self.recipe.clipnorm:g}; "
            "try 1)."
        )

    def _open_bar(self, epoch: int) -> None:
        if not self.show:
            return
        if self.bar is None:
            from tqdm.auto import tqdm

            self.bar = tqdm(
                total=self.steps * self.recipe.epochs,
                initial=self.steps * epoch + self.start,
                unit="token",
                unit_scale=self.recipe.batch_size * self.recipe.sequence_length,
                disable=None,
                dynamic_ncols=True,
                leave=False,
            )
        self.bar.set_description(f"epoch {epoch + 1}/{self.recipe.epochs}")

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
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in row.items()]
            event = Event(
                wall_time=time.time(), step=int(row["epoch"]), summary=Summary(value=values)
            )
            RecordWriter(self.events).write(event.SerializeToString())
        self.events.flush()

    def _say(self, line: str) -> None:
        if self.bar is not None:
            self.bar.clear()
        print(line, file=sys.stderr, flush=True)


class _Remaining(keras.utils.PyDataset):
    """The batches of an epoch from step `start` on.

    Until an epoch begins it shows the whole epoch, of which Keras looks at the
    first two batches: a resumed run then compiles the same step as one that
    began the epoch at its first batch, and counts to the same bits.
    """

    def __init__(self, batches: keras.utils.PyDataset, start: int) -> None:
        super().__init__(workers=1, use_multiprocessing=False)
        self.batches = batches
        self.start = start
        self.skipped = 0

    def __len__(self) -> int:
        return len(self.batches) - self.skipped

    def on_epoch_begin(self) -> None:
        self.skipped = self.start

    def __getitem__(self, index: int) -> Any:
        return self.batches[index + self.skipped]
