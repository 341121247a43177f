# `make run` does the main job, `make test` passes the tests; each installs what it needs first.
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
BIN := $(VENV)/bin
# Tests of tiny models are fastest with one thread each; training chooses its own.
TEST_ENV := OMP_NUM_THREADS=1 MPLBACKEND=Agg

SLOWER := faults hf inside kernels measure studies trust cli/test_cli.py corpora/test_files.py corpora/test_topics.py \
	design/test_commands.py design/test_derivations.py design/test_noisy_keys.py design/test_verdicts.py lm/test_evaluate.py lm/test_flops.py lm/test_model.py lm/test_other_device.py \
	lm/test_processes.py lm/test_resume.py lm/test_train.py lm/test_training_rules.py lm/test_validation.py \
	store/test_runs_verb.py store/test_usercode.py test_bench_words.py test_course_table.py \
	test_malformed.py test_package.py test_reader.py

.PHONY: run quick test test-fast test-slow faults cluster processes notebooks browser screenshots mutate check format docs bench-peers bench-words setup setup-run people lock dist-check pip-audit sbom clean
run: setup-run
	$(BIN)/attnlab run

quick: setup-run
	$(BIN)/attnlab run --quick

test: setup
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 -q

# For the inner loop, under a minute: without training, studies, measurements, transformers and faults.
test-fast: setup
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 -q $(SLOWER:%=--ignore=tests/%)

test-slow: setup
	$(TEST_ENV) $(BIN)/python -m pytest -q -m slow

# Kills, torn lines, full disks, flipped bits and the like against a small chain of commands: docs/reliability.md.
faults: setup
	$(TEST_ENV) $(BIN)/python tests/faults/faults.py

# Comparisons on a Ray cluster of this machine, with workers that are killed: docs/scale.md.
cluster: setup
	$(TEST_ENV) $(BIN)/python -m pytest -q -m cluster tests/cluster

# Tests that start, stop or measure processes: several for one model (also compiled), kills, marking, memory. A few minutes.
processes: setup
	$(TEST_ENV) $(BIN)/python -m pytest -q -m processes

# Every notebook from top to bottom, with small settings.
notebooks: setup
	$(TEST_ENV) $(BIN)/python -m pytest -q -m notebook tests/notebooks

# The page, its server and its scripts: in Chromium, where it is installed, under tsc and under node.
browser: setup
	$(TEST_ENV) $(BIN)/python -m pytest -q -m browser tests/serve
	cd tests/serve/js && npm ci --silent && npx tsc -p . && node --test

# The pictures of the tour in README.md, from a quick run; needs Chromium.
screenshots: setup
	$(BIN)/python tools/screenshots.py

# Which small changes to the source the tests notice; not part of CI. ROOMS="optim stats", SAMPLE=40 and SEED=1 for a part.
mutate: setup
	$(TEST_ENV) CI=true $(BIN)/python tools/mutate.py $(ROOMS) --sample $(or $(SAMPLE),40) --seed $(or $(SEED),0)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup
	$(BIN)/python tools/mechanism_cards.py > docs/.new.md && mv docs/.new.md docs/mechanisms.md
	$(BIN)/python tools/api.py > docs/.new.md && mv docs/.new.md docs/api.md

bench-peers:
	$(PYTHON) benchmarks/mechanisms.py

# CORPUS=FILE for other sentences than the built-in prose.
bench-words: setup
	$(BIN)/python benchmarks/words.py $(if $(CORPUS),--corpus $(CORPUS))

people: setup
	$(BIN)/python tools/make_people.py

# Exact versions with hashes for every platform: run this after changing dependencies (4 minutes). Newer versions: LOCK_ARGS=--upgrade
lock: setup
	$(BIN)/python tools/lock.py $(LOCK_ARGS)

# Builds wheel and sdist, installs each into an empty environment, and uses it.
dist-check: setup
	$(BIN)/python tools/check_dist.py $(PIP_ARGS)

# Known vulnerabilities of what is locked; asks a service on the network. Skipped packages count as failures.
pip-audit: $(VENV)/tools/.ready
	$(VENV)/tools/bin/pip-audit --strict --progress-spinner off --no-deps --disable-pip -r requirements/all.txt -r requirements/torch.txt \
		|| { echo 'pip-audit: vulnerabilities were found, or the vulnerability service could not be reached (see above)' >&2; exit 1; }

# CycloneDX: what is installed, with licences and who needs whom.
sbom: setup $(VENV)/tools/.ready
	mkdir -p build
	$(VENV)/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o build/sbom.json $(BIN)/python

# All that tests, checks and Hugging Face models need, the encoder `minilm` among it.
setup: $(VENV)/.ready

# What `attnlab run` needs.
setup-run: $(VENV)/.run

# Torch comes last and by version only, since its builds differ from index to index; what it needs is locked.
define install
	@echo "Installing $$(grep -c == requirements/$(1).txt) packages and torch into $(VENV), $(2)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q $(PIP_ARGS) --require-hashes --no-deps -r requirements/$(1).txt
	$(BIN)/python -m pip install -q $(PIP_ARGS) -r requirements/torch.txt
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $(VENV)/.run $@
endef

$(VENV)/.run: pyproject.toml requirements/run.txt requirements/torch.txt
	$(call install,run,usually 1 to 2 minutes)

$(VENV)/.ready: pyproject.toml requirements/all.txt requirements/torch.txt
	$(call install,all,usually 2 to 4 minutes)

# Tools about dependencies have dependencies of their own: kept apart from what they look at.
$(VENV)/tools/.ready: requirements/tools.txt
	$(PYTHON) -m venv $(VENV)/tools
	$(VENV)/tools/bin/python -m pip install -q $(PIP_ARGS) --require-hashes --no-deps -r requirements/tools.txt
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist
