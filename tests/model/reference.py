"""The dual-path language model in float64, one token, one head and one step at a time.

Written from the equations of the paper (section 3; where the text is silent,
docs/paper.md), slow and obvious on purpose, and without a line shared with
``dualpath_cli.model``. A stream is a list with one vector per token; weights are looked
up under their names in the model's ``state_dict``. Everything is elementary torch
arithmetic, so autograd gives the reference gradients too. At the end: what the tests
need besides, large random weights and errors; `layout.py` has their names and shapes.
"""

import math

import torch
from torch import Tensor

from dualpath_cli.spec.config import ModelConfig
from tests.model.layout import of_layer, parameter_shapes, stretches

Weights = dict[str, Tensor]
Stream = list[Tensor]
Heads = list[list[Tensor]]
"""A vector (N,) for each token and head."""


def logits(
    weights: Weights,
    config: ModelConfig,
    tokens: Tensor,
    core_loops: int | None = None,
) -> Tensor:
    """Logits (B, T, V) of token numbers (B, T), each sequence by itself.

    `core_loops` forces another R than the trained one (Intervention.core_loops).
    """
    return torch.stack(
        [
            torch.stack(sequence_logits(weights, config, sequence, core_loops))
            for sequence in tokens.tolist()
        ]
    )


def sequence_logits(
    weights: Weights,
    config: ModelConfig,
    tokens: list[int],
    core_loops: int | None = None,
) -> list[Tensor]:
    """Embedding, prelude, core, coda, final norm, head: logits (V,) of every token of
    one sequence."""
    prelude, core, coda = stretches(config)
    stream = [weights["embed.weight"][token] for token in tokens]
    stream = layers(weights, config, prelude, stream)
    if core:
        states = core_states(weights, config, stream, core_loops)
        stream = core_output(weights, config, states)
    stream = layers(weights, config, coda, stream)
    return [say(weights, config, x) for x in stream]


def say(weights: Weights, config: ModelConfig, x: Tensor) -> Tensor:
    """Final norm and head: logits (V,) of one token."""
    head = weights["embed.weight"] if config.tie_embeddings else weights["head.weight"]
    return head @ rms_norm(x, weights["norm.weight"], config.norm_eps)


def layers(
    weights: Weights, config: ModelConfig, numbers: list[int], x: Stream, r: int = 1
) -> Stream:
    """Some layers, one after the other, in repetition r."""
    for layer in numbers:
        own = of_layer(config, layer)
        x = block(weights_of(weights, config, layer, r), own, own.block, x)
    return x


def core_states(
    weights: Weights, config: ModelConfig, e: Stream, core_loops: int | None = None
) -> list[Stream]:
    """The streams behind the repetitions r = 1..R of the core, the input of which is
    e."""
    _, core, _ = stretches(config)
    states = []
    x = e
    R = core_loops or config.core_loops
    for r in range(1, R + 1):
        if r > 1:
            x = [
                injected(weights, config, x_t, e_t)
                for x_t, e_t in zip(x, e, strict=True)
            ]
        x = layers(weights, config, core, x, r)
        x = after_step(x, r, R)
        states.append(x)
    return states


def after_step(h: Stream, k: int, K: int) -> Stream:
    """The states behind step k of K, or repetition; a test may make them constants."""
    return h


def injected(weights: Weights, config: ModelConfig, x: Tensor, e: Tensor) -> Tensor:
    """What a repetition after the first begins with: x, ``x + e`` or ``x + W [x, e]``,
    for one token."""
    if config.injection == "none":
        return x
    if config.injection == "add":
        return x + e
    return x + weights["core.injection.weight"] @ torch.cat([x, e])


def core_output(weights: Weights, config: ModelConfig, states: list[Stream]) -> Stream:
    """The last repetition's state, or the routed mixture of all (Eq. deep-mix)."""
    if config.core_combination == "final":
        return states[-1]
    router = below(weights, "core")
    output = []
    for h in zip(*states, strict=True):
        shares = routed(router, config, list(h), config.core_loops)
        output.append(sum(share * h_r for share, h_r in zip(shares, h, strict=True)))
    return output


def weights_of(weights: Weights, config: ModelConfig, layer: int, r: int) -> Weights:
    """The weights of a layer in repetition r: its gains are those of this repetition.

    Of more repetitions than were trained, all further ones have the last gains.
    """
    own = below(weights, f"blocks.{layer}")
    _, core, _ = stretches(config)
    R = config.core_loops if layer in core else 1
    place = min(r, R) - 1
    if "deep.gains" in own:
        own["deep.gains"] = own["deep.gains"].chunk(R)[place]
    if "wide.gain" in own:
        own["wide.gain"] = own["wide.gain"].view(R)[place]
    return own


def block(weights: Weights, config: ModelConfig, kind: str, x: Stream) -> Stream:
    """One layer: ``y = g_d h_deep + g_w h_wide`` (Eq. two-gates), or one of its paths
    alone."""
    if kind == "loop":
        return deep_path(below(weights, "deep"), config, x)
    if kind == "wide":
        return wide_path(below(weights, "wide"), config, x)
    h_deep = deep_path(below(weights, "deep"), config, x)
    h_wide = wide_path(below(weights, "wide"), config, x)
    y = []
    for t in range(len(x)):
        g_d, g_w = gates(below(weights, "gate"), config, x[t])
        y.append(g_d * h_deep[t] + g_w * h_wide[t])
    return y


def gates(
    weights: Weights, config: ModelConfig, x: Tensor
) -> tuple[Tensor | float, Tensor | float]:
    """``(g_d, g_w)`` of one token, from ``(l_d, l_w) = x W_g + b_g`` (above Eq.
    two-gates)."""
    if config.gate == "fixed":
        return 0.5, 0.5
    W_g, b_g = weights["proj.weight"], weights["proj.bias"]
    l_d = W_g[0] @ x + b_g[0]
    if config.gate == "convex":
        return sigmoid(l_d), 1 - sigmoid(l_d)
    l_w = W_g[1] @ x + b_g[1]
    if config.gate == "softmax":
        total = torch.exp(l_d) + torch.exp(l_w)
        return torch.exp(l_d) / total, torch.exp(l_w) / total
    assert config.gate == "two_gates", f"no equation for gate '{config.gate}'"
    return sigmoid(l_d), sigmoid(l_w)


def deep_path(
    weights: Weights, config: ModelConfig, x: Stream, loops: int | None = None
) -> Stream:
    """``h_deep = sum_{k<K} pi_k q_k h^(k) + pi_K h^(K)`` of every token (Eqs. deep,
    deep-mix).

    `loops` forces another K than the trained one (Intervention.loops).
    """
    deep = []
    for states in zip(*deep_states(weights, config, x, loops), strict=True):
        mixture = torch.zeros_like(states[0])
        for weight, h in zip(
            step_weights(weights, config, list(states)), states, strict=True
        ):
            mixture = mixture + weight * h
        deep.append(mixture)
    return deep


def deep_states(
    weights: Weights, config: ModelConfig, x: Stream, loops: int | None = None
) -> list[Stream]:
    """``h^(k) = Phi_deep(h^(k-1); softplus(alpha^(k)))``, h^(0) = x: the streams of k =
    1..K.

    Of more loops than were trained, all further ones have the last gain, and the last
    gamma, beta and sublayer where steps have their own.
    """
    states = []
    h = x
    K = len(weights["gains"])
    seen = None
    if config.step_kv == "first":
        first = step_sublayer(weights, 1)
        normed = attention_input(first, config, x, step_film(weights, config, 1))
        seen = keys_and_values(below(first, "attn"), config, normed)
    for k in range(1, (loops or K) + 1):
        s = softplus(weights["gains"][k - 1] if k <= K else weights["gains"][-1])
        film = step_film(weights, config, k)
        h = sublayer(step_sublayer(weights, k), config, h, s, film, seen)
        h = after_step(h, k, loops or K)
        states.append(h)
    return states


def step_sublayer(weights: Weights, k: int) -> Weights:
    """The sublayer of step k: the shared one, or the step's own."""
    shared = below(weights, "sublayer")
    return shared or below(weights, f"sublayers.{min(k, len(weights['gains'])) - 1}")


def step_film(weights: Weights, config: ModelConfig, k: int) -> Tensor | None:
    """gamma and beta of step k, (2, 2, D): of the attention's input, of the
    feed-forward's."""
    if config.step_conditioning == "none":
        return None
    return weights["film"][k - 1] if k <= len(weights["film"]) else weights["film"][-1]


def filmed(film: Tensor | None, norm: int, x: Tensor) -> Tensor:
    """``x + gamma * x + beta`` by the first or the second pair; x without film."""
    return x if film is None else x + film[norm][0] * x + film[norm][1]


def step_weights(
    weights: Weights, config: ModelConfig, h: list[Tensor]
) -> list[Tensor]:
    """``pi_k q_k`` for k < K and ``pi_K``, where ``pi_k = prod_{j<k} (1 - q_j)`` (Eq.
    deep-mix).

    `h` are the K states of one token. Variants: all weight on the last, or the same on
    each.
    """
    K = len(h)
    one = torch.ones((), dtype=h[0].dtype)
    if config.combination == "final":
        return [0 * one] * (K - 1) + [one]
    if config.combination == "mean":
        return [one / K] * K
    return routed(weights, config, h, len(weights["gains"]))


def routed(
    weights: Weights, config: ModelConfig, h: list[Tensor], trained: int
) -> list[Tensor]:
    """``pi_k q_k`` for k < K and ``pi_K`` (Eq. deep-mix), of the K states of one
    token."""
    K = len(h)
    # q_K weighs nothing
    q = [halting(weights, config, h[k - 1], k, K, trained) for k in range(1, K)]
    out = []
    for k in range(1, K + 1):
        pi_k = torch.ones((), dtype=h[0].dtype)
        for j in range(1, k):
            pi_k = pi_k * (1 - q[j - 1])
        out.append(pi_k * q[k - 1] if k < K else pi_k)
    return out


def halting(
    weights: Weights, config: ModelConfig, h: Tensor, k: int, K: int, trained: int
) -> Tensor:
    """``q_k = sigmoid(w . [h^(k), index of step k] + b)`` (above Eq. deep-mix).

    Of fewer loops than were trained the index runs to 1, of more it stays there.
    """
    numerator = k - 1 if config.step_index == "zero_based" else k
    index = min(1.0, numerator / max(1, min(K, trained) - 1))
    features = torch.cat([h, torch.tensor([index], dtype=h.dtype)])
    return sigmoid(weights["router.weight"][0] @ features + weights["router.bias"][0])


def wide_path(weights: Weights, config: ModelConfig, x: Stream) -> Stream:
    """``h_wide = Phi_wide(x; softplus(beta))`` (Eq. wide)."""
    return sublayer(
        below(weights, "sublayer"), config, x, softplus(weights["gain"].sum())
    )


def sublayer(
    weights: Weights,
    config: ModelConfig,
    x: Stream,
    s: Tensor,
    film: Tensor | None = None,
    seen: tuple[Heads, Heads] | None = None,
) -> Stream:
    """``u = x + s Attn(RMSNorm(x))``, ``Phi(x; s) = u + s FFN(RMSNorm(u))`` (Eq.
    sublayer).

    `seen` are keys and values in place of its own; without a feed-forward Phi is u.
    """
    normed = attention_input(weights, config, x, film)
    attended = attention(below(weights, "attn"), config, normed, seen)
    out = []
    for x_t, a_t in zip(x, attended, strict=True):
        u_t = x_t + s * a_t
        out.append(with_feed_forward(weights, config, u_t, s, film))
    return out


def attention_input(
    weights: Weights, config: ModelConfig, x: Stream, film: Tensor | None = None
) -> Stream:
    """``RMSNorm(x)`` of every token, scaled and shifted."""
    norm = weights["attn_norm.weight"]
    return [filmed(film, 0, rms_norm(x_t, norm, config.norm_eps)) for x_t in x]


def with_feed_forward(
    weights: Weights, config: ModelConfig, u: Tensor, s: Tensor, film: Tensor | None
) -> Tensor:
    """``u + s FFN(RMSNorm(u))`` of one token, or u where there is no feed-forward."""
    if "ffn_norm.weight" not in weights:
        return u
    normed = filmed(film, 1, rms_norm(u, weights["ffn_norm.weight"], config.norm_eps))
    return u + s * feed_forward(below(weights, "ffn"), config, normed)


def feed_forward(weights: Weights, config: ModelConfig, x: Tensor) -> Tensor:
    """One SwiGLU, or the mixture of the experts that the token takes."""
    if "router.weight" not in weights:
        return ffn(weights, x)
    shares = expert_shares(weights, config.top_k, x)
    return sum(share * ffn(expert(weights, i), x) for i, share in shares.items())


def expert_shares(weights: Weights, k: int, x: Tensor) -> dict[int, Tensor]:
    """The k experts that a token takes, with their weights: ``softmax`` over these
    alone.

    They have the largest score, ``softmax(W_r x)`` over all experts, plus bias.
    """
    logits = weights["router.weight"] @ x
    ranks = softmax(logits)
    if "balance_bias" in weights:
        ranks = ranks + weights["balance_bias"]
    best = sorted(range(len(logits)), key=lambda i: -ranks[i].item())[:k]
    total = sum(torch.exp(logits[i]) for i in best)
    return {i: torch.exp(logits[i]) / total for i in best}


def expert(weights: Weights, i: int) -> Weights:
    """The matrices of expert i, which lie below each other."""
    n = len(weights["router.weight"])
    names = [f"{part}_proj.weight" for part in ("gate", "up", "down")]
    return {name: weights[name].chunk(n)[i] for name in names}


def ffn(weights: Weights, x: Tensor) -> Tensor:
    """SwiGLU without biases: ``W_2 (silu(W x) * V x)``."""
    gate = weights["gate_proj.weight"] @ x
    up = weights["up_proj.weight"] @ x
    return weights["down_proj.weight"] @ (gate * sigmoid(gate) * up)


def attention(
    weights: Weights,
    config: ModelConfig,
    x: Stream,
    seen: tuple[Heads, Heads] | None = None,
) -> Stream:
    """Causal attention without biases: each token looks at itself and those before it.

    Query head j reads key and value head ``j // (H / Hkv)``; scores are ``q . k /
    sqrt(N)``. `seen` are keys and values in place of those of x.
    """
    H = config.n_heads
    N = config.d_model // H
    group = H // config.n_kv_heads
    keys, values = seen or keys_and_values(weights, config, x)
    out = []
    for t in range(len(x)):
        queries = (weights["q_proj.weight"] @ x[t]).split(N)
        heads = []
        for j in range(H):
            q = placed(weights, config, "q_norm.weight", queries[j], t)
            shared = j // group
            scores = [q @ keys[past][shared] / math.sqrt(N) for past in range(t + 1)]
            shares = softmax(torch.stack(scores))
            heads.append(
                sum(shares[past] * values[past][shared] for past in range(t + 1))
            )
        out.append(weights["o_proj.weight"] @ torch.cat(heads))
    return out


def keys_and_values(
    weights: Weights, config: ModelConfig, x: Stream
) -> tuple[Heads, Heads]:
    """Keys, at their positions, and values of every token and head."""
    N = config.d_model // config.n_heads
    keys, values = [], []
    for t in range(len(x)):
        k = (weights["k_proj.weight"] @ x[t]).split(N)
        keys.append([placed(weights, config, "k_norm.weight", head, t) for head in k])
        values.append(list((weights["v_proj.weight"] @ x[t]).split(N)))
    return keys, values


def placed(
    weights: Weights, config: ModelConfig, norm: str, x: Tensor, position: int
) -> Tensor:
    """A query or key of one head, turned by its position and normalised, in the order
    chosen."""
    if config.qk_norm == "none":
        return rope(config, x, position)
    if config.qk_norm == "before_rope":
        return rope(config, rms_norm(x, weights[norm], config.norm_eps), position)
    return rms_norm(rope(config, x, position), weights[norm], config.norm_eps)


def rope(config: ModelConfig, x: Tensor, position: int) -> Tensor:
    """Channels i and i + N/2 turned by ``position * base^(-2i/N)``, i < N/2
    (half-split)."""
    N = len(x)
    cos, sin = [], []
    for i in range(N // 2):
        frequency = config.rope_base ** (-2 * i / N)
        if config.rope_dtype == "bfloat16":
            frequency = torch.tensor(frequency, dtype=torch.float64).bfloat16().item()
        cos.append(math.cos(position * frequency))
        sin.append(math.sin(position * frequency))
    cos_, sin_ = torch.tensor(cos, dtype=x.dtype), torch.tensor(sin, dtype=x.dtype)
    first, second = x[: N // 2], x[N // 2 :]
    return torch.cat([cos_ * first - sin_ * second, sin_ * first + cos_ * second])


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)``."""
    return weight * x / torch.sqrt((x * x).sum() / len(x) + eps)


def softmax(x: Tensor) -> Tensor:
    """Exponentials over their sum."""
    return torch.exp(x) / torch.exp(x).sum()


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + e^-x)``."""
    return 1 / (1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """``log(1 + e^x)``."""
    return torch.log1p(torch.exp(x))


def below(weights: Weights, prefix: str) -> Weights:
    """The weights under a prefix, without it."""
    return {
        name.removeprefix(prefix + "."): weight
        for name, weight in weights.items()
        if name.startswith(prefix + ".")
    }


def random_weights(config: ModelConfig, seed: int) -> Weights:
    """Weights so large that every term of every equation shows in the logits."""
    rng = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in sorted(parameter_shapes(config).items()):
        noise = torch.randn(shape, generator=rng, dtype=torch.float64)
        if name == "embed.weight":
            weights[name] = 0.3 * noise
        elif "norm" in name:
            weights[name] = 1 + 0.4 * noise
        elif name.endswith("balance_bias"):  # as large as differences of scores
            weights[name] = 0.1 * noise
        elif len(shape) < 2:  # gains and biases
            weights[name] = noise
        else:
            weights[name] = 1.2 * noise / math.sqrt(shape[1])
    return weights


def load(model: torch.nn.Module, weights: Weights) -> torch.nn.Module:
    """Gives each parameter of a model the weight of its name, and returns the model."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name].view_as(parameter))
    return model


def random_tokens(
    config: ModelConfig, batch: int, length: int, seed: int = 0
) -> Tensor:
    """Token numbers (batch, length)."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (batch, length), generator=rng)


def difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference of two tensors, relative to the largest entry expected."""
    assert actual.shape == expected.shape
    return ((actual.double() - expected).abs().max() / expected.abs().max()).item()
