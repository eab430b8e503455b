"""ONNX and LiteRT files that hold a single step of a model, for programs without TensorFlow."""

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dualnet._checks import ArgumentError, extra
from dualnet._contexts import dtype_policy, hidden_stderr
from dualnet._types import Tensors
from dualnet.builders import LanguageModel
from dualnet.evaluation import perplexity
from dualnet.evaluation.arguments import perplexity_of
from dualnet.layers._mixture import in_one_piece
from dualnet.requests import Exporting
from dualnet.runs.shipped import licences_of
from dualnet.serving.file_learning import FileLearning

# A function, the specs of its arguments, and the variables that it reads.
Computation = tuple[Callable[..., Tensors], list[tf.TensorSpec], list[keras.Variable]]
Files = dict[str, bytes]  # by what follows the name of the model's own


def onnx_files(model: LanguageModel, request: Exporting, name: str) -> Files:
    """Return one step of `model` as an ONNX file `name`, and what learns as another one."""
    step, *learn = _computations(model, request, has_fixed_sizes=False).values()
    metadata = licences_of(model.run)
    data = to_onnx(*step, metadata=metadata)
    if not learn:
        return {"": data if request.quantize is None else _with_bytes(data)}
    files = {"": data, ".learn.onnx": to_onnx(*learn[0], metadata=metadata)}
    return _with_common_weights(f"{name}.weights", files)


def _with_common_weights(name: str, files: Files) -> Files:
    """Return ONNX files whose weights are in another one, `name`, each once."""
    import onnx

    weights, places = bytearray(), {}
    for suffix, data in files.items():
        proto = onnx.load_from_string(data)
        for tensor in proto.graph.initializer:
            value = tensor.raw_data
            if len(value) >= 1024:
                if value not in places:
                    places[value] = len(weights)
                    weights += value
                onnx.external_data_helper.set_external_data(
                    tensor, name, offset=places[value], length=len(value)
                )
                tensor.ClearField("raw_data")
        files[suffix] = proto.SerializeToString()
    return {**files, ".weights": bytes(weights)}


def _axes_of_one(context: Any, node: Any, *_: object) -> None:
    """Convert BroadcastGradientArgs of shapes of one rank: gradients are summed over axes of 1."""
    constants = {f"{node.name}_1": np.array([1], "int32"), f"{node.name}_all": np.array([-1])}
    one, flat = (context.make_const(*item).output[0] for item in constants.items())
    for shape, axes in zip([*node.input], [*node.output]):
        is_one = context.make_node("Equal", [shape, one]).output[0]
        ones = context.make_node("NonZero", [is_one]).output[0]
        ones = context.make_node("Reshape", [ones, flat]).output[0]
        context.replace_all_inputs(axes, ones)
    context.remove_node(node.name)


def _where(_: Any, node: Any, *others: object) -> None:
    """Convert SelectV2, for which the converter multiplies by 0 and 1: 0 times nan is nan."""
    node.type = "Where"


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
    run, shapes = _step_of(path)
    sizes = {name: shape[1:] for name, shape in shapes.items() if name != "ids"}
    inputs = {name: np.zeros((1, *size), np.float32) for name, size in sizes.items()}
    losses = []
    for token, target in itertools.pairwise(ids):
        answer = run({"ids": np.full((1, 1), token, np.int32), **inputs})
        logits = answer["logits"][0, 0].astype(np.float64)
        losses.append(np.logaddexp.reduce(logits) - logits[target])
        inputs |= {name: answer[name] for name in inputs if name in answer}  # but the memory
    of_model = perplexity(model, ids, batch_size=1)
    return {"tokens": len(losses), "perplexity": perplexity_of(losses), "of_model": of_model}


def _step_of(path: Path) -> tuple[Callable[[Tensors], Tensors], dict[str, Sequence[int]]]:
    """Return a function of inputs that runs the step of a file, and the shapes of the inputs."""
    if path.suffix == ".onnx":
        with extra("onnx", "`check` needs onnxruntime"):
            import onnxruntime
        session = onnxruntime.InferenceSession(path)
        names = [output.name.removeprefix("new_") for output in session.get_outputs()]
        shapes = {spec.name: spec.shape for spec in session.get_inputs()}
        return lambda inputs: dict(zip(names, session.run(None, inputs))), shapes
    with extra("litert", "`check` needs ai-edge-litert"):
        from ai_edge_litert.interpreter import Interpreter
    step = Interpreter(model_path=str(path)).get_signature_runner("step")
    shapes = {name: spec["shape"] for name, spec in step.get_input_details().items()}
    return lambda inputs: step(**inputs), shapes


def to_onnx(
    step: Callable[..., Tensors],
    specs: list[tf.TensorSpec],
    variables: Sequence[keras.Variable],
    *,
    outputs: Sequence[str] = (),
    metadata: Mapping[str, object] | None = None,
) -> bytes:
    """Return the function `step` of arguments of `specs` as an ONNX file, with its `variables`.

    In ONNX, an output with the name of an input would be that input, and gets the prefix "new_".
    `outputs` says their order, by name; `metadata` is for the programs that run the file.
    """
    with extra("onnx", "An ONNX file needs onnx and tf2onnx"):
        import onnx
        import tf2onnx
    variables = [v for v in variables if keras.backend.is_float_dtype(v.dtype)]  # no seeds
    weights = {f"weight_{i}": variable for i, variable in enumerate(variables)}
    named = [tf.TensorSpec(v.shape, v.dtype, name=name) for name, v in weights.items()]

    def with_weights(*values):
        with keras.StatelessScope(zip(variables, values[len(specs) :])):
            answer = step(*values[: len(specs)])
        inputs = [spec.name for spec in specs]
        return {f"new_{name}" if name in inputs else name: answer[name] for name in answer}

    signature = [*specs, *named]
    function = tf.function(with_weights, input_signature=signature, autograph=False)
    with hidden_stderr():  # the lines and warnings of a converter
        proto, _ = tf2onnx.convert.from_function(
            function,
            input_signature=signature,
            opset=18,
            custom_op_handlers={
                "BroadcastGradientArgs": (_axes_of_one, []),
                "SelectV2": (_where, []),
            },
        )
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
    try:
        onnx.checker.check_model(proto)  # tf2onnx keeps operations that it cannot convert
    except onnx.checker.ValidationError as error:
        raise _cannot_hold("onnx", error) from error
    return bytes(proto.SerializeToString())


def litert_files(model: LanguageModel, request: Exporting, name: str) -> Files:
    """Return one step of `model` as a LiteRT file with the signature `step`, and `learn`."""
    computations = _computations(model, request, has_fixed_sizes=True)
    module = tf.Module()
    module.variables_of_model = [variable.value for variable in computations["step"][-1]]
    module.graphs = {
        name: tf.function(function, input_signature=specs, autograph=False)
        for name, (function, specs, _) in computations.items()
    }
    with tempfile.TemporaryDirectory() as folder, hidden_stderr():
        tf.saved_model.save(module, folder, signatures=module.graphs)
        try:
            converter = tf.lite.TFLiteConverter.from_saved_model(folder, [*module.graphs])
            if request.quantize or request.dtype:
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
            if request.dtype is not None:
                converter.target_spec.supported_types = [tf.float16]
            return {"": bytes(converter.convert())}
        except (OSError, tf.errors.OpError):
            raise
        except Exception as error:  # of the converter, of kinds that it does not export
            raise _cannot_hold("litert", error) from error


def _cannot_hold(format: str, error: Exception) -> ArgumentError:
    required = "must be another for this model, or what it learns, which the format cannot hold."
    reason = " ".join(str(error).split())[:200]
    return ArgumentError(
        "format", f"{required} Received: {format!r} ({reason}).", " Export it as a SavedModel."
    )


def _computations(
    model: LanguageModel, request: Exporting, *, has_fixed_sizes: bool
) -> dict[str, Computation]:
    """Return the computations of a file: `step`, and with `learn` of the request also `learn`.

    With `has_fixed_sizes`, the latter reads one row of a segment's length.
    """
    model = in_float32(model)
    sizes = {f"state_{i}": size for i, size in enumerate(model.state_size, start=1)}
    outputs, core, computations = ["logits", *sizes], model.core, {}
    if request.learn is not None:
        core = learning = FileLearning(model, request)
        sizes["memory"] = learning.lesson.size
        outputs += learning.names
        shape = (1, learning.settings["sequence_length"]) if has_fixed_sizes else (None, None)
        computations["learn"] = learning.learn, learning.specs(*shape), learning.tail.variables

    def step(ids, *inputs):
        # A negative id would count from the end; beyond it is an error.
        ids = tf.where(ids < 0, model.vocabulary_size, ids)
        with in_one_piece():
            return dict(zip(outputs, core([ids, *inputs], training=False)))

    specs = [tf.TensorSpec((None, size), tf.float32, name=name) for name, size in sizes.items()]
    specs = [tf.TensorSpec((None, 1), tf.int32, name="ids"), *specs]
    return {"step": (step, specs, core.variables), **computations}


def in_float32(model: LanguageModel) -> LanguageModel:
    """Return `model`, or a float32 copy of it: LiteRT handles no other type well."""
    if all(layer.compute_dtype == "float32" for layer in model.core.layers):
        return model
    with dtype_policy("float32"):
        copy = LanguageModel.from_config(model.get_config())

    copy.core.set_weights(model.core.get_weights())
    copy.run = model.run
    if any(layer.compute_dtype != "float32" for layer in copy.core.layers):
        required = "must be 'saved_model' for a core of your own that does not compute in float32."
        raise ArgumentError("format", f"{required} Received: {model.name!r}.")
    return copy
