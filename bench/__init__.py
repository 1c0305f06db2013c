"""Compares the product with its alternatives, in one run, as ratios: `make bench`."""
