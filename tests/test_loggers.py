"""wandb, MLflow and trackio log a training as they log a `fit`.

No extra installs them: wandb, offline too, calls the network later in the process, which other
tests forbid. Use an environment of its own: `pip install wandb mlflow-skinny trackio`.
"""

import keras
import numpy as np
import pytest

import dualnet
from tests.checks import once

pytestmark = [
    once,
    pytest.mark.slow,
    # Of the packages, about others, and about files of theirs that they leave open.
    pytest.mark.filterwarnings("default"),
]
SETTINGS = {
    "units": 4, "batch_size": 4, "sequence_length": 15, "epochs": 2, "evaluate": False,
    "progress": False,
}  # fmt: skip
STEPS = 6
LOGGED = ("loss", "perplexity", "val_loss", "val_perplexity", "learning_rate")


@pytest.fixture
def train(corpus, tmp_path):
    """A function that trains with callbacks and returns the rows of the history."""

    def train(*callbacks):
        output = tmp_path / "RUN"
        return dualnet.train("lstm", corpus, output=output, callbacks=callbacks, **SETTINGS).history

    return train


def test_wandb_logs_each_epoch_and_batch_of_a_training(train, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from wandb.integration.keras import WandbMetricsLogger

    monkeypatch.setenv("WANDB_SILENT", "true")
    logged = []
    with wandb.init(project="dualnet", mode="offline", dir=tmp_path) as run:
        log = wandb.log
        monkeypatch.setattr(wandb, "log", lambda row: (logged.append(row), log(row)))
        rows = train(WandbMetricsLogger(log_freq=1))
        summary = dict(run.summary)
    wandb.teardown()
    assert [row["epoch/epoch"] for row in logged if "epoch/epoch" in row] == [0, 1]
    steps = [row["batch/batch_step"] for row in logged if "batch/batch_step" in row]
    assert steps == [*range(2 * STEPS)]
    for key in LOGGED:
        np.testing.assert_allclose(summary[f"epoch/{key}"], rows[-1][key], rtol=1e-6)


def test_mlflow_logs_each_epoch_of_a_training(train, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the other kind needs SQLAlchemy
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    mlflow.set_experiment("dualnet")
    with mlflow.start_run() as run:
        rows = train(mlflow.keras.MlflowCallback())
    mlflow.flush_async_logging()
    client = mlflow.MlflowClient()
    for key in LOGGED:
        history = sorted(client.get_metric_history(run.info.run_id, key), key=lambda x: x.step)
        assert [point.step for point in history] == [0, 1]
        np.testing.assert_allclose(
            [x.value for x in history], [row[key] for row in rows], rtol=1e-6
        )
    assert client.get_run(run.info.run_id).data.params["optimizer_name"].startswith("nadam")


def test_trackio_logs_each_epoch_of_a_training(train, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    trackio.init(project="dualnet", name="run")
    rows = train(keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: trackio.log(logs)))
    trackio.finish()
    from trackio.sqlite_storage import SQLiteStorage

    for key in LOGGED:
        points = SQLiteStorage.get_logs("dualnet", "run")
        assert [point[key] for point in points] == [row[key] for row in rows]
