"""A function that takes too long to start."""

import time

time.sleep(600)
