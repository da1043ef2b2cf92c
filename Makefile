# Slipway's commands. `make run` and `make test` set up everything they need in .venv; `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser)
RUN_LOCKS := server dashboard examples
PYTEST := $(BIN)/python -m pytest -p no:cacheprovider
SUITE = -n auto --no-loadscope-reorder -m "not soak and not gpu and not conversions and not images$(if $(filter no,$(BROWSER)), and not browser)" $(TESTS)

# Containers often set it; every server that a test starts would then compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-changed test-javascript test-python test-workers test-compiled test-conversions conversion-figures compiled coverage check lock bench-peers bench-triton bench-dashboard bench-instructions bench-instructions-compiled bench-memory bench-perf-analyzer bench-generators bench-tuning bench-alerts bench-drift bench-captures bench-fleet fuzz soak rollout-soak batch-soak replay-soak screenshots guide docs formats examples images images-test clean help
.DEFAULT_GOAL := help

run: $(VENV)/.installed  ## Start the dashboard and the inference server; Ctrl-C stops all of it.
	@exec $(BIN)/python manage.py up

test: test-javascript test-python  ## Run every test, two processes for each core. TESTS=FOLDER narrows it; BROWSER=no needs no Chromium.

test-changed: $(VENV)/.installed-dev node_modules/.installed  ## Run the tests that a change touches, since main or since BASE.
	$(BIN)/python -m tools.changed_tests $(if $(BASE),--base $(BASE))

test-javascript: $(VENV)/.installed-dev node_modules/.installed  ## Run the tests of the browser's code that need no page.
	$(BIN)/node --test --test-timeout=120000 --test-reporter=dot "tests/javascript/**/*.test.js"

test-python: $(VENV)/.installed-dev node_modules/.installed chromium torchserve kubernetes-tools  ## Run every other test.
	$(PYTEST) $(SUITE)

test-workers: export TEST_FRONTEND_WORKERS = 2
test-workers: test  ## Run every test, with two frontend workers in every server that a test starts.

test-compiled: export TEST_COMPILED = yes
test-compiled: compiled test-python  ## Run every test that is written in Python, with the compiled modules.

compiled: $(VENV)/.installed  ## Compile the modules of a request's path (some minutes, a C compiler): a third less work for each.
	$(BIN)/python -m tools.compile_serving

test-conversions: export MAKE_ENVIRONMENTS = yes
test-conversions: $(VENV)/.installed-dev  ## Convert real artefacts of other tools; the first run fetches 1.5 GB of their packages.
	$(PYTEST) -m conversions $(or $(TESTS),tests/dashboard/conversions)

conversion-figures: export CONVERSION_FIGURES = $(CURDIR)/tests/dashboard/conversions/figures.jsonl
conversion-figures: export MAKE_ENVIRONMENTS = yes
conversion-figures: $(VENV)/.installed-dev  ## Convert real artefacts over REST, and write their figures to docs/formats.md.
	rm -f $(CONVERSION_FIGURES)
	$(PYTEST) -m conversions tests/dashboard/conversions/test_artefacts_over_rest.py
	$(BIN)/python -m tools.write_docs

coverage: $(VENV)/.installed-dev node_modules/.installed chromium torchserve kubernetes-tools  ## Run the tests, slower by a third, and print how many lines and branches they reach.
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -p no:cacheprovider $(SUITE)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

check: $(VENV)/.installed-dev node_modules/.installed  ## Look for errors without running: ruff, mypy, tsc, missing migrations.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/node node_modules/typescript/bin/tsc
	$(BIN)/python manage.py makemigrations --check --dry-run --settings tests.settings

bench-peers: $(VENV)/.installed-dev  ## Measure Slipway and other servers in turns; BENCH=--quick only tries it. TRITON_DIR: a tritonserver.
	$(BIN)/python -m benchmarks.comparison peers $(BENCH)
	$(BIN)/python -m benchmarks.comparison handlers $(BENCH)

bench-triton: $(VENV)/.installed-dev  ## Measure Slipway side by side with the tritonserver that TRITON_DIR/run.sh starts, case by case.
	$(BIN)/python -m benchmarks.comparison triton $(BENCH)

bench-dashboard: $(VENV)/.installed-dev  ## Measure pages with 10,000 releases of 500 models, and 50 open pages.
	$(BIN)/python -m benchmarks.dashboard

bench-instructions: $(VENV)/.installed-dev  ## Count each path's instructions; fails at 10 % more than recorded. RECORD=yes replaces the record.
	$(BIN)/python -m benchmarks.instructions $(if $(filter yes,$(RECORD)),--record)

bench-instructions-compiled: $(VENV)/.installed-dev compiled  ## Do the same for the compiled modules, with a separate record.
	$(BIN)/python -m benchmarks.instructions --compiled $(if $(filter yes,$(RECORD)),--record)

bench-memory: $(VENV)/.installed-dev  ## Measure what loading, a thousand models and large tensors cost in memory.
	$(BIN)/python -m benchmarks.load_cycles
	$(BIN)/python -m benchmarks.many_models
	$(BIN)/python -m benchmarks.large_tensors

bench-generators: $(VENV)/.installed-dev  ## Compare the load generator of the product with wrk, h2load and perf_analyzer.
	$(BIN)/python -m benchmarks.generators

bench-tuning: $(VENV)/.installed-dev  ## Replay the search of tunings over the grids of five models. GRIDS=FOLDER measures new grids into a folder first.
	$(if $(GRIDS),$(BIN)/python -m benchmarks.tuning_grids record $(GRIDS) --seconds $(or $(TUNING_SECONDS),1800))
	$(BIN)/python -m benchmarks.tuning_grids replay $(or $(GRIDS),tests/dashboard/tuning/grids)

bench-alerts: $(VENV)/.installed-dev  ## Simulate alerts for 90 days of 200 models, measure how soon people are told, and write both to docs/performance.md.
	$(BIN)/python -m benchmarks.alerts --write
	$(BIN)/python -m benchmarks.alert_kinds --write
	$(BIN)/python -m benchmarks.alerts_told --write

bench-drift: $(VENV)/.installed-dev  ## Measure which shifts the data drift finds, and write the tables of docs/drift.md.
	$(BIN)/python -m benchmarks.drift

bench-captures: $(VENV)/.installed-dev compiled  ## Measure what a capture of 10 % costs: instructions, and loads in pairs; interpreted and compiled.
	$(BIN)/python -m benchmarks.capture_cost
	$(BIN)/python -m benchmarks.capture_cost --compiled

bench-perf-analyzer: $(VENV)/.installed-dev  ## Run NVIDIA's perf_analyzer over HTTP, gRPC, streams, sequences and shared memory.
	$(BIN)/python -m benchmarks.perf_analyzer

fuzz: $(VENV)/.installed-dev  ## Look for faults with random input for an hour, or FUZZ_SECONDS; findings are kept.
	$(BIN)/python -m tools.fuzz --seconds $(or $(FUZZ_SECONDS),3600) $(FUZZ_PATHS)

soak: $(VENV)/.installed-dev  ## Ask a million requests (SOAK_REQUESTS) under changes and kills, to SOAK_WORKERS frontend workers; then the long tests.
	$(BIN)/python -m benchmarks.soak --requests $(or $(SOAK_REQUESTS),1000000) --frontend-workers $(or $(SOAK_WORKERS),0)
	$(PYTEST) -m soak --timeout 3600

rollout-soak: $(VENV)/.installed-dev  ## Ask half a million requests (ROLLOUT_REQUESTS) through a whole rollout, and count the shares.
	$(BIN)/python -m benchmarks.rollout_soak --requests $(or $(ROLLOUT_REQUESTS),500000)

batch-soak: $(VENV)/.installed-dev  ## Send a million rows (BATCH_ROWS) through a batch job, kills and live requests, and measure the p99 of these.
	$(BIN)/python -m benchmarks.batch_soak --rows $(or $(BATCH_ROWS),1000000)

replay-soak: $(VENV)/.installed-dev  ## Replay a million captured requests (REPLAY_REQUESTS) while the worker is killed, and compare what is counted.
	$(BIN)/python -m benchmarks.replay_soak --requests $(or $(REPLAY_REQUESTS),1000000)

bench-fleet: $(VENV)/.installed-dev  ## Measure what 8, 50 and 200 servers cost one watcher (BENCH=--servers 200 narrows it); BENCH=costs: viewers, charts, requests, models.
	$(BIN)/python -m benchmarks.fleet $(BENCH)

rolling-upgrade: $(VENV)/.installed-dev  ## Send a million requests (UPGRADE_REQUESTS) through HAProxy while servers are replaced and killed; count failures.
	$(BIN)/python -m benchmarks.rolling_upgrade --requests $(or $(UPGRADE_REQUESTS),1000000)

upgrade-test: $(VENV)/.installed-dev  ## Replace a release (OLDER, a revision of git) by this one on one database under traffic, go back, and count failures.
	$(BIN)/python -m benchmarks.upgrade --older $(or $(OLDER),main)

outages: $(VENV)/.installed-dev  ## Kill, stop and cut off each part of nine machines (or OUTAGES=redis,worker) under traffic; count failures.
	$(BIN)/python -m benchmarks.outages $(if $(OUTAGES),--only $(OUTAGES))

# Left out, because it is meant: no limit of CPU (11), tags that overlays replace by digests and pull as they wish (15, 43), the one
# container that hands the node's folder to the servers (25), secrets in the environment, as the programs read them (35), the account
# with which the dashboard finds servers (38), engines to try without liveness (8).
LINT_WITHOUT := CKV_K8S_8,CKV_K8S_11,CKV_K8S_15,CKV_K8S_25,CKV_K8S_35,CKV_K8S_38,CKV_K8S_43

kubernetes-lint: $(VENV)/.installed-dev  ## Look at deploy/kubernetes with checkov's policies, in an environment of its own. KUBECTL names a kubectl.
	@$(BIN)/python -m benchmarks.servers.environments checkov
	@for overlay in deploy/kubernetes/overlays/*; do \
	  mkdir -p .cache/kubernetes && $(or $(KUBECTL),kubectl) kustomize $$overlay > .cache/kubernetes/$${overlay##*/}.yaml && \
	  .cache/benchmarks/environments/checkov/bin/checkov --file .cache/kubernetes/$${overlay##*/}.yaml --framework kubernetes \
	  --skip-check $(LINT_WITHOUT) --compact --quiet --skip-download || exit 1; \
	done

cluster-trial:  ## Try deploy/kubernetes in the real cluster that lies in CLUSTER (benchmarks/cluster/trial.sh says which); TRIALS=cpu narrows it.
	benchmarks/cluster/trial.sh $(CLUSTER) $(TRIALS)

usage-soak: $(VENV)/.installed-dev  ## Send a million requests (USAGE_REQUESTS) with tokens under kills, and compare what is counted.
	$(BIN)/python -m benchmarks.usage_soak --requests $(or $(USAGE_REQUESTS),1000000)

images:  ## Build the images of server and dashboard. BASE=debian needs no registry; deploy/images.sh lists more settings.
	deploy/images.sh $(IMAGES)

images-test: $(VENV)/.installed-dev  ## Run these images as a kubelet does, with runc (root; images of buildah): limits, rights, probes, ends.
	$(PYTEST) -m images --timeout 1200 $(or $(TESTS),tests/e2e/images)

screenshots: $(VENV)/.installed-dev chromium  ## Take pictures of every page.
	$(BIN)/python -m tools.screenshots

guide: $(VENV)/.installed-dev chromium  ## Take the pictures of docs/guide.md again.
	$(BIN)/python -m tools.screenshots --guide

formats: $(VENV)/.installed-dev  ## Make the models of docs/formats.md again with their own tools, serve them, and write that page.
	$(BIN)/python -m tools.formats $(FORMATS)

docs: $(VENV)/.installed-dev  ## Write the tables of docs/ that code declares.
	$(BIN)/python -m tools.write_docs

examples: $(VENV)/.installed-dev  ## Train the example models again.
	$(BIN)/python examples/train.py
	$(BIN)/python examples/train_text.py

clean:  ## Remove what was installed and cached; the data folder stays.
	rm -rf $(VENV) .cache node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## List these commands.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' Makefile

.PHONY: chromium
chromium:
	@test "$(BROWSER)" = no || test -n "$(CHROMIUM)" || { \
	  echo "The browser tests need Chromium: sudo apt-get install chromium (or leave them out: make test BROWSER=no)"; exit 1; }

# In a separate environment under .cache, which is made once.
.PHONY: torchserve
torchserve: $(VENV)/.installed-dev  ## Install the real TorchServe and its archiver, which tests use; make test does so too.
	@$(BIN)/python -m benchmarks.servers.environments torchserve
	@command -v java >/dev/null || \
	  echo "No Java: the tests beside TorchServe are left out (sudo apt-get install default-jre-headless)."

.PHONY: kubernetes-tools
kubernetes-tools: $(VENV)/.installed-dev  ## Install kubectl and the schemas of Kubernetes, which tests use; make test does so too.
	@$(BIN)/python -m benchmarks.servers.environments kubernetes

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Slipway needs Python 3.11 or newer: make run PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment: sudo apt-get install python3-venv"; exit 1; }

# Some files are large: a download that breaks off is begun again, and what has come whole is not fetched twice.
export PIP_RETRIES ?= 10
export PIP_DEFAULT_TIMEOUT ?= 60
install = for try in 1 2 3; do \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check $(1) && exit 0; \
	  echo "The packages could not be installed (try $$try of 3)."; sleep 5; \
	done; exit 1
locked = --require-hashes $(1:%=-r requirements/%.txt)

# The stamps are newer than the requirements they installed, so that a second run installs nothing.
$(VENV)/.installed: requirements.txt $(RUN_LOCKS:%=requirements/%.txt) requirements/torch.txt | $(BIN)/python
	@echo "Installing requirements.txt into $(VENV); the first time this takes some minutes."
	@$(call install,pip==26.3)  # the one of Python 3.11 refuses locks with a package that another one needs with extras
	@$(call install,$(call locked,$(RUN_LOCKS)))
	@$(call install,-r requirements.txt)
	@touch $@

$(VENV)/.installed-dev: requirements/dev.txt $(VENV)/.installed
	@$(call install,$(call locked,dev))
	@touch $@

# TypeScript and axe-core come from npm, which compares them with the hashes in package-lock.json.
node_modules/.installed: package.json package-lock.json | $(VENV)/.installed-dev
	@$(BIN)/node --version >/dev/null || { \
	  echo "Node is missing in $(VENV), where requirements/dev.txt puts it: run make clean, then try again."; exit 1; }
	@for try in 1 2 3; do \
	  $(BIN)/npm ci --no-audit --no-fund --ignore-scripts --no-update-notifier --loglevel=error && touch $@ && exit 0; \
	  echo "TypeScript and axe-core could not be installed by npm (try $$try of 3)."; sleep 5; \
	done; exit 1

# Each lock keeps to the versions of those before it, so that any of them can be installed together. Those of conversions keep to
# the server's, so that their environments borrow its packages; XGBoost needs NCCL only to train on several GPUs. PyTorch and
# TensorRT are always the server's, whose libraries for the GPU are not on PyPI, or depend on the machine.
lock = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-package torch \
	  --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) $(1:%=requirements/%) \
	  $(2:%=--constraint requirements/%.txt)

lock: $(VENV)/.installed-dev  ## Lock what requirements/*.in need, with hashes. UPGRADE=yes takes what is newest for the rest.
	$(call lock,server.in torch.txt) -o requirements/server.txt
	$(call lock,dashboard.in,server) -o requirements/dashboard.txt
	$(call lock,examples.in,$(filter-out examples,$(RUN_LOCKS))) -o requirements/examples.txt
	$(call lock,cloud.in,$(RUN_LOCKS)) -o requirements/cloud.txt
	$(call lock,opentelemetry.in,$(RUN_LOCKS) cloud) -o requirements/opentelemetry.txt
	$(call lock,parquet.in,$(RUN_LOCKS)) -o requirements/parquet.txt
	$(call lock,drift.in,$(RUN_LOCKS)) -o requirements/drift.txt
	$(call lock,signing.in,$(RUN_LOCKS) cloud) -o requirements/signing.txt
	$(call lock,compile.in,$(RUN_LOCKS)) -o requirements/compile.txt
	$(call lock,dev.in,$(RUN_LOCKS) cloud opentelemetry parquet drift signing compile) -o requirements/dev.txt
	@for apart in $(basename $(wildcard requirements/bench/*.in)); do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-emit-package torch \
	  $(addprefix --no-emit-package aws-cdk-,lib asset-awscli-v1 asset-node-proxy-agent-v6 cloud-assembly-schema) --no-emit-package jsii \
	  --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) $$apart.in -o $$apart.txt || exit 1; \
	done
	@for apart in $(basename $(wildcard requirements/convert/*.in)); do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --generate-hashes --no-emit-package torch \
	  --no-emit-package nvidia-nccl-cu12 --no-emit-package tensorrt-cu13 --no-emit-package tensorrt-cu13-libs \
	  --no-emit-package tensorrt-cu13-bindings --constraint requirements/server.txt \
	  --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) $$apart.in -o $$apart.txt || exit 1; \
	done
