"""Measurements behind the README's figures: `make bench`, or `python -m bench SCENARIO`.

Ratios are taken side by side in one run on one machine; absolute figures are that machine's. Needs `wrk`.
"""
