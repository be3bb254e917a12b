# Each target does its own set-up in .venv; nothing is installed outside this folder.
PYTHON ?= python3
BIN := .venv/bin
# What users need, and what tests need as well.
INSTALLED := .venv/.installed
READY := .venv/.ready

# Compiled tests are kept: each worker would else compile all of them, 12 s each, in each run.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: ray-table probe demo picture test unit prometheus slurm lint soak fuzz audit live control bench figures man docs lock sbom wheel pyz image clean

# A problem found (1) and sources that could not be seen (3) are reports, not failures of make.
probe: $(INSTALLED)
	@$(BIN)/raydiag probe --all-nodes --address local || [ $$? -eq 1 ] || [ $$? -eq 3 ]

# An example incident, diagnosed: no cluster, no GPU. NAME=straggler takes another one.
demo: $(INSTALLED) prometheus
	@PATH="$(CURDIR)/.cache/prometheus/usr/bin:$$PATH" $(BIN)/raydiag demo $(NAME)

# The README's picture again, by a headless Chromium.
picture: $(READY) prometheus
	@PATH="$(CURDIR)/.cache/prometheus/usr/bin:$$PATH" $(BIN)/python tools/screenshot.py

# Everything: lint, types, unit tests, those on real Prometheuses and exporters, those on a real Ray.
# Real programs may be late on a machine with other load: a test of them that fails is run once more,
# and the summary shows why (RERUN). One that fails twice has failed. A file of cluster tests shares
# its cluster; in the order of their names the long ones do not come last.
test: lint unit slurm
	$(BIN)/pytest -q -n 3 --reruns 1 --rerun-show-tracebacks -m 'slow and not cluster'
	$(BIN)/pytest -q -n 2 --reruns 1 --rerun-show-tracebacks --dist loadfile --no-loadscope-reorder \
	  -m cluster

# Three workers: on two cores one of them mostly waits, for a hang to be noticed.
unit: $(READY) prometheus
	$(BIN)/pytest -q -n 3 -m 'not cluster and not slow'

# A real Prometheus for the tests of raydiag tsdb: of the machine, else unpacked below .cache.
prometheus:
	@.ci/fetch-prometheus .cache/prometheus

# A real Slurm for the tests of deploy/slurm, unpacked below .cache.
slurm:
	@.ci/fetch-slurm .cache/slurm

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Rollouts whose driver is killed at 50 random moments; and MINUTES of probes through the resident
# agent while nodes die and come back, sources hang, its coordinator is killed, its disk is full.
MINUTES ?= 10
soak: $(READY)
	RAYDIAG_SOAK=50 $(BIN)/pytest -q -m cluster tests/cluster/test_hotfix.py -k random_moment
	$(BIN)/python -m tests.cluster.agent_soak $(MINUTES)

# Odd inputs for everything that reads what others wrote, guided by coverage: CASES for each target.
# `make test` has a short run of it without atheris.
CASES ?= 1000000
fuzz: $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	$(BIN)/python -m tests.fuzzing $(CASES) $(TARGETS)

# Known weaknesses of what we depend on, and risky calls in our own code.
# Behind a mirror that has no advisories of each release the second part is skipped, loudly.
ADVISORIES ?= https://pypi.org/pypi/pip/24.0/json
audit: $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[audit]'
	$(BIN)/bandit -q -r raydiag entrypoints -c pyproject.toml
	@mkdir -p .cache
	$(BIN)/pip freeze --exclude-editable > .cache/installed.txt
	@if $(BIN)/python -c 'import urllib.request as r; r.urlopen("$(ADVISORIES)", timeout=30)' 2>/dev/null; \
	then $(BIN)/pip-audit --strict --no-deps --disable-pip -r .cache/installed.txt; \
	else echo "SKIPPED: pip-audit: $(ADVISORIES) is not served here: run it where it is" >&2; fi

# Faults planted in a training on four simulated hosts, and what raydiag says of each.
live: $(READY) prometheus
	PATH="$(CURDIR)/$(BIN):$(CURDIR)/.cache/prometheus/usr/bin:$$PATH" $(BIN)/python -m tests.cluster.live

# What asking does to nodes that limp: nodes that are probed beside nodes that are not.
control: $(READY)
	$(BIN)/python -m tests.cluster.live.control

# Old and new Rays from PyPI on all Pythons of this machine, each started and asked, into
# docs/compatibility.md; RAYS="2.46.0:3.13 2.60.0:3.12" takes some. Needs uv; minutes each.
ray-table: $(READY)
	$(BIN)/python -m tools.ray_versions $(RAYS)

bench: $(READY)
	$(BIN)/python benchmarks/run.py

# How readable the package is, beside httpx, which many hold to be.
figures: $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target .cache/httpx --upgrade httpx
	@$(BIN)/python tools/figures.py raydiag .cache/httpx/httpx --each

# dist/man/man1/raydiag.1 and one for each command; put them below a directory of MANPATH.
man: $(READY)
	@$(BIN)/python tools/man_pages.py

# The documentation as a site, strictly: a link that leads nowhere ends it. Open dist/docs/index.html.
docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@ls dist/docs/index.html

# The versions that tests run with, each with the hashes of its files, for all Pythons.
LOCK := requirements-dev.txt
lock: $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[release]'
	@$(BIN)/uv pip compile --quiet pyproject.toml --extra dev --universal --python-version 3.10 \
	  --generate-hashes --no-annotate --custom-compile-command 'make lock' --output-file $(LOCK)

# A bill of materials: what the wheel needs with all its extras, in the locked versions.
sbom: $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[release]'
	@mkdir -p .cache dist
	@$(BIN)/uv pip compile --quiet pyproject.toml --extra all --universal --python-version 3.10 \
	  --generate-hashes --no-annotate --constraint $(LOCK) --output-file .cache/runtime.txt
	@sed "s/^dynamic = .*/version = \"$$($(BIN)/python -c 'import raydiag; print(raydiag.__version__)')\"/" \
	  pyproject.toml > .cache/pyproject.toml
	@$(BIN)/python -W ignore -m cyclonedx_py requirements --pyproject .cache/pyproject.toml --output-reproducible \
	  --output-file dist/raydiag.cdx.json .cache/runtime.txt
	@ls dist/raydiag.cdx.json

# What is carried to other machines: dist/raydiag-*.whl, and dist/raydiag.pyz without Ray.
wheel: $(READY)
	@rm -rf build dist/raydiag-*.whl
	@SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 1580601600) $(BIN)/python -m build --wheel --outdir dist . >/dev/null
	@ls dist/raydiag-*.whl

pyz: $(READY)
	@$(BIN)/python tools/pyz.py dist/raydiag.pyz
	@ls dist/raydiag.pyz

# For Kubernetes; IMAGE=registry.example.com/raydiag:0.1.0 names it as your registry has it.
IMAGE ?= raydiag:0.1.0
CONTAINERS ?= $(shell command -v podman || echo docker)
image: pyz
	$(CONTAINERS) build -f deploy/image/Containerfile -t $(IMAGE) .

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "raydiag needs Python 3.10 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || \
	  { echo "could not make a virtual environment (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "installing raydiag and what it needs into .venv ..." >&2
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[report]'
	@touch $@

$(READY): $(INSTALLED)
	@echo "installing what its tests need ..." >&2
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .cache build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
