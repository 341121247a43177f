"""Inner loops that pay to be compiled, each beside a form in plain torch that takes over where they cannot be had.

A kernel is one file NAME.cpp that needs nothing but a C++ compiler: functions of plain C linkage, called with pointers
through ctypes, and among them `int probe()`, which solves a small problem and answers 0 when the numbers are right.
build.py does the rest. Nothing here knows of mechanisms.
"""
