# Two commands matter: `make demo` and `make test`. Both create a virtual environment and install pinned requirements.
PYTHON ?= python3
VENV ?= .venv
PROCESSES ?= 2
BIN = $(VENV)/bin

.PHONY: setup demo test soak lint docs notebooks clean

setup: $(VENV)/.installed

$(VENV)/.installed: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --no-compile -r requirements.txt  # Python compiles what it imports, a small part
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

demo: setup
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python examples/demo.py  # models so small are slower on two threads

test: setup  # on the CPU, where runs are equal bit for bit; benchmarks/run.py has the tests for a GPU
	CUDA_VISIBLE_DEVICES=-1 OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal

soak: setup  # hours of trials that break things on purpose; it can be stopped and started again
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m tests.soak

lint: setup
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check src tests benchmarks examples docs
	$(BIN)/mypy

docs: setup  # the site, in build/site; a warning or a broken link is an error
	rm -rf build/site
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/site
	$(BIN)/python docs/check_links.py build/site

notebooks: setup  # examples/*.ipynb from docs/tutorials; those whose code has changed are executed
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python docs/notebooks.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info
