"""Fast paths, each tested against its readable reference, the `pattern` of the mechanisms that use it.

Some are plain torch: gathered blocks (blocks.py), running sums (prefix.py). Where it pays, they are compiled: a kernel is one
file NAME.cpp that needs only a C++ compiler, with C functions called with pointers through ctypes. One of them is
`int probe()`, which solves a small problem and returns 0 if the numbers are right. build.py does the rest; without a
compiler, a plain torch version is used. Knows nothing about mechanisms.
"""
