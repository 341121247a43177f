"""Speed and memory of mechanisms: forward and backward beside torch's fused attention, from short texts to long ones.

    contestants.py  what is timed: the attention itself on given queries, keys and values, or a whole module
    memory.py       peak memory, by the system's own account, in a child process
    timing.py       rounds over all contestants, and who is left out of a length, and why
    reach.py        the longest text within a budget of memory or time
    results.py      ratios, crossover lengths, the report. Plain numbers in and out

It takes whatever the registry holds and must not know a mechanism by name, other than `dot`, the standard.
"""
