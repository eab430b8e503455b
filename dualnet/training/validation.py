"""The callback that validates each epoch, with averages of the weights where there are any."""

import contextlib
import math

import keras

from dualnet.corpora import PairCorpus
from dualnet.evaluation import translation_metrics
from dualnet.generation import translate
from dualnet.runs.folder import PLAIN_WEIGHTS
from dualnet.runs.loading import write_weights
from dualnet.training import two_tailed
from dualnet.training.averages import Weights, averages_of, weights_in
from dualnet.training.optimizers import optimizer_of
from dualnet.training.saving import Checkpoint
from dualnet.training.schedule import Row, has_diverged, watched
from dualnet.training.start import Training
from dualnet.training.two_tailed import LONG, PLAIN, SHORT

NOT_LOGGED = ("epoch", "phase", "seconds", "tokens_per_second")  # columns callbacks do not get


class Validate(keras.callbacks.Callback):
    """Validates after each epoch, adds to the history, and writes the best weights.

    The weights or averages with the best result stay in the model for the callbacks that follow,
    until `put_weights_back`. `callbacks` are told of the validation.
    """

    def __init__(
        self, training: Training, checkpoint: Checkpoint, callbacks: keras.callbacks.CallbackList
    ) -> None:
        super().__init__()
        self.training, self.checkpoint, self.callbacks = training, checkpoint, callbacks
        self.swapped = contextlib.ExitStack()  # open while averages replace the weights

    def on_epoch_end(self, epoch, logs=None):
        training, plan, progress = self.training, self.training.plan, self.training.progress
        self.checkpoint.check_losses(logs)
        self.checkpoint.check_weights()
        self.checkpoint.note()
        candidates = self._candidates()
        results = {name: self._evaluate(weights) for name, weights in candidates.items()}
        best = next(iter(results))
        if training.is_two_tailed:
            results.setdefault(SHORT, results[LONG])
            best = PLAIN if watched(results[PLAIN]) < watched(results[LONG]) else LONG
        row: Row = {
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
        logs.update(figures_of(row))
        self.swapped.enter_context(weights_in(self.model, candidates[best]))
        if training.best_epoch == plan.epoch:
            write_weights(training.folder, self.model)

    def put_weights_back(self, epoch, logs):
        """Put the weights back, and choose what becomes of two averages."""
        self.swapped.close()
        history, optimizer = self.training.progress.history, optimizer_of(self.model)
        if not self.training.is_two_tailed:
            return
        if min(history, key=lambda row: two_tailed.result_of(row, PLAIN)) is history[-1]:
            write_weights(self.training.folder, self.model, PLAIN_WEIGHTS)
        action = two_tailed.next_action(history)
        if action == two_tailed.SHORTEN:
            optimizer.shorten()
        elif action != two_tailed.KEEP:
            optimizer.empty(short_only=action == two_tailed.EMPTY_SHORT)

    def on_test_batch_end(self, batch, logs=None):
        if self.checkpoint.interrupts.asked:
            _ = self.model  # synchronizes
            self.swapped.close()
            self.checkpoint.save()
            self.checkpoint.stop()

    def _candidates(self) -> dict[str, Weights]:
        """Return the weights and averages to validate, by name."""
        if not self.training.is_two_tailed:
            return {PLAIN: averages_of(self.training)}
        optimizer = optimizer_of(self.model)
        candidates: dict[str, Weights] = {PLAIN: None, LONG: optimizer.averages}
        if int(optimizer.short_steps) != int(optimizer.averaged_steps):  # else they are equal
            candidates[SHORT] = optimizer.short_averages
        return candidates

    def _evaluate(self, weights: Weights) -> dict[str, float]:
        """Return the validation results of the model with these weights."""
        training, model = self.training, self.model
        with self.swapped:
            self.swapped.enter_context(weights_in(model, weights))
            logs = model.evaluate(
                training.valid_batches, verbose=0, return_dict=True, callbacks=self.callbacks
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


def figures_of(row: Row) -> dict[str, float]:
    """Return the figures of an epoch that callbacks get."""
    return {key: float(value) for key, value in row.items() if key not in NOT_LOGGED}
