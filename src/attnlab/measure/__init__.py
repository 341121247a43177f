"""What can be measured of a mechanism without training it.

audit           does it see the future, padding or other texts; is it the same each time
bench           speed and memory beside torch's fused attention
approximation   how far it is from exact attention
cards           what it declares, what can be counted, and its weights over a toy text: `attnlab mechanisms`
"""
