"""Runs turns: submit, tool loop, end."""
