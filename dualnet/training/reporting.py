"""Callbacks that tell of the progress, on standard error and in the files of the RUN folder."""

import math
import sys
import time
from pathlib import Path

from dualnet._contexts import progress_bar
from dualnet._files import write_csv
from dualnet.plots import plot_curves
from dualnet.training.schedule import TRAIN, History
from dualnet.training.start import Stage, Training
from dualnet.training.two_tailed import PLAIN

REFRESH_SECONDS = 0.5
LOG_SECONDS = 60.0  # between lines where there is no terminal
TIMED_SECONDS = 5.0  # of steps, after which the log says how long an epoch takes
EVENTS = "events.out.tfevents.0.dualnet"  # file for TensorBoard
REDRAW_SECONDS = 2.0  # drawing the curves takes longer than a small epoch


class Report(Stage):
    """Shows a bar on a terminal, a line now and then elsewhere, and a line for each epoch."""

    def __init__(self, training: Training, *, show: bool) -> None:
        super().__init__(training)
        self.show = show and sys.stderr is not None
        self.has_bar = self.show and sys.stderr.isatty()
        self.refreshed = self.logged = -math.inf  # times
        self.is_timed = False
        self.timed_from: tuple[float, int] | None = None  # when a step had ended, and which
        self.bar = progress_bar(show=self.has_bar, auto_refresh=False)
        self.task = self.bar.add_task("", completed=training.steps_read, figures="")

    def begin_epoch(self, epoch: int, last: int) -> None:
        self.last = last
        self.timed_from = None
        self.place = f"epoch {epoch + 1}/{last}"
        self.bar.update(self.task, description=self.place, total=self.training.steps * last)
        self.bar.start()
        self._show(", compiling" * math.isinf(self.refreshed))

    def end_step(self, perplexity: float) -> None:
        training, now = self.training, time.perf_counter()
        if now - self.refreshed <= REFRESH_SECONDS:
            return
        self.refreshed = now
        speed = training.tokens_read / training.progress.seconds
        self._show(f"  {speed:,.0f} tokens/s  perplexity {perplexity:.1f}")
        # The first step compiles.
        began, step = self.timed_from = self.timed_from or (now, training.steps_read)
        if not self.is_timed and now - began > TIMED_SECONDS:
            self.is_timed = True
            seconds = (now - began) / (training.steps_read - step) * training.steps
            self.print(told_time(seconds, self.last))

    def end_epoch(self) -> None:
        row = self.training.progress.history[-1]
        phase = "" if row["phase"] == TRAIN else f" ({row['phase']})"
        bleu = f", BLEU {row['val_bleu']:.2f}" if "val_bleu" in row else ""
        self.bar.update(self.task, completed=self.training.steps_read, refresh=True)
        self.print(
            f"{self.place}{phase}  train perplexity {row['perplexity']:.2f}  "
            f"valid {row['val_perplexity']:.2f}{bleu}  {row['tokens_per_second']:,.0f} tokens/s  "
            f"{row['seconds']:.0f} s"
        )
        start = self.training.progress.start
        if start is not None and row["val_perplexity"] > start:
            self.print(
                f"Validation is worse than before the first step, {start:.2f}. Try a smaller "
                f"learning_rate than {row['learning_rate']:g}."
            )
        size = len(self.training.corpus.vocabulary)
        if row["val_perplexity"] > size:
            self.print(
                f"Validation is worse than the uniform distribution over {size:,} tokens. Unless "
                "it falls in the next epochs, try a smaller learning_rate than "
                f"{row['learning_rate']:g}, or clip the gradients."
            )

    def print(self, line: str) -> None:
        if self.show:
            self.bar.console.print(line, highlight=False, soft_wrap=True)

    def _show(self, figures: str) -> None:
        """Show the tokens read in the bar; without a terminal as a line, the first at once."""
        training, now = self.training, time.perf_counter()
        tokens = f"{training.tokens_read:,} of {training.batches.num_tokens:,} tokens{figures}"
        if self.has_bar:
            self.bar.update(self.task, completed=training.steps_read, figures=tokens, refresh=True)
        elif now - self.logged > LOG_SECONDS:
            self.logged = now
            self.print(f"{self.place}  {tokens}")


class Tables(Stage):
    """Writes `metrics.csv`, the TensorBoard scalars and `curves.png` after each epoch."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.drawn = -math.inf  # when
        self.num_events = 0  # epochs that this process has written for TensorBoard

    def end_epoch(self) -> None:
        self.write(draw=time.perf_counter() - self.drawn > REDRAW_SECONDS)

    def write(self, *, draw: bool = True) -> None:
        folder, history = self.training.folder, self.training.progress.history
        names = list(history[0])
        rows = [[row.get(name, "") for name in names] for row in history]
        write_csv(folder / "metrics.csv", [names, *rows])
        if not self.num_events:  # a fresh file, so that a resumed run has each epoch once
            (folder / "tensorboard" / EVENTS).unlink(missing_ok=True)
        append_events(folder / "tensorboard", history[self.num_events :])
        self.num_events = len(history)
        if draw:
            columns = {"valid": "val_perplexity", "train": "perplexity"}
            if self.training.is_two_tailed:
                columns["valid, without averages"] = f"val_perplexity_{PLAIN}"
            model = self.training.model.name
            curves = {f"{model} {n}": [row[key] for row in history] for n, key in columns.items()}
            plot_curves(curves, folder / "curves.png", start=self.training.progress.start)
            self.drawn = time.perf_counter()


def append_events(folder: Path, history: History) -> None:
    """Append the scalars of some epochs to the file for TensorBoard in `folder`.

    Keras's callback and tensorboard's own event writer load TensorFlow; its record writer does not.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(exist_ok=True)
    # Not renamed into place: a TensorBoard that is running goes on reading the open file.
    with (folder / EVENTS).open("ab") as file:
        writer = RecordWriter(file)
        if not file.tell():
            writer.write(Event(file_version="brain.Event:2").SerializeToString())
        for row in history:
            event = Event(wall_time=time.time(), step=row["epoch"])
            for tag, value in row.items():
                if tag != "phase":
                    event.summary.value.add(tag=tag, simple_value=value)
            writer.write(event.SerializeToString())


def told_time(seconds: float, epochs: int) -> str:
    """Return a sentence that says how long an epoch takes, and all of them.

    Example:

    >>> from dualnet.training.reporting import told_time
    >>> told_time(90.4, 40)
    'An epoch takes about 90 s here, 40 epochs about 1.0 h.'
    """
    of_all = f", {epochs} epochs about {duration(seconds * epochs)}" if epochs > 1 else ""
    return f"An epoch takes about {duration(seconds)} here{of_all}."


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours, such as "8.0 s", "90 s", "15 min", "1.5 h"."""
    if seconds < 100:
        return f"{seconds:.{int(seconds < 10)}f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"
