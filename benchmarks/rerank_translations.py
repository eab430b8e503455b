"""Do lists of translations get better when other translators score them? (Yao et al., Table 2)

Usage: DUALNET_DATA=FOLDER_WITH_multi30k python benchmarks/rerank_translations.py OUTPUT
           GENERATOR_RUN RESCORER_RUN... [--beam 100] [--sentences N]
`dualnet translate` writes lists of 100 hypotheses with the first RUN, for the German sentences of
valid and test_2016, and `dualnet rescore` adds the log-probabilities of the others. Weights are
tuned for BLEU on valid, three times from other starts. Prints, and writes to OUTPUT/table.txt, BLEU
of the first and of the chosen hypotheses of both splits, with the mean and the standard deviation
of the three, for each rescorer and for all. Files that are in OUTPUT are not made again.
"""

import dataclasses
import functools
import os
import statistics
import subprocess
import sys
from pathlib import Path

from options import options_of

from dualnet import corpora
from dualnet._files import write_whole
from dualnet.rescoring import Bleu, Hypothesis, NBest, compare, read_nbest, tune

SEEDS = (0, 1, 2)
PUBLISHED = {"valid": "26.61 to 30.05", "test": "40.63 to 43.08"}


def command(output: Path, *arguments: object) -> None:
    """Run `dualnet ARGUMENTS > OUTPUT`, unless OUTPUT is there."""
    if not output.exists():
        program = [sys.executable, "-m", "dualnet", *map(str, arguments)]
        done = subprocess.run(program, stdout=subprocess.PIPE, check=True, encoding="utf-8")
        write_whole(output, done.stdout)


def only(lists: list[NBest], names: set[str]) -> list[NBest]:
    """Return `lists` without the features of rescorers that are not in `names`."""

    def chosen(one: Hypothesis) -> Hypothesis:
        features = {name: value for name, value in one.features.items() if name in names}
        return dataclasses.replace(one, features=features)

    return [NBest(each.id, tuple(map(chosen, each.hypotheses))) for each in lists]


def main() -> None:
    options = options_of(__doc__, "output", "generator", "rescorers...", beam=100, sentences=int)
    output = options.output
    output.mkdir(parents=True, exist_ok=True)
    folder = Path(os.environ["DUALNET_DATA"]) / "multi30k"
    corpus = corpora.load_pairs(folder, source="de", target="en")
    lists, references = {}, {}
    for split in PUBLISHED:
        pairs = corpus.split(split)
        source = output / f"{split}.de"
        lines = pairs.source_lines[: options.sentences]
        write_whole(source, "".join(f"{line}\n" for line in lines))
        references[split] = list(pairs.target_lines[: options.sentences])
        nbest, scored = output / f"{split}.nbest", output / f"{split}.scored"
        beam = ["--beam", options.beam, "--nbest", options.beam, "--format", "moses"]
        command(nbest, "translate", options.generator, source, *beam)
        command(scored, "rescore", *options.rescorers, nbest, "--input", source)
        lists[split] = list(read_nbest(scored, format="moses"))

    names = [run.name for run in options.rescorers]
    own = {name for name in lists["valid"][0].hypotheses[0].features if name not in names}
    bleu = Bleu()
    bleu.statistics = functools.cache(bleu.statistics)
    rows = [f"{'BLEU':<40}{'valid':>16}{'test':>16}"]
    cases = {name: {name} for name in names}
    if len(names) > 1:
        cases["all"] = {*names}
    for label, chosen in {"features of the lists alone": set(), **cases}.items():
        found = {split: only(each, own | chosen) for split, each in lists.items()}
        figures: dict[str, list[float]] = {split: [] for split in found}
        for seed in SEEDS:
            weights = tune(found["valid"], references["valid"], metric=bleu, seed=seed)
            for split, each in found.items():
                figure = compare(each, references[split], weights, metric=bleu)
                figures[split].append(figure.rescored.value)
                if not chosen and seed == SEEDS[0]:
                    rows.insert(1, f"{split} first {figure.base}, oracle {figure.oracle}")
        cells = "".join(
            f"{f'{statistics.mean(each):.2f} ({statistics.stdev(each):.2f})':>16}"
            for each in figures.values()
        )
        rows.append(f"{label:<40}{cells}")
    rows.append(
        f"{'published, first to chosen':<40}" + "".join(f"{v:>16}" for v in PUBLISHED.values())
    )
    write_whole(output / "table.txt", "".join(f"{row}\n" for row in rows))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
