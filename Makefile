PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := python -m pip install --quiet --disable-pip-version-check --no-compile
# two workers with one thread each: torch's own threads would only fight over the cores; one for the
# browser, whose tests often wait, beside two others
# bytecode is kept, since each call of pytest would else compile all of it again
WORKERS := 2
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS) -q
# the packages through which tensors pass
SHAPED := masks state ops attention layers models decoding data training seeing
SHAPES := --jaxtyping-packages=$(subst $() ,,$(SHAPED:%=regard.%,))beartype.beartype

.DEFAULT_GOAL := help

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
# uv installs in a third of pip's time, and in seconds what it has had before; where it cannot, pip does
	$(BIN)/$(PIP) -c constraints.txt uv && UV_FIND_LINKS="$${UV_FIND_LINKS-$$PIP_FIND_LINKS}" \
	  VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet -c constraints.txt -e '.[all,dev]' \
	  || $(BIN)/$(PIP) -c constraints.txt -e '.[all,dev]'
	@$(BIN)/python -m compileall -qq -j 2 $(VENV)/lib/python3*/site-packages/torch || true  # some of it is for later Pythons
	@touch $(STAMP)

.PHONY: help install demo docs test chain-of-tests chain-beside check lint types kernels quick unit shuffled plain compiled system others long browser fuzz bench release-check release-rehearsal clean

help:  ## list what make can do
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 20

install: $(STAMP)  ## make .venv and install regard and its tools into it

demo: $(STAMP)  ## train on the bundled dictionary in two minutes and draw where the model looks
	test -d runs/demo || $(BIN)/regard train src/regard/bundled/cmudict/train.tsv.gz -o runs/demo --minutes 2 \
		size=small src_case=upper batch_tokens=1536 warmup=200 dropout=0.05 eval_pairs=300 eval_every=500 patience=1000
	$(BIN)/regard show runs/demo ATTENTION

docs: $(STAMP)  ## the site in build/site/html, with the course; every warning is an error
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python -m website.build

# in two chains, so that no core waits: tests of the first often do, for processes and for clients
test: lint  ## everything that CI runs
	@$(MAKE) --no-print-directory -j2 chain-of-tests chain-beside

OTHERS := "(plain or compile or system or slow) and not browser and not long"

chain-of-tests: kernels
	$(PYTEST) -m $(OTHERS)

chain-beside: types
	@$(MAKE) --no-print-directory browser
	@$(MAKE) --no-print-directory unit

check: lint  ## one parameter set of each test, nothing that takes long
	@$(MAKE) --no-print-directory -j2 types quick

lint: $(STAMP)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

kernels: $(STAMP)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python tests/compile_kernels.py

quick: $(STAMP)
	$(PYTEST) --few -m "not compile and not system and not slow and not browser and not long"

unit: $(STAMP)  ## tests, with every shape in every signature checked at run time
	$(PYTEST) $(SHAPES) -m "not plain and not compile and not system and not slow and not browser and not long"

shuffled: $(STAMP)  ## the same in a random order: no test may depend on another
	$(PYTEST) $(SHAPES) -p pytest_randomly --randomly-dont-reset-seed -m "not plain and not compile and not system and not slow and not browser and not long"

plain: $(STAMP)  ## tests that the run-time shape checks would get in the way of
	$(PYTEST) -m "plain and not compile and not slow and not long"

compiled: $(STAMP)  ## tests of code under torch.compile
	$(PYTEST) -m "compile and not slow and not long"

system: $(STAMP)  ## models that must learn a task, runs that are killed, compiled code
	$(PYTEST) -m "(system or slow) and not browser and not long"

others: $(STAMP)  ## plain, compiled and system in one call, since each takes a while to find its tests
	$(PYTEST) -m $(OTHERS)

long: $(STAMP)  ## what `make test` leaves out, since something like it runs there
	$(PYTEST) -m "long and not browser"
# one driver of browsers in a process, and none beside tests that run loops of their own
	$(PYTEST) -m "long and browser" tests/browser
	$(PYTEST) -m "long and browser" tests/documentation

browser: WORKERS := 1
browser: $(STAMP)  ## the page in a real Chromium, which is installed where it can be
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "chromium is missing and cannot be installed here: these tests are skipped"
	$(PYTEST) -m "browser and not long" tests/browser

CASES := 5000
SEED := 1
fuzz: $(STAMP)  ## crafted files and command lines: CASES of them, chosen by SEED; CASE is one alone, KIND one kind
	cd tests && OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE ../$(BIN)/python -m fuzz --cases $(CASES) \
	  --seed $(SEED) --workers $(WORKERS) $(if $(CASE),--case $(CASE)) $(if $(KIND),--kind $(KIND))

bench: $(STAMP)  ## time the attention operators on this machine
	$(BIN)/python -m benchmarks.speed.kernels

release-check: $(STAMP)  ## build, compare and check what would be published; see RELEASING.md
	$(BIN)/python -m benchmarks.tools.release_check

release-rehearsal: $(STAMP)  ## the same, with notes about what only a release needs
	$(BIN)/python -m benchmarks.tools.release_check --rehearse

clean:  ## remove .venv, caches and the site
	rm -rf $(VENV) build/site .mypy_cache .ruff_cache .pytest_cache
