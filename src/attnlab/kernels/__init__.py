"""Fast paths, each beside its readable reference, the `pattern` of the mechanisms that use it.

Plain torch first: gathered blocks (blocks.py), running sums (prefix.py). Where it pays, compiled: a kernel is one file
NAME.cpp that needs nothing but a C++ compiler, functions of plain C linkage called with pointers through ctypes, and among
them `int probe()`, which solves a small problem and answers 0 when the numbers are right; build.py does the rest, and a form
in plain torch takes over where it cannot be had. Nothing here knows of mechanisms.
"""
