# What is built, for whatever machine builds it. Included at the root of the project by the Makefiles that SAM runs.
#
#   TARGET_PYTHON, TARGET_ARCH   the Python and the CPU on Lambda (3.13; aarch64 or x86_64)
#   TARGET_ARCH=here             this machine, to run the built functions without Lambda: for the same Python if it can
#                                be had here (local/interpreters.py), else for $(PYTHON)
#   UV                           uv, which installs the layer in a tenth of the time; where none is given, pip does
SHELL := /bin/sh
PYTHON ?= python3
TARGET_PYTHON ?= 3.13
TARGET_ARCH ?= aarch64
# Of the repository, or of the installed package.
INTERPRETERS := $(if $(wildcard local/interpreters.py),local.interpreters,omniagent_cli interpreter)
FIND_PYTHON = "$(PYTHON)" -m $(INTERPRETERS) $(TARGET_PYTHON)

# Lambda's Python 3.13 runs on Amazon Linux 2023, whose glibc is 2.34: every older manylinux will do.
# pip takes only the platforms it is told, so each one that wheels are published for is named, the newest first, which
# is the one that uv takes.
MANYLINUX := _2_34 _2_31 _2_28 _2_27 _2_26 _2_24 _2_17 2014

ifeq ($(TARGET_ARCH),here)
ifeq ($(shell uname -s),Linux)
HERE_PYTHON := $(shell $(FIND_PYTHON))
TARGET_ARCH := $(if $(HERE_PYTHON),$(shell uname -m),here)
endif
endif

ifeq ($(TARGET_ARCH),here)
TARGET_PYTHON := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
CROSS :=
UV_CROSS :=
else
CROSS := --implementation cp --python-version $(TARGET_PYTHON) $(MANYLINUX:%=--platform manylinux%_$(TARGET_ARCH))
UV_CROSS := $(if $(HERE_PYTHON),,--python-version $(TARGET_PYTHON) --python-platform $(TARGET_ARCH)-manylinux_2_34)
endif

INSTALL = "$(PYTHON)" -m pip install -q --disable-pip-version-check --no-input --no-compile --only-binary=:all: $(CROSS)

# What the lock file pins. A team's own requirements are left to pip, and so to what pip is configured with.
ifdef UV
# A copy: what is built shares no file with uv's cache.
INSTALL_PINNED = "$(UV)" pip install -q --python "$(or $(HERE_PYTHON),$(PYTHON))" --link-mode copy --only-binary=:all: \
	$(UV_CROSS) --no-deps --require-hashes
else
INSTALL_PINNED = $(INSTALL) --no-deps --require-hashes
endif

# $(call compile,FOLDER,PLACE ON LAMBDA). Bytecode is only of use to the same minor version of Python that wrote it.
# Unchecked: what is deployed never changes under its bytecode, so no source is looked at on import, and the times that
# a zip file gives the sources do not matter. The recorded paths are those on Lambda, not those of the builder.
compile = if python=$$($(FIND_PYTHON) 2>&1); then \
	python=$$(echo "$$python" | tail -n 1) && \
	"$$python" -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$(1)" -p $(2) "$(1)" && \
	echo "$(2) has bytecode of Python $(TARGET_PYTHON)."; \
	else echo "$(2) has no bytecode and starts more slowly. $$python"; fi
