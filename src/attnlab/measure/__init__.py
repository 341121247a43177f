"""What can be measured of a mechanism without training it.

audit           does it see the future, padding or other texts; is it the same each time
bench           speed and memory beside torch's fused attention
approximation   how far it is from exact attention
cards           what it says of itself and what can be counted: `attnlab mechanisms`, docs/mechanisms.md
patterns        its weights over a toy text
"""
