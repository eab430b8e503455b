"""Trains tokenisers, by means of Hugging Face's library `tokenizers`."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from dualnet._checks import ArgumentError, as_texts, check_choice, check_count
from dualnet.text.library_tokenizer import LibraryTokenizer, alphabet, library_errors
from dualnet.text.plain_text import END, EOS, UNK

KINDS = ("bpe", "unigram", "word-piece")  # that `train_tokenizer` makes of a given size
LONGEST_WORD = 100  # characters that the library's word-piece reads at once


def train_tokenizer(
    texts: Iterable[str],
    kind: str = "bpe",
    *,
    size: int | None = None,
    documents: str = "line",
    lowercase: bool = False,
    special: str | Iterable[str] = (),
) -> LibraryTokenizer:
    """Return a tokeniser whose tokens are learnt from `texts` by the library `tokenizers`.

    "bpe" is byte-level: its tokens are strings of bytes within a word, with the space before
    it, so that no text is unknown and decoding gives every text back unchanged. The tokens of
    "unigram" and "word-piece" are parts of words of characters, and those of "characters" are
    characters; what `texts` do not hold is `<unk>`. The same texts give the same tokens again,
    except that "unigram" and "word-piece" put tokens of equal frequency in any order.

    Args:
        texts: Strings, read once. With `documents="line"`, no token spans a newline.
        kind: "bpe", "unigram", "word-piece" or "characters".
        size: int. Number of tokens, `<eos>` included; at least 257 for "bpe".
            Fewer are learnt if the texts have too few words, and more of "word-piece" if the
            characters that begin words and those within are more. None for "characters": all.
        documents: See `LibraryTokenizer`.
        lowercase: bool. Whether text is lower-cased first, here and later.
        special: Strings that are one token each wherever a text has them, e.g. "<unk>" in
            WikiText.

    Example:

    >>> from dualnet.text import train_tokenizer
    >>> tokenizer = train_tokenizer(["abc"], "characters")
    >>> tokenizer.words, tokenizer.encode("cab!").tolist()
    (('<eos>', '<unk>', 'a', 'b', 'c'), [4, 2, 3, 1])
    """
    import tokenizers
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

    if isinstance(texts, str):
        raise ArgumentError("texts", "must be a sequence of strings. Received: one string.")
    special = as_texts(special)
    if EOS in special:
        raise ArgumentError(
            "special", f"must not hold {EOS}, which stands where a document ends.", special=special
        )
    learnt = check_size(kind, size, special=len(special))
    first = [EOS] if kind == "bpe" else [EOS, UNK]
    options: dict[str, Any] = {"show_progress": False, "special_tokens": first}
    if learnt:
        options["vocab_size"] = learnt
    # The library reads longer words as unknown, and a word with an unknown character whole: that
    # of Chinese, which has no spaces, is a character.
    long = tokenizers.Regex(f"\\p{{Han}}|[\\s\\S]{{{LONGEST_WORD}}}")
    single = tokenizers.Regex(r"[\s\S]")
    steps = [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Split(long, "isolated")]
    kinds: dict[str, Any] = {  # the model, what divides texts, the decoder and the trainer
        "bpe": (
            models.BPE(),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
            trainers.BpeTrainer(**options, initial_alphabet=sorted(alphabet())),
        ),
        "unigram": (
            models.Unigram(),
            pre_tokenizers.Metaspace(),
            decoders.Metaspace(),
            trainers.UnigramTrainer(**options, unk_token=UNK),
        ),
        "word-piece": (
            models.WordPiece(unk_token=UNK),
            pre_tokenizers.Sequence(steps),
            decoders.WordPiece(cleanup=False),
            trainers.WordPieceTrainer(**options, limit_alphabet=max(learnt - 2, 0)),
        ),
        "characters": (
            models.WordLevel(unk_token=UNK),
            pre_tokenizers.Split(single, "isolated"),
            decoders.Fuse(),
            trainers.WordLevelTrainer(**options),
        ),
    }
    model, divider, decoder, trainer = kinds[kind]
    tokenizer: Any = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = divider, decoder
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()  # so that the file says it
    # In a corpus, the ends of documents are marked by half of a surrogate pair.
    spelt = [text.lower() if lowercase else text for text in special]
    ends = [END, *["\n"] * (documents == "line"), *spelt]
    split = re.compile("|".join(map(re.escape, ends))).split

    def pieces() -> Iterator[str]:
        for text in texts:
            yield from filter(None, split(text.lower() if lowercase else text))

    with library_errors("The text and the size must fit"):
        tokenizer.train_from_iterator(pieces(), trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=lowercase) for text in special])
    return LibraryTokenizer(tokenizer.to_str(), documents=documents, lowercase=lowercase)


def check_size(kind: str, size: int | None, *, special: int = 0) -> int:
    """Return the number of tokens to learn, without the `special` ones; 0 for characters: all."""
    if check_choice("kind", kind, (*KINDS, "characters")) != "characters":
        return check_count("size", size, least=(257 if kind == "bpe" else 3) + special) - special
    if size is not None:
        raise ArgumentError("size", "must be None for characters: all.", size=size)
    return 0
