"""Where does the time of a training step of dualnet go? Shares by kind of operation, on TensorFlow.

Usage: python benchmarks/step_profile.py [CASE ...] [--precision float32] [--steps 5] [--top 0]

Each case of benchmarks/speed.py runs in a process of its own, one operation at a time, each on all
cores. TensorFlow's profiler records how long each operation takes. One that encloses others, such
as a loop, counts with what is left of it; `gaps` is the part of a step in which no operation runs.
With `--top`, that many operations follow with their names.
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from options import options_of

KINDS = {
    "products": ("MatMul", "BatchMatMulV2", "_MklMatMul", "_FusedMatMul", "Einsum"),
    "softmax and loss": ("Softmax", "LogSoftmax", "Max", "TensorScatterUpdate", "GatherNd"),
    "compiled: optimizer, loss": ("Execute", "_XlaRun", "XlaLaunch"),
    "casts": ("Cast",),
    "copies": (
        "Transpose", "ConcatV2", "Concat", "Split", "SplitV", "Pack", "Unpack", "StridedSlice",
        "TensorArrayGatherV3", "TensorArrayScatterV3", "TensorListStack", "TensorListFromTensor",
        "Pad", "PadV2", "Tile", "Slice", "StridedSliceGrad", "TensorListSetItem", "Copy",
    ),
    "random masks": ("StatelessRandomUniformV2", "RandomUniform", "StatelessRandomUniform"),
}  # fmt: skip
STEPS_BEFORE = 4
DEFAULT = ("lstm", "dual_mdlstm", "zaremba_small")


def main() -> None:
    precisions = ("float32", "bfloat16")
    options = options_of(__doc__, "cases*", precision=precisions, steps=5, top=0, here=False)
    if options.here:
        profile(options.cases[0], options)
        return
    for name in options.cases or DEFAULT:
        environment = {**os.environ, "TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        rest = ["--precision", options.precision, "--steps", str(options.steps)]
        rest += ["--top", str(options.top), "--here"]
        subprocess.run([sys.executable, __file__, name, *rest], env=environment, check=True)


def profile(name: str, options: argparse.Namespace) -> None:
    import tensorflow as tf
    from peers.cases import CASES, described
    from peers.dualnet_work import DualnetWork

    setting = {"precision": options.precision, "backend": "tensorflow", "options": {}}
    about = described(CASES[name])
    work = DualnetWork(about, setting)
    for _ in range(STEPS_BEFORE):
        work.step()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for number in range(options.steps):
            with tf.profiler.experimental.Trace("step", step_num=number):
                work.step()
        tf.profiler.experimental.stop()
        (file,) = Path(folder).rglob("*.xplane.pb")
        whole, own = times_of(file.read_bytes())
    print(f"\n{name}, {options.precision}: {whole / options.steps:.3f} s a step")
    kinds: collections.Counter[str] = collections.Counter()
    for (kind, _), seconds in own.items():
        kinds[next((k for k, names in KINDS.items() if kind in names), "elementwise, rest")] += (
            seconds
        )
    kinds["gaps"] = max(0.0, whole - sum(own.values()))
    for kind, seconds in kinds.most_common():
        print(f"  {kind:25} {seconds / options.steps:8.4f} s  {100 * seconds / whole:5.1f} %")
    for (kind, path), seconds in own.most_common(options.top):
        print(f"    {seconds / options.steps:8.4f} s  {kind:24} {path[-110:]}")


def times_of(trace: bytes) -> tuple[float, collections.Counter]:
    """Return the seconds of all steps, and those of each operation but for what it encloses."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(trace)
    whole, own = 0.0, collections.Counter()
    for plane in space.planes:
        if "CPU" not in plane.name:
            continue
        for line in plane.lines:
            stack: list[tuple[float, tuple[str, str] | None]] = []
            for event in sorted(line.events, key=lambda e: (e.offset_ps, -e.duration_ps)):
                metadata = plane.event_metadata[event.metadata_id]
                name = metadata.name
                start, end = event.offset_ps / 1e12, (event.offset_ps + event.duration_ps) / 1e12
                if name.startswith("step"):
                    whole += end - start
                path, colon, kind = name.rpartition(":")
                framework = " " in name or (path.endswith(":") and "ThunkExecutor" not in path)
                key = None if framework or not colon else (kind.partition("#")[0], path)
                while stack and stack[-1][0] <= start:
                    stack.pop()
                if key is None:
                    continue
                own[key] += end - start
                if stack:
                    own[stack[-1][1]] -= end - start
                stack.append((end, key))
    return whole, own


if __name__ == "__main__":
    main()
