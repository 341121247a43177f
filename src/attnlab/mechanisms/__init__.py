"""What is compared: one file a mechanism, found by the registry.

The contract. A mechanism is an `nn.Module` built as `Mechanism(n_embd, n_head, block_size, *, options)`; it may also ask for
`causal`, `rotary`, `qk_norm`, `bias` and `dropout`, which the backbone fills in. Its output projection is called `out`.

    forward(x, padding=None, cache=None) -> tensor shaped like x
    new_cache() -> what it keeps while a text is generated, with `length`, the number of tokens seen, and, if it can,
                   `select(rows)`, a cache of these rows, for going on from one text in several ways

`padding` marks tokens that nobody may look at (True); a token that may look at nothing gets zeros, not NaN. With a cache, x
holds only the new tokens. `forward(x)` alone will do for a mechanism without padding and cache.

Most mechanisms are an `Attention` (heads.py): they write down their `pattern`, the readable reference, and a `fast` path
that must equal it. The docstring is the card: what it does, then "Costs:", "Cannot:", and the options under "Parameters".
"""
