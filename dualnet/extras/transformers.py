"""Models as Hugging Face's library `transformers` takes them, on the PyTorch backend."""

import itertools
from pathlib import Path
from typing import Any, NoReturn

import keras

from dualnet._checks import ArgumentError, StrPath, extra
from dualnet.builders import LanguageModel, names_in
from dualnet.builders.graph import with_masks
from dualnet.extras.transformers_folder import write_modeling
from dualnet.text import SentencePieceTokenizer, load_tokenizer

if keras.config.backend() != "torch":
    raise ImportError(
        "`dualnet.transformers` needs the PyTorch backend. Received: the backend "
        f"{keras.config.backend()!r}. Set KERAS_BACKEND=torch before Python starts."
    )

with extra("transformers", "`dualnet.transformers` needs PyTorch and Hugging Face's transformers"):
    import torch
    import transformers
    from torch import nn
    from transformers import modeling_outputs
    from transformers.utils import ModelOutput, can_return_tuple

__all__ = [
    "DualnetConfig", "DualnetForCausalLM", "DualnetForSequenceClassification", "DualnetModel",
    "DualnetTokenizer", "StateCache",
]  # fmt: skip

Output = dict[str, Any]  # the entries that all answers have
NEVER = -1e4  # logit of the padding token: a probability of 0, and finite even in float16
FIXED = (
    "The words of an exported model and their embeddings are fixed: to add words, train a model "
    "that has them by `dualnet train NAME --weights RUN`, and export that."
)


class _Exported:
    """What is saved with a module that imports this one, in place of a copy of this one."""

    @classmethod
    def register_for_auto_class(cls, auto_class: object = None) -> None:
        """Do nothing: the library would save this module itself, beside the one that imports it."""


class _Saved(_Exported):
    def save_pretrained(self, save_directory: StrPath, *args: object, **kwargs: object) -> object:
        files = super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
        write_modeling(Path(save_directory))
        return files


class DualnetConfig(_Exported, transformers.PreTrainedConfig):
    """The configuration of an exported model.

    Args:
        network: dict. The configuration of the `LanguageModel`, from which it is built again.
        **kwargs: Those of `transformers.PreTrainedConfig`. `vocab_size` counts the padding
            token, which has the last id.
    """

    model_type = "dualnet"
    keys_to_ignore_at_inference = ["cache"]

    network: dict[str, Any] | None = None
    vocab_size: int = 1
    hidden_size: int = 1
    use_cache: bool = True


class StateCache(transformers.Cache):
    """The recurrent state after the tokens read so far, as the library's cache.

    Attributes:
        states: list of float32 `(batch, size)`, one for each entry of `state_size`.
        num_read: int. Number of tokens read, padding included.
    """

    is_compileable = False
    is_croppable = False  # an earlier state cannot be recovered

    def __init__(self, states: list[torch.Tensor]) -> None:
        super().__init__(layers=[])
        self.states = states
        self.num_read = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.num_read

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.states = [state.index_select(0, beam_idx.to(state.device)) for state in self.states]

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.states = [state.repeat_interleave(repeats, dim=0) for state in self.states]

    def reset(self) -> None:
        self.states = [torch.zeros_like(state) for state in self.states]
        self.num_read = 0


class _Network:
    """A Keras model that reads tokens with the parameters of a PyTorch model.

    That gives its parameters before it reads; its copies have networks of their own.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        # On the CPU, whatever `from_pretrained` and Keras have as their default.
        with torch.device("cpu"), keras.device("cpu"):
            self.model = LanguageModel.from_config(config)
            graph = self.model.graph.without_past_decode()
            self.variables = names_in(graph.core)
            hidden = [out for out in graph.layer_outputs.values() if out is not graph.hidden]
            outputs = [graph.word_logits, *graph.new_states, *hidden, graph.hidden]
            self.core = keras.Model([graph.tokens, *graph.states], outputs)
            self.masked: keras.Model | None = None  # reads padding, whose id is -1
            if graph.padded:
                self.masked = self.core
            # A cache, and layers of a Keras model of one's own, know nothing of padding.
            elif self.model.can_mask:
                self.masked = with_masks(self.core)

    def __reduce__(self) -> tuple[object, ...]:  # of copies and pickles
        return _Network, (self.config,)

    def read(
        self, tokens: torch.Tensor, mask: torch.Tensor, states: list[torch.Tensor], training: bool
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """Return the logits, the states after the tokens, and the outputs of all layers."""
        if mask.all():
            outputs = self.core([tokens, *states], training=training)
        elif self.masked is not None:
            outputs = self.masked([tokens.masked_fill(~mask, -1), *states], training=training)
        else:
            outputs = self._read_by_token(tokens.masked_fill(~mask, 0), mask, states, training)
        end = 1 + len(states)
        return outputs[0].float(), list(outputs[1:end]), list(outputs[end:])

    def _read_by_token(
        self, tokens: torch.Tensor, mask: torch.Tensor, states: list[torch.Tensor], training: bool
    ) -> list[torch.Tensor]:
        """Read tokens one by one; at padding, a row keeps its states."""
        steps, end = [], 1 + len(states)
        for token, is_read in zip(tokens.split(1, dim=1), mask.split(1, dim=1)):
            outputs = self.core([token, *states], training=training)
            states = [torch.where(is_read, *pair) for pair in zip(outputs[1:end], states)]
            steps.append([outputs[0], *outputs[end:]])
        logits, *hidden = (torch.cat(parts, dim=1) for parts in zip(*steps))
        return [logits, *states, *hidden]


class _Reading(_Saved, transformers.PreTrainedModel):
    """What the models have in common: the parameters, and how tokens are read with them."""

    config_class = DualnetConfig
    base_model_prefix = "dualnet"
    main_input_name = "input_ids"
    _is_stateful = True  # no state can be rolled back

    def __init__(self, config: DualnetConfig) -> None:
        super().__init__(config)
        network = _Network(config.network or {})
        self.weights = nn.Module()
        for name, variable in network.variables.items():
            # `from_pretrained(dtype=...)` makes it the default while a model is made.
            value = variable.value.detach().to(torch.get_default_dtype())
            if variable.trainable:
                self.weights.register_parameter(name, nn.Parameter(value))
            else:  # frozen, as under a gate: `from_pretrained` would let parameters be trained
                self.weights.register_buffer(name, value)
        # Not as an attribute that PyTorch registers: its parameters are those of `weights`.
        self.__dict__["_network"] = network
        self.post_init()

    @property
    def network(self) -> LanguageModel:
        """The `LanguageModel`, whose weights are the parameters themselves.

        Functions of dualnet take it, after `network.vocabulary` is set where they read text.
        """
        return self._bound().model

    def get_input_embeddings(self, *_: object) -> NoReturn:
        raise NotImplementedError(FIXED)  # which the library expects of models without

    set_input_embeddings = get_input_embeddings

    def _bound(self) -> _Network:
        """Return the network with the parameters as they are now in the place of its weights."""
        # Each time: `from_pretrained`, `to` and others replace the parameters.
        for name, variable in self._network.variables.items():
            variable._value = getattr(self.weights, name).to(torch.float32)
        return self._network

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        *,
        cache: StateCache | None = None,
        past_key_values: StateCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: int | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **_: object,
    ) -> ModelOutput:
        if input_ids is None:
            raise ValueError("`input_ids` must be given: the model reads no `inputs_embeds`.")
        rows, time = input_ids.shape
        last = self.config.vocab_size - 1
        is_token = input_ids != last
        if attention_mask is not None:  # in generation, also of the tokens before
            is_token = is_token & attention_mask[:, -time:].bool()
        wrong = input_ids[is_token & ((input_ids < 0) | (input_ids > last))]
        if len(wrong):
            raise ArgumentError(
                "input_ids",
                f"must hold ids of the model, 0 to {last}, at tokens.",
                f" {FIXED}",
                input_ids=wrong.tolist(),
            )
        cache = past_key_values if cache is None else cache
        with keras.device(str(self.device)):
            network = self._bound()
            if cache is None:
                cache = StateCache(network.model.initial_state(rows))
            tokens = input_ids.to(torch.int32)
            logits, states, hidden = network.read(tokens, is_token, cache.states, self.training)
        cache.states, cache.num_read = states, cache.num_read + time
        logits = nn.functional.pad(logits, (0, 1), value=NEVER)
        if not is_token.all():  # padding answers as the last token before, for `generate`
            columns = torch.arange(time, device=logits.device) * is_token
            places = columns.cummax(dim=1).values[..., None]
            logits, *hidden = (part.take_along_dim(places, dim=1) for part in (logits, *hidden))
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        keeps = self.config.use_cache and not self.training if use_cache is None else use_cache
        shows = output_hidden_states or self.config.output_hidden_states
        others = {
            "cache": cache if keeps else None,
            "hidden_states": tuple(hidden) if shows else None,
        }
        return self._answer(
            others,
            logits=logits[:, kept],
            last=hidden[-1],
            labels=labels,
            items=num_items_in_batch,
        )


class DualnetModel(_Reading):
    """The recurrence alone, `AutoModel`: vectors of tokens in their context."""

    def _answer(self, others: Output, *, last: torch.Tensor, **_: object) -> ModelOutput:
        return modeling_outputs.BaseModelOutputWithPast(last_hidden_state=last, **others)


class DualnetForCausalLM(_Reading, transformers.GenerationMixin):
    """A language model, `AutoModelForCausalLM`: the logits of the next token.

    Parameters are kept in the `dtype` of `from_pretrained`; it computes in float32.

    Call arguments:
        input_ids: int `(batch, time)`. Begin a text with `<eos>`, as `add_bos_token=True` of the
            tokeniser does.
        attention_mask: `(batch, time)`, 0 at padding, on either side: a state passes over it
            unchanged, and the logits there are those of the last token before. By default, the
            padding token is padding.
        labels: int `(batch, time)`, shifted by the model, as usual there; -100 is left out.
        cache: the `StateCache` of the tokens before, also called `past_key_values`.
        logits_to_keep, use_cache, return_dict: As usual there.
        output_hidden_states: As usual there. The hidden states are the
            embeddings, the outputs of the dual connection and of the recurrent layers; the last
            is what `last_hidden_state` holds.

    Returns:
        `CausalLMOutputWithPast`, whose logits have a column more than the model has words, for
        the padding token, which has probability 0.

    Example:

    >>> import tempfile, dualnet
    >>> import dualnet.transformers
    >>> from transformers import AutoModelForCausalLM
    >>> model = dualnet.zoo.build("lstm", vocabulary_size=9, units=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = dualnet.export(model, f"{folder}/hf", format="transformers")
    ...     loaded = AutoModelForCausalLM.from_pretrained(path)
    >>> loaded.network.count_params() == model.count_params()
    True
    """

    def _answer(
        self,
        others: Output,
        *,
        logits: torch.Tensor,
        labels: torch.Tensor | None,
        items: int | None,
        **_: object,
    ) -> ModelOutput:
        loss = None
        if labels is not None:
            settings = {"vocab_size": self.config.vocab_size, "num_items_in_batch": items}
            loss = self.loss_function(logits, labels, **settings)
        return modeling_outputs.CausalLMOutputWithPast(loss=loss, logits=logits, **others)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the first call makes the cache


class DualnetForSequenceClassification(_Reading):
    """A classifier of texts, `AutoModelForSequenceClassification`.

    A linear layer, `score`, reads the last layer's output at the last token of each text.
    """

    def __init__(self, config: DualnetConfig) -> None:
        super().__init__(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def _answer(
        self,
        others: Output,
        *,
        last: torch.Tensor,
        labels: torch.Tensor | None,
        **_: object,
    ) -> ModelOutput:
        logits = self.score(last[:, -1].to(self.score.weight.dtype))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return modeling_outputs.SequenceClassifierOutputWithPast(loss=loss, logits=logits, **others)


class DualnetTokenizer(_Saved, transformers.PreTrainedTokenizer):
    """A SentencePiece file, read by its own library; other tokenisers need no class of ours.

    Args:
        vocab_file: path of the file.
        documents: "line", "blank-line" or "file": what ends a document, and is read as `<eos>`.
        lowercase: bool. Whether text is lower-cased first.
        add_bos_token: bool. Whether texts begin with `<eos>`.
        **kwargs: Passed to `transformers.PreTrainedTokenizer`.
    """

    vocab_files_names = {"vocab_file": SentencePieceTokenizer.file_name}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(
        self,
        vocab_file: StrPath,
        documents: str = "line",
        lowercase: bool = False,
        add_bos_token: bool = False,
        **kwargs: Any,
    ) -> None:
        settings = {"documents": documents, "lowercase": lowercase}
        self.own = load_tokenizer(vocab_file, documents=documents, lowercase=lowercase)
        kwargs["special_tokens_pattern"] = "bos" if add_bos_token else "none"
        super().__init__(**kwargs, **settings, add_bos_token=add_bos_token)

    @property
    def vocab_size(self) -> int:
        return len(self.own)

    def get_vocab(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.own)} | self._added_tokens_encoder

    def _tokenize(self, text: str, **kwargs: object) -> list[str]:
        return [self.own.word(i) for i in self.own.encode(text)]

    def _convert_token_to_id(self, token: str) -> int:
        return self.own.id(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.own.word(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        special = {*self.all_special_tokens}
        return "".join(
            "".join(group) if is_special else self.own.decode(map(self.own.id, group))
            for is_special, group in itertools.groupby(tokens, special.__contains__)
        )

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str]:
        name = f"{filename_prefix}-" * bool(filename_prefix) + self.own.file_name
        self.own.save(Path(save_directory, name))
        return (str(Path(save_directory, name)),)


transformers.AutoTokenizer.register(DualnetConfig, DualnetTokenizer)
transformers.AutoConfig.register(DualnetConfig.model_type, DualnetConfig)
transformers.AutoModel.register(DualnetConfig, DualnetModel)
transformers.AutoModelForCausalLM.register(DualnetConfig, DualnetForCausalLM)
transformers.AutoModelForSequenceClassification.register(
    DualnetConfig, DualnetForSequenceClassification
)
