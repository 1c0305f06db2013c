"""Agents, tools, model providers and the runner that ties them into a turn."""
