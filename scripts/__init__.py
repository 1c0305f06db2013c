"""Chores of the repository, not of the product."""
