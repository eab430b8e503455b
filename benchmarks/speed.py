"""How fast is dualnet beside PyTorch and stock Keras, and how near to what the machine can do?

Usage: python benchmarks/speed.py [CASE ...] [--settings PATTERN ...] [--repeats 7]
       [--seconds 60] [--output benchmarks/results] [--quick] [--beside CHECKOUT]
       python benchmarks/speed.py table     what is kept, as the table in docs/speed.md

For each case every setting of dualnet and of its peers runs in a process of its own, all of them
at once, and they take turns: in each round each setting takes one turn, alone; the others wait
and take no time of a core, which is measured. Printed and kept as CSV: the median of the seconds
of a step, with its interquartile range, tokens per second, peak memory, and:

    share    least time of the products of the model over the time of the step, each product at
             the best rate that was found for its own shape (TensorFlow, JAX and PyTorch, as it
             is and with a factor transposed; alone and again and again, so with both factors in
             the cache where they fit), in the same run, in the precision of the setting;
    cores    how many cores the setting used while it was measured, user time over wall time;
    threads  how many of its threads worked.

No peer is held back: variables that set numbers of threads reach no worker, and no ratio is printed
against a peer that used less than three quarters of the cores where dualnet used more.

Settings of `torch.compile` over a whole segment take minutes to start and run only where a
pattern of `--settings` has "whole" in it, e.g. `dual_mdlstm --settings 'dualnet-*' '*whole*'`.
With `--quick` sizes are tiny: it tells that everything runs, and no speed. With `--beside` each
setting of dualnet runs a second time, with the dualnet of another checkout: before and after a
change.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import time
from pathlib import Path

import numpy as np
from options import options_of
from peers import report
from peers.cases import BATCHES, CASES, Case, Setting, described, settings_for, tiny
from peers.products import FORMS, Limit, Product, limit, parameters, products
from peers.worker import Worker, WorkerError, memory

START_SECONDS = 600.0  # the longest that a setting may take to compile
TURN_SECONDS = 240.0
LEAST_REPEATS = 7
LEAST_FREE = 4096  # MiB of memory, below which no other setting is begun
LIBRARIES = ("tensorflow", "jax", "torch")


@dataclasses.dataclass
class Measured:
    """What was found for one setting; `error` where it failed."""

    setting: Setting
    seconds: list[float] = dataclasses.field(default_factory=list)
    error: str = ""
    peak_mb: float = float("nan")
    facts: dict = dataclasses.field(default_factory=dict)
    core_use: list[float] = dataclasses.field(default_factory=list)  # of each turn that counts
    threads: int = 0

    @property
    def cores(self) -> float:
        """How many cores were in use while it was measured: user time over wall time."""
        return float(np.median(self.core_use)) if self.core_use else float("nan")

    @property
    def median(self) -> float:
        return float(np.median(self.seconds)) if self.seconds else float("nan")

    @property
    def spread(self) -> float:
        return float(np.subtract(*np.percentile(self.seconds, [75, 25]))) if self.seconds else 0.0


def main() -> None:
    results = Path(__file__).parent / "results"
    options = options_of(
        f"{__doc__}\nCASE is one of {', '.join(CASES)}.", "cases*", settings=["*"],
        repeats=LEAST_REPEATS, seconds=60.0, output=results, quick=False, beside=Path,
    )  # fmt: skip
    if options.cases == ["table"]:
        print(report.summary(options.output))
        return
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        raise SystemExit(f"no case {unknown[0]!r}; of {', '.join(CASES)} and table")
    rates: dict[tuple[Product, str], tuple[float, str]] = {}
    for name in options.cases or CASES:
        run_case(tiny(CASES[name]) if options.quick else CASES[name], options, rates)


def run_case(case: Case, options: argparse.Namespace, rates: dict) -> None:
    """Measure one case, print its table, and keep it."""
    began = time.perf_counter()
    wanted = [
        setting
        for setting in settings_for(case)
        if any(fnmatch.fnmatchcase(setting.name, pattern) for pattern in options.settings)
        # To compile a whole segment takes minutes: on request.
        and ("whole" not in setting.name or any("whole" in each for each in options.settings))
    ]
    if not wanted:
        print(f"{case.name}: no setting is called {' or '.join(options.settings)}")
        return
    if options.beside:
        path = {"PYTHONPATH": str(options.beside.resolve())}
        wanted += [
            dataclasses.replace(
                setting, name=f"{setting.name}-beside", environment={**setting.environment, **path}
            )
            for setting in wanted
            if setting.library == "dualnet"
        ]
    pairs = [(case, setting) for setting in wanted]
    print(f"\n{case.name}: {report.conditions(case)}", flush=True)
    found, idle = measure(pairs, options.repeats, options.seconds)
    if not any(each.seconds for each in found):
        raise SystemExit(f"{case.name}: no setting ran, see above")
    wanted_limits = {(each.setting.precision, each.facts["rows"]) for each in found if each.seconds}
    limits = machine_limits(case, wanted_limits, rates)
    lines = report.header(case, found, limits, idle, options)
    rows = report.rows(case, found, limits, options.repeats)
    print(report.table(rows, lines), flush=True)
    if not options.quick:
        print(f"kept in {report.keep(options.output, case, lines, rows)}")
    print(f"{time.perf_counter() - began:.0f} s for this case", flush=True)


def measure(
    pairs: list[tuple[Case, Setting]], repeats: int, seconds: float
) -> tuple[list[Measured], float]:
    """Return what was found for each setting, and the share of a core that waiting ones took.

    Args:
        pairs: the settings, each with its case.
        repeats: rounds that count; one that does not goes before.
        seconds: of turns of one setting, after which it takes no more of them.
    """
    found = [Measured(setting) for _, setting in pairs]
    workers: dict[int, Worker] = {}

    def start(i: int) -> None:
        case, setting = pairs[i]
        free = memory("MemAvailable", "/proc/meminfo")
        if free < LEAST_FREE:
            found[i].error = f"not begun: {free:.0f} MiB left. Name fewer --settings."
            print(f"  {setting.name}: {found[i].error}", flush=True)
            return
        workers[i] = Worker(setting.library, setting.backend, setting.environment)
        about = described(case)
        about["rows"] = [case.batch] if case.batch else list(BATCHES)
        try:
            answer = workers[i].ask(START_SECONDS, case=about, setting=dataclasses.asdict(setting))
            if answer["parameters"] != parameters(about["config"]):
                raise WorkerError(
                    f"{answer['parameters']:,} weights, not the {parameters(about['config']):,} "
                    "of the model"
                )
            found[i].facts = answer
        except WorkerError as error:
            drop(i, str(error))

    def drop(i: int, error: str) -> None:
        found[i].error = error
        workers.pop(i).close()
        print(f"  {pairs[i][1].name}: {error}", flush=True)

    try:
        # To compile takes no timing: several at a time, but not where memory might not do.
        together = 1 if any("doc" in case.model for case, _ in pairs) else report.threads()
        with concurrent.futures.ThreadPoolExecutor(together) as pool:
            list(pool.map(start, range(len(pairs))))
        others, whole = 0.0, 0.0
        for turn in range(repeats + 1):
            for i in sorted(workers):
                if sum(found[i].seconds) * steps_of(found[i]) > seconds:
                    continue
                before = {j: workers[j].core_seconds() for j in workers if j != i}
                began = time.perf_counter()
                try:
                    answer = workers[i].ask(TURN_SECONDS, turn=turn)
                except WorkerError as error:
                    drop(i, str(error))
                    continue
                took = time.perf_counter() - began
                others += sum(workers[j].core_seconds() - used for j, used in before.items())
                whole += took
                found[i].peak_mb = answer["peak_mb"]
                found[i].facts["turn_seconds"] = took
                if turn > 0:
                    found[i].seconds.append(answer["seconds"])
                    found[i].core_use.append(answer["cores"])
                    found[i].threads = max(found[i].threads, answer["threads"])
    finally:
        for worker in workers.values():
            worker.close()
    return found, others / max(whole, 1e-9)


def steps_of(measured: Measured) -> float:
    """Return how many times what is reported a turn takes."""
    if not measured.seconds:
        return 1.0
    return measured.facts["turn_seconds"] / max(measured.seconds[-1], 1e-9)


def machine_limits(
    case: Case, kinds: set[tuple[str, int]], rates: dict
) -> dict[tuple[str, int], Limit]:
    """Return the limit of a step, or of the text of an evaluation, by precision and rows.

    What the table `rates` does not hold is measured, and put into it.
    """
    config = described(case)["config"]
    wanted = {}
    for kind in kinds:
        rows, steps, calls = kind[1], case.time, 1
        if case.kind == "evaluation":
            steps = max(1, min(2048, case.tokens) // rows)
            calls = case.tokens // rows // steps
        found = products(
            config, rows, steps, backward=case.kind != "evaluation", source=case.source
        )
        wanted[kind] = {product: number * calls for product, number in found.items()}
    asked = {(product, precision) for (precision, _), each in wanted.items() for product in each}
    missing = sorted(asked - rates.keys())
    for library in LIBRARIES if missing else ():
        worker = Worker("products", library)
        try:
            for product, precision in missing:
                for form in FORMS:
                    answer = worker.ask(
                        TURN_SECONDS, product=product, precision=precision, form=form
                    )
                    known = rates.get((product, precision), (float("inf"), ""))
                    best = min(known, (answer["seconds"], f"{library}, {form}"))
                    rates[product, precision] = best
        except WorkerError as error:
            print(f"  products by {library}: {error}", flush=True)
        finally:
            worker.close()
    return {
        kind: limit(each, {product: rates[product, kind[0]] for product in each})
        for kind, each in wanted.items()
    }


if __name__ == "__main__":
    main()
