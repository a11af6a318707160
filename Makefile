# Each target builds what it needs, so any of them may be the first command on a clean clone.
PYTHON ?= python3
BIN := .venv/bin
# An environment is named by what it was made from: change a pin and only then is it brought up to date.
KEY := $(shell cat pyproject.toml constraints.txt | cksum | tr ' ' -)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# Build backends come from the environment itself: pip does not constrain those it would fetch.
EDITABLE := $(PIP) --no-build-isolation --editable
# Some containers forbid Python to keep compiled modules. Then each process that a test starts compiles
# all of pymq again, which takes a node three times as long as to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick soak endurance bench kafka figures docs lint spark venv lock clean
.DELETE_ON_ERROR:

demo: .venv/made-demo-$(KEY)
	$(BIN)/python -m pymq demo

# Many tests wait for something: with more workers than cores, the cores do not.
WORKERS ?= 3
test: lint
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m 'not slow' $(ARGS)

# The loop of editing, under a minute: lint, types, and the tests of what is pure.
QUICK ?= tests/core tests/test_architecture.py
quick: lint
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m 'not slow' $(QUICK) $(ARGS)

# Whatever takes long: simulated runs of so many seeds, then the tests that are marked as slow, every
# crash point, and malformed inputs.
SEEDS ?= 20000
FROM ?= 0
INPUTS ?= 5000000
soak: .venv/made-test-$(KEY)
	$(BIN)/python -m pymq.testing --profile all --seeds $(FROM):$$(($(FROM) + $(SEEDS))) \
	  --seconds 5 --jobs 2 --quiet --marks
	$(BIN)/pytest -n 2 --dist worksteal -m slow $(ARGS)
	$(BIN)/python -m tests.simulator.crashes tests.testing.scripts --jobs 2
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS)

# Four Spark queries for an hour, while executors, brokers and zkservers die in turn; `make soak` has ten
# minutes of it.
ENDURANCE_S ?= 3600
endurance: .venv/made-test-$(KEY)
	PYMQ_ENDURANCE_S=$(ENDURANCE_S) $(BIN)/pytest -n 0 -m slow -s tests/spark/test_endurance.py

lint: .venv/made-test-$(KEY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: .venv/made-bench-$(KEY)
	-$(BIN)/python -m benchmarks.kafka.jars  # without them Kafka is reported as missing
	$(BIN)/python -m benchmarks $(ARGS)

# The jars of a Kafka and of Spark's Kafka connector, 50 MB in the user's cache folder, for `make bench`.
kafka: .venv/made-bench-$(KEY)
	$(BIN)/python -m benchmarks.kafka.jars

# What examples/spark_pipeline.py needs, which asks for it by itself; Java 17 is yours to install.
spark: .venv/made-spark-$(KEY)

figures: .venv/made-bench-$(KEY)  # what `make bench` has measured becomes what README and documentation show
	$(BIN)/python -m benchmarks.publish

docs: .venv/made-docs-$(KEY)
	$(BIN)/sphinx-build -W -q -b html docs docs/_build

.venv/made-base-$(KEY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'pymq needs Python 3.11 or newer; try: make PYTHON=python3.11' >&2; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP) --upgrade pip  # the pip that comes with Python 3.11 knows no dependency groups
	$(PIP) --group build
	rm -f .venv/made-*  # going back to older pins is a change too
	touch $@

.venv/made-demo-$(KEY): .venv/made-base-$(KEY)
	$(EDITABLE) '.[cli]' --group examples
	$(PIP) --no-build-isolation --no-deps --group data
	touch $@

.venv/made-spark-$(KEY): .venv/made-demo-$(KEY)
	$(EDITABLE) '.[cli,spark,zmq]' --group examples
	touch $@

# Spark is half a gigabyte, and among its jars is the ZooKeeper that the tests start.
.venv/made-test-$(KEY): .venv/made-demo-$(KEY)
	$(EDITABLE) '.[all]' \
	  --group test --group lint --group bench --group docs
	touch $@

# The clients of the servers that we are measured beside; nothing else needs them.
.venv/made-bench-$(KEY): .venv/made-test-$(KEY)
	$(PIP) --group peers
	touch $@

.venv/made-docs-$(KEY): .venv/made-demo-$(KEY)
	$(EDITABLE) . --group docs
	touch $@

venv: .venv/made-test-$(KEY)

lock:  # take the newest of everything, and write down what that was
	rm -rf .venv
	echo > constraints.txt
	$(MAKE) venv
	echo '# Every version the virtual environment gets (Python 3.11, Linux); `make lock` writes this file anew.' > constraints.txt
	$(BIN)/python -m pip freeze --all --exclude-editable >> constraints.txt

clean:
	rm -rf .venv .tox .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/_build dist
