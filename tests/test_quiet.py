"""What TensorFlow writes to standard error."""

import logging

import pytest

import dualnet  # noqa: F401  # which adds the filter
from tests.checks import once

pytestmark = once


@pytest.mark.parametrize(
    ("message", "is_shown"),
    [
        ("5 out of the last 5 calls to <f> triggered tf.function retracing. Tracing is", False),
        ("Another warning.", True),
    ],
)
def test_of_the_warnings_those_about_retracing_are_hidden(message, is_shown):
    logger = logging.getLogger("tensorflow")
    record = logger.makeRecord(logger.name, logging.WARNING, "file", 1, message, (), None)
    assert bool(logger.filter(record)) == is_shown
