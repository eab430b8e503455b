"""ONNX and LiteRT files that hold a single step of a model, for programs without TensorFlow."""

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from dualnet._checks import ArgumentError, extra
from dualnet._contexts import dtype_policy, hidden_stderr
from dualnet._types import Tensor, Tensors
from dualnet.builders import LanguageModel
from dualnet.evaluation import perplexity
from dualnet.evaluation.arguments import perplexity_of
from dualnet.layers._mixture import in_one_piece
from dualnet.requests import Exporting
from dualnet.runs.shipped import licences_of

# A function that computes one step, and the specs of its arguments.
OneStep = tuple[Callable[..., Tensors], list[tf.TensorSpec]]


def onnx_bytes(model: LanguageModel, request: Exporting) -> bytes:
    """Return one step of `model` as an ONNX file."""
    # In ONNX, an output with the name of an input would be that input.
    model = in_float32(model)
    step = _one_step(model, output_prefix="new_")
    data = to_onnx(*step, model.core.variables, metadata=licences_of(model.run))
    return data if request.quantize is None else _with_bytes(data)


def _with_bytes(data: bytes) -> bytes:
    """Return an ONNX file with the matrices of `data` as bytes, a scale for each column."""
    with extra("onnx", "`quantize` needs onnxruntime"):
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.quantization.shape_inference import quant_pre_process
    with tempfile.TemporaryDirectory() as folder, hidden_stderr():
        path = Path(folder, "model.onnx")
        path.write_bytes(data)
        quant_pre_process(path, path, skip_symbolic_shape=True)  # else turned ones stay as they are
        # Unsigned: signed sums overflow on processors that lack VNNI.
        quantize_dynamic(path, path, weight_type=QuantType.QUInt8, per_channel=True)
        return path.read_bytes()


def figures(model: LanguageModel, path: Path, ids: np.ndarray) -> dict[str, float]:
    """Return the perplexity on `ids` of the file `path`, which reads one by one, and of `model`."""
    run = _step_of(path)
    sizes = enumerate(model.state_size, start=1)
    inputs: Tensors = {f"state_{i}": np.zeros((1, size), np.float32) for i, size in sizes}
    losses = []
    for token, target in itertools.pairwise(ids):
        answer = run({"ids": np.full((1, 1), token, np.int32), **inputs})
        logits = answer["logits"][0, 0].astype(np.float64)
        logits -= logits.max()
        losses.append(np.log(np.exp(logits).sum()) - logits[target])
        inputs = {name: answer.get(name, answer.get(f"new_{name}")) for name in inputs}
    of_model = perplexity(model, ids, batch_size=1)
    return {"tokens": len(losses), "perplexity": perplexity_of(losses), "of_model": of_model}


def _step_of(path: Path) -> Callable[[Tensors], Tensors]:
    """Return a function of inputs that runs the step of a file."""
    if path.suffix == ".onnx":
        with extra("onnx", "`check` needs onnxruntime"):
            import onnxruntime
        session = onnxruntime.InferenceSession(path)
        names = [output.name for output in session.get_outputs()]
        return lambda inputs: dict(zip(names, session.run(None, inputs)))
    with extra("litert", "`check` needs ai-edge-litert"):
        from ai_edge_litert.interpreter import Interpreter
    step = Interpreter(model_path=str(path)).get_signature_runner("step")
    return lambda inputs: step(**inputs)


def to_onnx(
    step: Callable[..., Tensors],
    specs: list[tf.TensorSpec],
    variables: Sequence[keras.Variable],
    *,
    outputs: Sequence[str] = (),
    metadata: Mapping[str, object] | None = None,
) -> bytes:
    """Return the function `step` of arguments of `specs` as an ONNX file, with its `variables`.

    `outputs` says their order, by name; `metadata` is for the programs that run the file.
    """
    with extra("onnx", "An ONNX file needs onnx and tf2onnx"):
        import onnx
        import tf2onnx
    variables = [v for v in variables if keras.backend.is_float_dtype(v.dtype)]  # no seeds
    weights = {f"weight_{i}": variable for i, variable in enumerate(variables)}
    named = [tf.TensorSpec(v.shape, v.dtype, name=name) for name, v in weights.items()]

    def with_weights(*values: Tensor) -> Tensors:
        with keras.StatelessScope(zip(variables, values[len(specs) :])):
            return step(*values[: len(specs)])

    signature = [*specs, *named]
    function = tf.function(with_weights, input_signature=signature, autograph=False)
    with hidden_stderr():  # the lines and warnings of a converter
        proto, _ = tf2onnx.convert.from_function(function, input_signature=signature, opset=18)
    # The converter copies constants many times, and inputs never.
    for value in [*proto.graph.input]:
        if value.name in weights:
            array = keras.ops.convert_to_numpy(weights[value.name])
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
            proto.graph.input.remove(value)
    by_name = {output.name: output for output in proto.graph.output}
    del proto.graph.output[:]
    proto.graph.output.extend(by_name[name] for name in outputs or by_name)
    onnx.helper.set_model_props(proto, {k: str(v) for k, v in (metadata or {}).items()})
    onnx.checker.check_model(proto)  # tf2onnx keeps operations that it cannot convert
    return bytes(proto.SerializeToString())


def litert_bytes(model: LanguageModel, request: Exporting) -> bytes:
    """Return one step of `model` as a LiteRT file with the signature `step`."""
    model = in_float32(model)
    step, specs = _one_step(model)
    module = tf.Module()
    module.variables_of_model = [variable.value for variable in model.core.variables]
    module.step = tf.function(step, input_signature=specs, autograph=False)
    with tempfile.TemporaryDirectory() as folder, hidden_stderr():
        tf.saved_model.save(module, folder, signatures={"step": module.step})
        try:
            converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["step"])
            if request.quantize or request.dtype:
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            if request.dtype is not None:
                converter.target_spec.supported_types = [tf.float16]
            return bytes(converter.convert())
        except (OSError, tf.errors.OpError):
            raise
        except Exception as error:  # of the converter, of kinds that it does not export
            required = "must be another for this model, which LiteRT cannot hold."
            reason = " ".join(str(error).split())[:200]
            way_out = " Export it as ONNX or as a SavedModel."
            raise ArgumentError(
                "format", f"{required} Received: 'litert' ({reason}).", way_out
            ) from error


def _one_step(model: LanguageModel, output_prefix: str = "") -> OneStep:
    """Return a function that computes one step, and the specs of its arguments."""
    names = [f"state_{i}" for i in range(1, len(model.state_size) + 1)]

    def step(ids: Tensor, *states: Tensor) -> Tensors:
        # A negative id would count from the end; beyond it is an error.
        ids = tf.where(ids < 0, model.vocabulary_size, ids)
        with in_one_piece():
            logits, *new_states = model.core([ids, *states], training=False)
        outputs = {output_prefix + name: state for name, state in zip(names, new_states)}
        return {"logits": logits, **outputs}

    states = zip(names, model.state_size)
    specs = [tf.TensorSpec((None, size), tf.float32, name=name) for name, size in states]
    return step, [tf.TensorSpec((None, 1), tf.int32, name="ids"), *specs]


def in_float32(model: LanguageModel) -> LanguageModel:
    """Return `model`, or a float32 copy of it: LiteRT handles no other type well."""
    if all(layer.compute_dtype == "float32" for layer in model.core.layers):
        return model
    with dtype_policy("float32"):
        copy = LanguageModel.from_config(model.get_config())

    copy.core.set_weights(model.core.get_weights())
    if any(layer.compute_dtype != "float32" for layer in copy.core.layers):
        required = "must be 'saved_model' for a core of your own that does not compute in float32."
        raise ArgumentError("format", f"{required} Received: {model.name!r}.")
    return copy
