"""The work of `benchmarks/beam.py`: sentences translated by beam search, in dualnet and PyTorch."""

from __future__ import annotations

import math
import time

import numpy as np

from peers.work import Work

SHORTEST, LONGEST = 6, 22  # tokens of a source; their mean is that of Multi30k
ROWS = 320  # sentences times beam that are searched side by side, as in dualnet


class SearchWork(Work):
    """A turn translates all sentences; `case["beam"]` is 1 for a greedy search.

    Weights are random, so hardly a translation ends before the limit, `case["tokens"]`.
    """

    def warm_up(self):
        length = self.rng.integers(SHORTEST, LONGEST + 1, self.case["sentences"])
        words = self.case["config"]["vocabulary_size"]
        self.sources = [self.rng.integers(2, words, n, dtype=np.int32) for n in length]
        self.start()
        return self.search()

    def start(self):
        """Prepare the sources."""

    def search(self):
        """Return the mean length of the translations of all sources."""
        raise NotImplementedError

    def turn(self):
        began = time.perf_counter()
        self.search()
        return time.perf_counter() - began


def dualnet_search():
    import dualnet
    from dualnet import zoo
    from dualnet.text import Vocabulary
    from dualnet.training import versions

    class DualnetSearch(SearchWork):
        def prepare(self):
            case = self.case
            self.model = zoo.build(case["model"], corpus=case["corpus"], **case["arguments"])
            words = case["config"]["vocabulary_size"]
            named = ("<eos>", "<unk>", *(f"w{i}" for i in range(2, words)))
            self.model.vocabulary = self.model.source_vocabulary = Vocabulary(named)
            weights = self.model.trainable_variables
            self.parameters = sum(math.prod(weight.shape) for weight in weights)
            self.versions = versions()

        def start(self):
            decode = self.model.vocabulary.decode
            self.texts = [decode(ids) for ids in self.sources]

        def search(self):
            found = dualnet.translate(
                self.model, self.texts, beam=self.case["beam"], max_tokens=self.case["tokens"]
            )
            return float(np.mean([len(text.split()) for text in found]))

    return DualnetSearch


def torch_search():
    import torch

    from peers.torch_translator import Translator, decoder_step

    class TorchSearch(SearchWork):
        def prepare(self):
            torch.manual_seed(0)
            self.model = Translator(self.case["config"], {}).eval()
            self.parameters = sum(weight.numel() for weight in self.model.weights())
            self.versions = {"torch": torch.__version__}

        def search(self):
            order = sorted(self.sources, key=len, reverse=True)
            count, lengths = ROWS // self.case["beam"], []
            with torch.inference_mode():
                for first in range(0, len(order), count):
                    lengths += self._translated(order[first : first + count])
            return float(np.mean(lengths))

        def _translated(self, sources):
            """Return the lengths of the best translations of `sources`, ranked per token."""
            beam, limit = self.case["beam"], self.case["tokens"]
            memory, keys, padding, hidden, cells = self.model.encoded(sources)
            count, rows = len(sources), len(sources) * beam
            repeat = lambda x: x.repeat_interleave(beam, 0)  # noqa: E731
            memory, keys, padding = map(repeat, (memory, keys, padding))
            hidden, cells = [*map(repeat, hidden)], [*map(repeat, cells)]
            fed = torch.zeros(rows, hidden[-1].shape[1])
            tokens = torch.zeros(rows, dtype=torch.int64)
            scores = torch.full((count, beam), -math.inf)
            scores[:, 0] = 0.0
            prefixes = torch.zeros(count, beam, 0, dtype=torch.int64)
            best = torch.full((count,), -math.inf)
            found = [torch.empty(0)] * count
            model, first_rows = self.model, torch.arange(count)[:, None] * beam
            for length in range(1, limit + 1):
                word = torch.addmm(model.biases[0], model.embedding[tokens], model.word_kernel)
                fed, hidden, cells = decoder_step(
                    word, fed, hidden, cells, model.kernels, list(model.biases[1:]),
                    model.attention, memory, keys, padding, [1.0] * (len(cells) - 1),
                )  # fmt: skip
                logits = torch.addmm(model.output.bias, fed, model.matrix.t())
                log_p = torch.log_softmax(logits, 1)
                log_p[:, 1] = -math.inf  # <unk>
                totals = scores[..., None] + log_p.view(count, beam, -1)
                scores, chosen = totals.flatten(1).topk(beam)
                words = log_p.shape[1]
                parents, ids = chosen // words, chosen % words
                prefixes = prefixes.gather(1, parents[..., None].expand(-1, -1, length - 1))
                prefixes = torch.cat((prefixes, ids[..., None]), 2)
                ended = (ids == 0) | (length == limit)
                means = torch.where(ended, scores / length, -math.inf)
                better, which = means.max(1)
                for i in torch.nonzero(better > best).flatten().tolist():
                    found[i] = prefixes[i, which[i]]
                best = torch.maximum(best, better)
                scores = torch.where(ended, -math.inf, scores)
                # A score only falls, and length helps most at the limit.
                scores = torch.where(
                    (scores / limit).amax(1, True) > best[:, None], scores, -math.inf
                )
                if not torch.isfinite(scores).any():
                    break
                taken = (first_rows + parents).flatten()
                fed, tokens = fed[taken], ids.flatten()
                hidden, cells = [h[taken] for h in hidden], [c[taken] for c in cells]
            return [len(each) for each in found]

    return TorchSearch
