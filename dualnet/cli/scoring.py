"""The command `score`, and its format `surprisal`: a row for each token or word."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from typing import Any

from dualnet._fields import choice
from dualnet.cli.console import Table, comparison, number, printable, quietly, report, texts_of
from dualnet.cli.evaluating import learning_of
from dualnet.cli.options import AdaptingOptions, OfTexts, open_language_model
from dualnet.requests import RULES, Surprising
from dualnet.runs import Run


class Score(OfTexts, AdaptingOptions, Surprising):
    """Options of `score`.

    Args:
        texts: Text to score, in which a newline is <eos>; repeatable.
    Args (surprisal):
        format: 'surprisal': print a tab-separated row for each token, with its surprisal in bits.
        entropy: With --format surprisal: add the entropy, in bits, of each prediction.
        words: With --format surprisal: print a row for each word, with the sum over its tokens;
            white space separates words.
        adapt: With --format surprisal: learn from each text, in one step, after scoring it.
        rule: Update rule of --adapt: nadam, sgd, rms or published (default: nadam; shipped models
            have a rule of their own).
        set: Override settings of --adapt, e.g. learning_rate=0.001.
    """

    format: str | None = choice(None, ["surprisal"], metavar="surprisal")
    rule: str | None = choice(None, [*RULES, "published"])  # type: ignore[assignment]
    needs = {"format": ["entropy", "words", "adapt"]}


def score(options: Score) -> None:
    """Compute the log-probability, in nats, of each word of texts, and the perplexity.

    Examples:
        dualnet score runs/dual --text "the cat sat"
        dualnet score runs/dual book.txt --format surprisal --words
    """
    texts = texts_of("--text", options)
    if options.format == "surprisal":
        print_surprisal(options, texts)
        return
    run = open_language_model(options.run_folder)
    quietly("dualnet.evaluation")
    from dualnet.evaluation import comparable, score
    from dualnet.evaluation.arguments import perplexity_of
    from dualnet.text.plain_text import tokenisation_warning

    model = run.model()
    scores = score(model, texts, temperature=options.temperature)
    tokens = sum(score.tokens for score in scores)
    losses = [-value for score in scores for value in score.log_probabilities.tolist()]
    perplexity = perplexity_of(losses)
    ids = [model.vocabulary.encode(text) for text in texts]
    figures = comparable(model.vocabulary, ids, sum(losses)).figures()
    words = [word for score in scores for word in score.words]
    if warning := tokenisation_warning(words, what="the text"):
        print(warning, file=sys.stderr)
    of_words = model.vocabulary.kind == "words"  # then the tokens are the words
    fields = ["perplexity", "tokens", "words", "log_probabilities"]
    fields += [] if of_words else ["whole_words", "whole_word_log_probabilities"]
    result = {
        "perplexity": perplexity,
        "tokens": tokens,
        "texts": [{name: getattr(score, name) for name in fields} for score in scores],
        "temperature": options.temperature,
        **figures,
    }
    rows = [
        [number(score.perplexity), f"{score.tokens:,}",
         " ".join(score.words if of_words else score.whole_words)]
        for score in scores
    ]  # fmt: skip
    columns = shutil.get_terminal_size().columns
    report(
        options,
        result,
        Table(["perplexity", "tokens", "text"], rows, columns),
        f"\nperplexity {number(perplexity)} on {tokens:,} tokens of "
        f"{len(scores):,} text{'s' * (len(scores) != 1)}",
        textwrap.fill(comparison(figures), max(columns, 20)),
    )


def print_surprisal(options: Score, texts: list[str]) -> None:
    """Print the surprisal of `texts`: rows with tabs between, as they come, or JSON."""
    run = open_language_model(options.run_folder)
    if options.rule != "published":
        _surprising(options, run)
    quietly("dualnet.adaptation")
    from dualnet.adaptation.surprisals import records

    request = _surprising(options, run)
    statistics = run.training_text() if options.adapt and request.rule == "rms" else None
    rows = records(run.model(), texts, request, statistics=statistics)
    if options.json:
        report(options, list(rows))
        return
    first = next(rows, None)  # which is computed, and errors raised, before anything is printed
    print("sentence_id", "token_id", "token", "surprisal", *["entropy"] * options.entropy, sep="\t")
    for row in itertools.chain([first] if first else [], rows):
        print(*map(_cell, row.values()), sep="\t")


def _surprising(options: Score, run: Run) -> Surprising:
    """Return the request to the model of `run`, with the rule that --rule stands for."""
    request = {**options.arguments(), "rule": "nadam"}
    if options.adapt:
        corpus = run.trained_on.get("name", "")
        request |= learning_of(run, options.rule, options.learning(), corpus, by_text=True)
    return Surprising(**Surprising.fields_of(request))


def _cell(value: Any) -> str:
    """Return a value as a cell of a row: 7 digits; control characters of a token escaped."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return printable(str(value)).replace("\t", "\\t").replace("\n", "\\n")
