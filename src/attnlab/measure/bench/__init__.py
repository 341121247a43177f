"""Speed and memory of mechanisms: forward and backward beside torch's fused attention, from short texts to long ones.

    contestants.py  what is timed: the attention itself on given queries, keys and values, or a whole module
    memory.py       peak memory, by the system's own account, in a child process
    measure.py      rounds over all contestants, and who is left out of a length, and why
    reach.py        the longest text within a budget of memory or time
    results.py      ratios, crossover lengths, tables. Plain numbers in and out
    pictures.py     time and memory over the length

It takes whatever the registry holds and must not know a mechanism by name, other than `dot`, the standard.
"""
