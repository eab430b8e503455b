"""The equations of the papers in NumPy float64, and derivatives by central differences.

Written from the papers alone, to be compared with the package. Rows are examples,
so that a paper's `W x` is `x @ W` here. Weights come by name, from a dict.

LSTM: Gers et al., 2000. Mogrifier: Melis et al., 2020, Eq. 1 and 2, with a bias in
each round. Dual: Oliva and Lago-Fernandez, 2021. Tying: Inan et al., 2017. Simple
recurrence: Elman, 1990. GRU: Cho et al., 2014, in the form of cuDNN. Layer
normalisation: Ba, Kiros and Hinton, 2016. Recurrent highway: Zilly et al., 2017, Eq. 6
to 9. Depth gates: Yao et al., 2015.
"""

import functools

import numpy as np


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def softmax(z):
    powers = np.exp(z - z.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def per_gate(vector, weights, name, gates, mask=None):
    """Return by gate the product of the masked vector and the gate's part of `name`.

    `mask` is one for all gates, or holds one for each, side by side.
    """
    masks = gate_masks({} if mask is None else {"mask": mask}, "mask", gates, vector)
    matrices = np.split(weights[name], len(gates), axis=1)
    return {gate: (vector * masks[gate]) @ W for gate, W in zip(gates, matrices)}


def gate_masks(masks, name, gates, vector):
    """Return the mask of `vector` for each gate: one for all, one for each, or ones."""
    mask = masks.get(name, np.ones_like(vector))
    parts = np.split(mask, mask.shape[1] // vector.shape[1], axis=1)
    return dict(zip(gates, parts * len(gates) if len(parts) == 1 else parts, strict=True))


# --- cells: `step(x, states, weights, masks, **options)` returns the list of new states

NOTED = {}  # the gates and other intermediate values of the last step, by name


def lstm_step(x, states, weights, masks, *, capped_input_gate=False):
    """The weights hold the gates side by side: i, f, j, o."""
    h, c = states
    W = per_gate(x, weights, "kernel", "ifjo", masks.get("input"))
    U = per_gate(h, weights, "recurrent_kernel", "ifjo", masks.get("recurrent"))
    b = np.split(weights.get("bias", np.zeros(4 * h.shape[1])), 4)
    i, f, j, o = (W[gate] + U[gate] + part for gate, part in zip("ifjo", b))
    i, f, o = sigmoid(i), sigmoid(f), sigmoid(o)
    i = np.minimum(i, 1 - f) if capped_input_gate else i
    c = f * c + i * np.tanh(j)
    NOTED.update(i=i, f=f, j=np.tanh(j), o=o, c=c)
    return [o * np.tanh(c), c]


def mogrified(x, h, weights, masks, rounds, rank):
    """`mogrifier_i` of `masks` is between the factors of round i, or before its matrix."""
    xs, hs = {-1: x * masks.get("input", 1)}, {0: h * masks.get("recurrent", 1)}  # by superscript
    for i in range(1, rounds + 1):
        odd = i % 2 == 1
        reads = hs[i - 1] if odd else xs[i - 1]
        gated = xs[i - 2] if odd else hs[i - 2]
        mask = masks.get(f"mogrifier_{i}")
        bias = weights[f"mogrifier_{i}_bias"]
        if rank:  # the matrix is left @ diag(mask) @ right, another one for each row
            left, right = weights[f"mogrifier_{i}_left"], weights[f"mogrifier_{i}_right"]
            mask = np.ones((len(x), rank)) if mask is None else mask
            z = np.einsum("bi,ik,bk,ko->bo", reads, left, mask, right) + bias
        else:
            reads = reads if mask is None else reads * mask
            z = reads @ weights[f"mogrifier_{i}_kernel"] + bias
        (xs if odd else hs)[i] = 2 * sigmoid(z) * gated
    return xs[max(xs)], hs[max(hs)]


def mogrifier_lstm_step(x, states, weights, masks, *, rounds, rank, capped_input_gate=False):
    x, h = mogrified(x, states[0], weights, masks, rounds, rank)
    NOTED.update(modulated_x=x, modulated_h=h)
    return lstm_step(x, [h, states[1]], weights, {}, capped_input_gate=capped_input_gate)


def rewired_lstm_step(x, states, weights, masks, *, rounds, rank, capped_input_gate):
    """The state mask is that of the h before the rounds, and of the new c in the output gate."""
    x, h = mogrified(x, states[0], weights, masks, rounds, rank)
    W_i, W_j = np.split(weights["kernel"], 2, axis=1)
    U_i, U_j = np.split(weights["recurrent_kernel"], 2, axis=1)
    b_i, b_f, b_j, b_o = np.split(weights.get("bias", np.zeros(4 * h.shape[1])), 4)
    i = sigmoid(x @ W_i + h @ U_i + b_i)
    j = np.tanh(x @ W_j + h @ U_j + b_j)
    f = sigmoid((i * j) @ weights["update_kernel"] + h @ weights["forget_kernel"] + b_f)
    c = f * states[1] + (np.minimum(i, 1 - f) if capped_input_gate else i) * j
    o = sigmoid((c * masks.get("recurrent", 1)) @ weights["output_kernel"] + b_o)
    i = np.minimum(i, 1 - f) if capped_input_gate else i
    NOTED.update(i=i, f=f, j=j, o=o, c=c, modulated_x=x, modulated_h=h)
    return [o * np.tanh(c), c]


def recurrent_highway_step(x, states, weights, masks, *, depth, gate_reads):
    """The weights hold the gates side by side: h, t; no bias is a bias of zero."""
    [s] = states
    W = per_gate(x, weights, "kernel", "ht", masks.get("input"))
    for k in range(1, depth + 1):
        R = per_gate(s, weights, f"recurrent_kernel_{k}", "ht", masks.get("recurrent"))
        b = np.split(weights.get(f"bias_{k}", np.zeros(2 * s.shape[1])), 2)
        h, t = (part + (W[gate] if k == 1 else 0) for gate, part in zip("ht", b))
        h = np.tanh(h + R["h"])
        if gate_reads == "state":
            t = t + R["t"]
        else:
            t = t + h @ np.split(weights[f"recurrent_kernel_{k}"], 2, axis=1)[1]
        s = h * sigmoid(t) + s * (1 - sigmoid(t))
        NOTED.update({f"h_{k}": h, f"t_{k}": sigmoid(t), f"s_{k}": s})
    return [s]


def depth_gated_lstm_step(
    x, states, weights, masks, *, peepholes, coupled, depth_gated, first_gate, stabilised, affine
):
    """Return the new `[h_1, c_1, h_2, c_2, ...]`; the gates are side by side: i, f, j, o, d."""
    below, new_states = None, []
    first_gate = first_gate if depth_gated else "none"
    for k in range(1, len(states) // 2 + 1):
        h, c = states[2 * k - 2 : 2 * k]
        units = h.shape[1]
        layer = {n.removesuffix(f"_{k}"): w for n, w in weights.items() if n.endswith(f"_{k}")}
        on_h = "ijo" if coupled else "ifjo"
        on_x = on_h + "d" * (depth_gated if k > 1 else first_gate != "none")
        W = dict(zip(on_x, np.split(layer["kernel"], len(on_x), axis=1)))
        U = per_gate(h, layer, "recurrent_kernel", on_h, masks.get(f"recurrent_{k}"))
        b = dict(zip(on_x, np.split(layer.get("bias", np.zeros(len(on_x) * units)), len(on_x))))
        if k == 1:
            m = gate_masks(masks, "input", on_x + ("M" if first_gate == "own" else ""), x)
            if first_gate == "own":
                below = (x * m["M"]) @ weights["memory_kernel"]
            elif first_gate == "shared":
                below = (x * m["d"]) @ W["d"]
        else:
            m = dict.fromkeys(on_x, 1)
            x = new_states[-2] * masks.get(f"internal_{k - 1}", 1)
            if affine:
                x = x @ layer["affine_kernel"] + layer.get("affine_bias", 0)
        if stabilised:
            x = np.exp(layer["stabiliser"]) * x
        z = {gate: (x * m[gate]) @ W[gate] + b[gate] + U.get(gate, 0) for gate in on_x}

        def peep(gate, memory, layer=layer):
            P = layer[f"peephole_{gate}"]
            return memory @ (P if peepholes == "full" else np.diag(P))

        i = sigmoid(z["i"] + peep("input", c))
        f = 1 - i if coupled else sigmoid(z["f"] + peep("forget", c))
        memory = f * c + i * np.tanh(z["j"])
        if "d" in on_x:
            lower = 0
            if k > 1 and below.shape[1] == units:
                lower = layer["depth_lower"] * below
            elif k > 1:  # matrices, where the sizes differ
                lower = below @ layer["depth_lower"]
                below = lower if first_gate == "shared" else below @ layer["memory_kernel"]
            d = sigmoid(z["d"] + layer["depth_previous"] * c + lower)
            memory = memory + d * below
            NOTED[f"d_{k}"] = d
        o = sigmoid(z["o"] + peep("output", memory))
        noted = {
            "i": i,
            "f": f,
            "j": np.tanh(z["j"]),
            "o": o,
            "c": memory,
            "h": o * np.tanh(memory),
        }
        NOTED.update({f"{name}_{k}": value for name, value in noted.items()})
        new_states += [o * np.tanh(memory), memory]
        below = memory
    return new_states


def elman_step(x, states, weights, masks):
    [h] = states
    W = per_gate(x, weights, "kernel", "h", masks.get("input"))
    U = per_gate(h, weights, "recurrent_kernel", "h", masks.get("recurrent"))
    return [np.tanh(W["h"] + U["h"] + weights.get("bias", 0))]


def two_biases(weights, gates, units):
    """Return the rows of a GRU's bias, each by gate."""
    both = weights.get("bias", np.zeros((2, len(gates) * units)))
    return [dict(zip(gates, np.split(row, len(gates)))) for row in both]


def gru_step(x, states, weights, masks):
    [h] = states
    W = per_gate(x, weights, "kernel", "zrn", masks.get("input"))
    U = per_gate(h, weights, "recurrent_kernel", "zrn", masks.get("recurrent"))
    b, b_recurrent = two_biases(weights, "zrn", h.shape[1])
    r = sigmoid(W["r"] + b["r"] + U["r"] + b_recurrent["r"])
    z = sigmoid(W["z"] + b["z"] + U["z"] + b_recurrent["z"])
    n = np.tanh(W["n"] + b["n"] + r * (U["n"] + b_recurrent["n"]))
    NOTED.update(z=z, r=r, n=n)
    return [n + z * (h - n)]


def lstm_per_gate_step(x, states, weights, masks, **options):
    """The LSTM whose weights come apart, `kernel_i` and so on."""
    names = {name.rsplit("_", 1)[0] for name in weights}
    parts = {name: [weights[f"{name}_{gate}"] for gate in "ifjo"] for name in names}
    fused = {name: np.concatenate(matrices, axis=-1) for name, matrices in parts.items()}
    return lstm_step(x, states, fused, masks, **options)


def layer_norm(v, epsilon):
    deviation = np.sqrt(v.var(axis=-1, keepdims=True) + epsilon)
    return (v - v.mean(axis=-1, keepdims=True)) / deviation


def normalise(weights, epsilon, name, v, part=slice(None)):
    """Return LN(v) with the gain and shift `name`, if there are any, cut to `part`."""
    gain, shift = (weights.get(f"{name}_{kind}") for kind in ("gain", "shift"))
    v = layer_norm(v, epsilon)
    return v if gain is None else v * gain[part] + shift[part]


def layernorm_lstm_step(x, states, weights, masks, *, placement, epsilon):
    h, c = states
    normalised = functools.partial(normalise, weights, epsilon)
    units = h.shape[1]
    W = per_gate(x, weights, "kernel", "ifjo", masks.get("input"))
    U = per_gate(h, weights, "recurrent_kernel", "ifjo", masks.get("recurrent"))
    a, u = (np.concatenate(list(products.values()), axis=1) for products in (W, U))
    b = weights.get("bias", np.zeros(4 * units))
    if placement == "separate":
        sums = normalised("input", a) + normalised("recurrent", u) + b
    elif placement == "joint":
        sums = normalised("gates", a + u + b)
    elif placement == "gates":
        parts = [slice(k * units, (k + 1) * units) for k in range(4)]
        normal = [normalised("gates", a[:, part] + u[:, part], part) for part in parts]
        sums = np.concatenate(normal, axis=1) + b
    else:
        sums = a + u + b
    i, f, j, o = np.split(sums, 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(j)
    NOTED.update(i=sigmoid(i), f=sigmoid(f), j=np.tanh(j), o=sigmoid(o), c=c)
    shown = c if placement in ("output", "none") else normalised("cell", c)
    h = sigmoid(o) * np.tanh(shown)
    return [normalised("output", h) if placement == "output" else h, c]


def layernorm_gru_step(x, states, weights, masks, *, placement, epsilon):
    if placement in ("output", "none"):
        [h] = gru_step(x, states, weights, masks)
        if placement == "output":
            h = layer_norm(h, epsilon) * weights.get("output_gain", 1)
            h = h + weights.get("output_shift", 0)
        return [h]
    [h] = states
    units = h.shape[1]

    normalised = functools.partial(normalise, weights, epsilon)
    W = per_gate(x, weights, "kernel", "zrn", masks.get("input"))
    U = per_gate(h, weights, "recurrent_kernel", "zrn", masks.get("recurrent"))
    b, b_recurrent = two_biases(weights, "zrn", units)
    W_zr, U_zr = (np.concatenate([products["z"], products["r"]], axis=1) for products in (W, U))
    b_zr = np.concatenate([b[gate] + b_recurrent[gate] for gate in "zr"])
    if placement == "separate":
        gates = normalised("input_gates", W_zr) + normalised("recurrent_gates", U_zr) + b_zr
        z, r = np.split(sigmoid(gates), 2, axis=1)
        reset = r * (normalised("recurrent_candidate", U["n"]) + b_recurrent["n"])
        n = np.tanh(normalised("input_candidate", W["n"]) + b["n"] + reset)
    elif placement == "joint":
        z, r = np.split(sigmoid(normalised("gates", W_zr + U_zr + b_zr)), 2, axis=1)
        n = np.tanh(normalised("candidate", W["n"] + b["n"] + r * (U["n"] + b_recurrent["n"])))
    else:
        halves = slice(0, units), slice(units, 2 * units)
        z, r = (
            sigmoid(normalised("gates", W[gate] + U[gate], half) + b[gate] + b_recurrent[gate])
            for gate, half in zip("zr", halves)
        )
        n = np.tanh(normalised("candidate", W["n"] + r * (U["n"] + b_recurrent["n"])) + b["n"])
    NOTED.update(z=z, r=r, n=n)
    return [(1 - z) * n + z * h]


def over_time(step, sequence, states, weights, masks=None):
    """Return `[outputs, *last_states]` of `step(x, states, weights, masks)`.

    The outputs are `(batch, time, units)`, `masks` those of all steps, `(batch, time, size)`.
    """
    outputs = []
    for t in range(sequence.shape[1]):
        step_masks = {name: mask[:, t] for name, mask in (masks or {}).items()}
        states = step(sequence[:, t], states, weights, step_masks)
        outputs.append(output_of(states))
    return [np.stack(outputs, axis=1), *states]


def output_of(states):
    """Return the output of a step: the only state, or the h of the last pair h, c."""
    return states[-2:][0]


# --- attention


def attend(scores, memory, mask):
    """Return the mean of `memory` weighted by the softmax of `scores` where `mask` is True.

    Each row is computed alone, on its real positions only.
    """
    rows = []
    for row_scores, vectors, real in zip(scores, memory, mask):
        weights = softmax(row_scores[real]) if real.any() else np.zeros(0)
        rows.append(weights @ vectors[real])
    return np.stack(rows)


def stack_step(x, states, weights, steps):
    """Return the outputs and the new states of LSTM-like cells, each on the one below."""
    outputs, new_states = [], []
    for number, (step, size) in enumerate(steps, start=1):
        own = {k.split("/")[1]: w for k, w in weights.items() if k.startswith(f"cell_{number}/")}
        after = step(x, states[:size], own, {})
        states = states[size:]
        x = output_of(after)
        outputs.append(x)
        new_states += after
    return outputs, new_states


def general_attention_step(x, states, weights, steps, memory, keys, mask):
    """Return the output and the states of Luong's attention with input feeding."""
    outputs, new_states = stack_step(np.hstack([states[0], x]), states[1:], weights, steps)
    scores = np.stack([keys[b] @ outputs[-1][b] for b in range(len(keys))])
    context = attend(scores, memory, mask)
    h = np.tanh(np.hstack([outputs[-1], context]) @ weights["attention_kernel"])
    return np.hstack([*outputs, h]), [h, *new_states]


def additive_attention_step(x, states, weights, steps, memory, keys, mask):
    """Return the output and the states of Bahdanau's attention before the recurrence."""
    query = output_of(states[-steps[-1][1] :]) @ weights["alignment_kernel"]
    scores = np.tanh(query[:, None] + keys) @ weights["alignment_vector"]
    context = attend(scores, memory, mask)
    outputs, new_states = stack_step(np.hstack([x, context]), states, weights, steps)
    return np.hstack([*outputs, context]), new_states


# --- connection, output, model


def dual(embedded, hidden, weights, *, use_input=True):
    """Return d = relu(W^de e + W^dh h + b^d)."""
    z = hidden @ weights["hidden_kernel"] + weights["bias"]
    if use_input:
        z = z + embedded @ weights["kernel"]
    return np.maximum(z, 0)


def output(inputs, weights, *, embeddings=None):
    """Return the logits; tied to `embeddings` `(vocabulary, units)` if given."""
    logits = inputs @ (weights["kernel"] if embeddings is None else embeddings.T)
    return logits + weights.get("bias", 0)


def gates(features, weights):
    """Return sigmoid(W_g f + b_g)."""
    return sigmoid(features @ weights["kernel"] + weights["bias"])


def mixture(hidden, weights, experts, activation="tanh"):
    """Return P, `(..., words)`, of a mixture of softmaxes, by the `experts` of each of `hidden`.

    Yang et al., 2018, and Takase et al., 2018. The last of `hidden` decides the priors.
    """
    prior = softmax(hidden[-1] @ weights["prior_kernel"])
    E = weights["embeddings"] if "embeddings" in weights else weights["kernel"].T
    latents = []
    for n, (h, count) in enumerate(zip(hidden, experts)):
        if count:
            k = h @ weights[f"latent_kernel_{n}"]
            if activation == "tanh":
                k = np.tanh(k + weights[f"latent_bias_{n}"])
            latents += np.split(k, count, axis=-1)
    p = [softmax(k @ E.T + weights.get("bias", 0.0)) for k in latents]
    return sum(prior[..., [j]] * p_j for j, p_j in enumerate(p))


def language_model(
    tokens, weights, states=None, *, layers=1, rounds=0, rank=0, connection="plain", matrix=None
):
    """Return the logits, the states `[h, c, h, c, ...]`, and each layer's outputs.

    The keys of `weights` are "embedding/embeddings", "cell_1/kernel", "connection/bias"
    and so on. `connection` is "plain", "dual" or "dual_without_input". With `matrix` M, each h
    is replaced by h + h M.
    """

    def of(layer):
        return {k.split("/")[1]: w for k, w in weights.items() if k.split("/")[0] == layer}

    embeddings = weights["embedding/embeddings"]
    embedded = x = embeddings[tokens]
    new_states, activations = [], []
    for k in range(1, layers + 1):
        cell = of(f"cell_{k}")
        if states is None:
            h = c = np.zeros((len(tokens), len(cell["recurrent_kernel"])))
        else:
            h, c = states[2 * k - 2 : 2 * k]

        def step(*arguments):
            h, c = mogrifier_lstm_step(*arguments, rounds=rounds, rank=rank)
            return [h if matrix is None else h + h @ matrix, c]

        x, h, c = over_time(step, x, [h, c], cell)
        new_states += [h, c]
        activations.append(x)
    if connection != "plain":
        x = dual(embedded, x, of("connection"), use_input=connection == "dual")
    return output(x, {}, embeddings=embeddings), new_states, activations


def differences(function, arrays, step=1e-5):
    """Return the derivatives of the scalar `function(*arrays)` by central differences."""
    arrays = [np.array(array, "float64") for array in arrays]
    derivatives = []
    for array in arrays:
        derivative = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            middle = array[index]
            array[index] = middle + step
            above = function(*arrays)
            array[index] = middle - step
            below = function(*arrays)
            array[index] = middle
            derivative[index] = (above - below) / (2 * step)
        derivatives.append(derivative)
    return derivatives


def drawing(logits, temperature, top_k, top_p, excluded=()):
    """Return the probability of each word by the manual of `generate`."""
    p = softmax(logits / temperature)
    p[[*excluded]] = 0
    order = np.argsort(-p, kind="stable")
    p[order[top_k or len(p) :]] = 0
    p = p / p.sum()
    if top_p is not None:
        p[order[1 + np.searchsorted(np.cumsum(p[order]), top_p) :]] = 0
    return p / p.sum()


def neural_cache(tokens, hidden, logits, *, size, weight, scale, start):
    """Return log p of whole texts `(batch, time)`, a word and a step at a time."""
    p = softmax(logits.astype("float64"))
    for b, t in np.ndindex(tokens.shape):
        pairs = [(hidden[b, j], tokens[b, j + 1]) for j in range(max(0, t - size), t)]
        if t < 1 or (start == "when_full" and t <= size):
            continue
        powers = [np.exp(scale * (h @ hidden[b, t])) for h, _ in pairs]
        for w in range(p.shape[-1]):
            share = sum(power for power, (_, x) in zip(powers, pairs) if x == w) / sum(powers)
            p[b, t, w] = weight * share + (1 - weight) * p[b, t, w]
    return np.log(p)


def ngram_cache(tokens, logits, *, size, weights):
    """Return log p of whole texts `(batch, time)`, a word and a step at a time."""
    p = softmax(logits.astype("float64"))
    for b, t in np.ndindex(tokens.shape):
        cache = tokens[b, : t + 1][-size:].tolist()
        for length, weight in enumerate(weights):
            context = cache[len(cache) - length :]
            if len(context) < length:
                continue
            ends = range(length, len(cache))
            following = [cache[end] for end in ends if cache[end - length : end] == context]
            n, d = len(following), len(set(following))
            for w in range(p.shape[-1]) if n else ():
                share = weight * n / (n + 2 * d)
                p[b, t, w] = (1 - share) * p[b, t, w] + share * following.count(w) / n
    return np.log(p)
