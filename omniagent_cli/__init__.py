"""The command `omniagent`: makes projects of the installed version, and runs, tests, deploys and upgrades them.

It is never part of the layer.
"""
