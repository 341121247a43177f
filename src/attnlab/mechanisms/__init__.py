"""Attention mechanisms, one file each, found by the registry.

The contract. A mechanism is an `nn.Module` built as `Mechanism(n_embd, n_head, block_size, *, options)`; it may also ask for
`causal`, `rotary`, `rotation` (the layout, base and share of rotary positions), `qk_norm`, `bias` and `dropout`, which the
backbone supplies. Its output projection is called `out`. Texts may be longer than `block_size` if its `bounded` is False, as
it is by default in an `Attention`.

    forward(x, padding=None, cache=None) -> tensor shaped like x
    new_cache() -> a cache for generation, with `length`, the number of tokens seen, and optionally `select(rows)`, a cache
                   of these rows, to continue one text in several ways

`padding` marks tokens that must not be attended to (True); a token that sees nothing gets zeros, not NaN. With a cache, x
holds only the new tokens. `forward(x)` alone is enough for a mechanism without padding and cache.

Most mechanisms are an `Attention` (heads.py): they define their `pattern`, the readable reference, and a `fast` path that
must equal it. The docstring is the card: what it does, then "Costs:", "Cannot:", and the options under "Parameters".
"""
