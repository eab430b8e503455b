"""What the tests of exports share: clients of a SavedModel, in this process and in another one."""

import contextlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from keras import ops
from tensorflow.core.framework import tensor_pb2

from dualnet.serving.requests import served

# Answers requests, a line of JSON each, where neither dualnet nor Keras can be imported.
CLIENT = """
import functools, json, resource, sys
sys.modules["dualnet"] = sys.modules["keras"] = None
import tensorflow as tf
text_of = lambda x: x.decode() if isinstance(x, bytes) else [text_of(each) for each in x]
load = functools.cache(lambda folder: tf.saved_model.load(folder).signatures)
for line in sys.stdin:
    folder, name, columns = json.loads(line)
    endpoint = load(folder)[name]
    specs = endpoint.structured_input_signature[1]
    inputs = {key: tf.constant(value, specs[key].dtype) for key, value in columns.items()}
    answer = {
        key: text_of(value.numpy()) if value.dtype == tf.string else value.numpy().tolist()
        for key, value in endpoint(**inputs).items()
    }
    answer["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps(answer), flush=True)
"""


@contextlib.contextmanager
def remote_process():
    """Yield `ask(folder, endpoint, **columns)`, answered by a process without dualnet."""
    pytest.importorskip("resource")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CLIENT], **pipes) as client:

        def ask(folder, endpoint, **columns):
            request = [str(folder), endpoint, columns]
            print(json.dumps(request, default=np.ndarray.tolist), file=client.stdin, flush=True)
            return json.loads(client.stdout.readline())

        yield ask
        client.stdin.close()


def client_of(path):
    """Return a function that sends requests to the SavedModel at `path`."""
    return asker(tf.saved_model.load(path).signatures)


def asker(signatures):
    def ask(endpoint, **columns):
        specs = signatures[endpoint].structured_input_signature[1]
        inputs = {name: tf.constant(value, specs[name].dtype) for name, value in columns.items()}
        return {name: value.numpy() for name, value in signatures[endpoint](**inputs).items()}

    ask.signatures = signatures
    return ask


def graph_client(built):
    """Return a function that sends requests to the endpoints `built`, as graphs, without export."""

    def graph(function, specs):
        graph = tf.function(lambda **inputs: function(inputs), autograph=False)
        return graph.get_concrete_function(**specs)

    return asker({name: graph(*served(endpoint)) for name, endpoint in built.items()})


def close(actual, expected, rtol=1e-4, atol=1e-5):
    np.testing.assert_allclose(actual, ops.convert_to_numpy(expected), rtol=rtol, atol=atol)


def check_table(section, endpoints, signatures):
    """Check that a section of the documentation names all inputs and outputs of `endpoints`."""
    for endpoint in endpoints:
        (line,) = (row for row in section.splitlines() if row.startswith(f"| `{endpoint}` |"))
        _, _, inputs, outputs, _ = line.split("|")
        signature = signatures[endpoint]
        specs = signature.structured_input_signature[1], signature.structured_outputs
        for cell, names in zip((inputs, outputs), specs):
            listed = set(re.findall("`([a-z_]+[0-9]?)`", cell)) - {"state_n"}
            several = {name for name in names if re.fullmatch("state_(?!1$).*", name)}
            assert listed == set(names) - several


def warm_up_requests(path):
    """Return name and inputs of each request that an export holds for TensorFlow Serving.

    They are read with the messages of `tensorflow_serving/apis`, as far as they are in the file.
    """
    fields = {
        "PredictionLog": ("predict_log", 6, "PredictLog"),
        "PredictLog": ("request", 1, "PredictRequest"),
        "PredictRequest": ("model_spec", 1, "ModelSpec", "inputs", 2, "Input"),
        "ModelSpec": ("signature_name", 3, None),
        "Input": ("key", 1, None, "value", 2, "TensorProto"),  # an entry of a map
    }
    file = descriptor_pb2.FileDescriptorProto(name="log.proto", package="warm", syntax="proto3")
    file.dependency.append(tensor_pb2.DESCRIPTOR.name)
    for name, parts in fields.items():
        message = file.message_type.add(name=name)
        for field, number, of in zip(*[iter(parts)] * 3):
            declared = message.field.add(name=field, number=number, type="TYPE_STRING")
            declared.label = "LABEL_REPEATED" if of == "Input" else "LABEL_OPTIONAL"
            if of is not None:
                package = "tensorflow" if of == "TensorProto" else "warm"
                declared.type, declared.type_name = "TYPE_MESSAGE", f".{package}.{of}"
    pool = descriptor_pool.DescriptorPool()
    for known in (*_all_needed(tensor_pb2.DESCRIPTOR), file):
        pool.Add(known)
    log = message_factory.GetMessageClass(pool.FindMessageTypeByName("warm.PredictionLog"))
    requests = []
    for record in tf.data.TFRecordDataset(str(path / "assets.extra/tf_serving_warmup_requests")):
        request = log.FromString(record.numpy()).predict_log.request
        tensors = {}
        for one in request.inputs:
            proto = tensor_pb2.TensorProto.FromString(one.value.SerializeToString())
            tensors[one.key] = tf.make_ndarray(proto)
        requests.append((request.model_spec.signature_name, tensors))
    return requests


def _all_needed(file):
    """Return the descriptions of `file` and what it depends on, in order."""
    needed = {}
    for other in file.dependencies:
        needed |= {one.name: one for one in _all_needed(other)}
    own = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(own)
    return [*needed.values(), own]
