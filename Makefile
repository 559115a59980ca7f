# Needs Python 3.10 or newer and make; everything else goes into .venv.
#   make demo        train a masked policy on Taxi (checkpoint and curve in a new folder of runs/)
#   make test        tests and doctests; those of environments of other packages are skipped
#   make test-all    the same with these installed, as CI runs it
#   make test-oldest a part of the tests on the oldest TorchRL, and BenchMARL, in .venv-oldest
#   make lint types  ruff, mypy
#   make bench       times of tdheads and its peers, into runs/benchmarks/
#   make bench-compare BASE=main  the same of a revision and of this tree in turn, as a comment
# ARGS go to the script or to pytest: make test ARGS="-k clip", make demo ARGS=--help

PYTHON ?= python3
WORKERS ?= 2
BASE ?= main
ROUNDS ?= 3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest

# Several processes with several threads each are many times slower than with one thread each.
export OMP_NUM_THREADS = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

extras_demo := examples
extras_test := dev,examples
extras_all := dev,examples,onnx,chess,jumanji,openspiel,pettingzoo,vmas
extras_bench := dev,sb3

# The installs that each one contains.
covers_demo := demo
covers_test := demo test
covers_all := demo test all
covers_bench := bench

# Every module by its doctests; then what TorchRL changed: losses, estimators, collectors, specs.
oldest_tests := tdheads $(addprefix tests/test_,$(addsuffix .py,\
	benchmarl drop_in groups make_head misuse_losses torchrl transforms vmas))

.PHONY: demo test test-all test-oldest install-all lint types format bench bench-compare dist clean

demo: $(VENV)/.demo
	$(BIN)/python examples/train.py --out runs/$$(date +%Y%m%d-%H%M%S) $(ARGS)

test: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-all: install-all
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

test-oldest: $(OLDEST)/.done
	$(OLDEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal -m 'not slow' $(oldest_tests) $(ARGS)

install-all: $(VENV)/.all

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

.PHONY: workflows
VALID := $(BIN)/check-jsonschema --builtin-schema
workflows: $(VENV)/.test
	$(BIN)/zizmor --quiet --pedantic --strict-collection .github
	$(VALID) vendor.github-workflows .github/workflows/*.yml
	$(VALID) vendor.github-issue-forms $(addprefix .github/ISSUE_TEMPLATE/,bug.yml feature.yml)
	$(VALID) vendor.github-discussion .github/DISCUSSION_TEMPLATE/q-a.yml
	$(VALID) vendor.citation-file-format CITATION.cff

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench
	mkdir -p runs/benchmarks
	$(BIN)/python -m pytest -c benchmarks/pytest.ini --rootdir . benchmarks \
		--benchmark-json=runs/benchmarks/all.json $(ARGS)

bench-compare: $(VENV)/.bench
	$(BIN)/python benchmarks/run_pair.py $(BASE) --rounds $(ROUNDS) -- $(ARGS)

dist: $(VENV)/.test
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) $(OLDEST) dist

# One stamp per install: a second call is fast, a changed pyproject.toml or pin installs again.
$(VENV)/.%: pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e '.[$(extras_$*)]'
	touch $(addprefix $(VENV)/.,$(covers_$*))

$(OLDEST)/.done: pyproject.toml constraints-0.11.txt
	test -x $(OLDEST)/bin/pip || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --no-compile -c constraints-0.11.txt -e '.[test,benchmarl]'
	touch $@
