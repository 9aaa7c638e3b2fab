# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# One stamp per content of the dependency files: set-up reruns when they change.
STAMP := .venv/ready-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)

# Tests run in a random order; `make test SEED=…` runs them in one that failed.
ifndef SEED
SEED := $(shell date +%s)
endif
RANDOM_ORDER = --randomly-seed=$(SEED) --hypothesis-seed=$(SEED)

.PHONY: demo test test-slow test-docs test-faults coverage setup lint types docs dist pictures tables tutorials bench clean

demo: setup
	$(BIN)/bbh demo

test: lint types docs
	$(BIN)/pytest -n 2 -q --dist worksteal $(RANDOM_ORDER)

test-slow: setup
	$(BIN)/pytest -q -m slow $(RANDOM_ORDER)

# What readers run and see: all notebooks from top to bottom, the code of all pages, the site in a
# browser. Ten minutes.
test-docs: setup
	$(BIN)/pytest -n 2 -q --dist worksteal -m slow $(RANDOM_ORDER) \
	  tests/test_tutorials.py tests/test_documentation.py tests/test_site.py

# Kills, damaged files, full disks: what docs/nothing-lost.md promises, tried thousands of times.
# `make test-faults FAULTS='--kills 5 --files 500'` tries less, `--seed` the same again.
test-faults: setup
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m faults $(FAULTS)

# Lines and branches that the tests reach, those of the processes they start included.
coverage: setup
	rm -f .coverage .coverage.*
	$(BIN)/pytest -n 2 -q --dist worksteal $(RANDOM_ORDER) --cov --cov-report=
	$(BIN)/coverage report --skip-covered --sort=cover
	$(BIN)/coverage html

setup: $(STAMP)

$(STAMP):
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@rm -f .venv/ready-* && touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Source archive, wheel, list of parts (CycloneDX) and licences in dist/, without a network: the
# builder is in the environment.
dist: setup
	rm -rf dist
	$(BIN)/hatchling build -d dist
	$(BIN)/python release/parts.py dist

clean:
	rm -rf .venv .venv-bench site dist

# From the committed records, but for the idea, which is trained anew.
pictures: setup
	$(BIN)/python docs/pictures.py
	cd results/digits/corrected && for row in mnf bbh; do \
	  cp $$row-0/inspection/correlation.png ../../../docs/assets/correlation-$$row.png; done
	cp results/digits/corrected/bbh-0/inspection/marginals.png docs/assets/marginals-bbh.png
	cp results/mnist/corrected/bbh-0/inspection/marginals.png docs/assets/marginals-mnist-bbh.png

# Tables of README and docs from the committed records.
tables: setup
	$(BIN)/python docs/tables.py

# The notebooks of docs/tutorials run anew, with their outputs: a few minutes.
tutorials: setup
	$(BIN)/python docs/run_tutorials.py

# Beside other libraries, in an environment of its own; benchmarks/README.md says how.
bench:
	PYTHON=$(PYTHON) benchmarks/setup .venv-bench
	.venv-bench/bin/bbh bench cpu
