"""The gateway measured on a machine with a GPU, over plans that were built there: `tests/gpu/bench.sh`.

As everywhere in bench/, ratios are taken side by side in one run on one machine.
"""
