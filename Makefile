# Everything a fresh clone needs is Python 3.11+ and make; each target sets up what it uses.
.DEFAULT_GOAL := help
.PHONY: help golden venv up demo deploy pictures test test-parts check bench soak judges test-cluster test-libvirt test-hardware libvirt kube-assets virtctl lock clean

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile
DATA ?= data
UP ?=
ROUNDS ?= 1
SEED ?= 0
MINUTES ?= 60
BY_FILE := --dist loadfile --no-loadscope-reorder  # in the order of tests/collection.py
BY_GROUP := --dist loadgroup  # as tests/collection.py groups them
unexport PYTHONDONTWRITEBYTECODE  # nothing here is compiled twice

help: ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

venv: .venv/installed ## the virtual environment with the locked dependencies

.venv/installed: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "outfitter needs Python 3.11 or newer with venv (on Debian: apt install python3-venv)"; exit 1; }
	@echo "setting up .venv with $(PYTHON) ..."
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { $(PYTHON) -m venv --clear .venv && \
		$(BIN)/python -m pip uninstall -qq --yes setuptools; }  # else one half replaces it while the other looks
	@for half in 0 1; do awk "/^[^ #]/ { entry++ } entry % 2 == $$half" requirements.lock >.venv/half-$$half.lock; done
	@printf '%s\n' 0 1 | xargs -P 2 -I HALF scripts/again $(INSTALL) --require-hashes -r .venv/half-HALF.lock
	@$(INSTALL) --no-build-isolation -e .
	@touch $@

up: venv ## run the product here (DATA=folder, UP="--simulate 4x8")
	@exec $(BIN)/outfit up --data $(DATA) $(UP)

demo: venv ## a tour on simulated hosts, unattended
	@$(BIN)/python scripts/demo.py

pictures: venv ## redraw the pictures of README.md from what the product prints
	@$(BIN)/python scripts/pictures.py

deploy: venv ## write deploy/ (kustomize) from what outfit install installs
	@$(BIN)/python scripts/deploy.py

check: venv ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check src tests bench scripts
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

golden: venv ## rewrite the golden files of the renderers (read the diff)
	@OUTFITTER_GOLDEN=1 $(BIN)/pytest -q tests/api/test_rejection_text.py tests/scheduling/explain tests/cli/test_why.py -k words

test: venv ## the checks, and beside them every test that needs nothing else
	@scripts/check-and-test $(BIN)/pytest -n 2 $(BY_FILE) -m "not (long or thorough or judges or parts or kubectl or cluster or libvirt)" $(PYTEST)

test-parts: venv ## the tests that use kubectl, virtctl, strace, lspci or QEMU where they are found, and slower forms of others
	@$(BIN)/pytest -n 2 $(BY_FILE) -m "(parts or kubectl or thorough) and not (long or cluster or libvirt)" $(PYTEST)

test-cluster: venv ## the tests that need a real kube-apiserver (KUBEBUILDER_ASSETS, or built by make kube-assets)
	@assets="$${KUBEBUILDER_ASSETS:-$$(scripts/kube-assets --path)}" || { \
		echo "no kube-apiserver: set KUBEBUILDER_ASSETS, or run make kube-assets (needs Go)"; exit 1; }; \
	KUBEBUILDER_ASSETS="$$assets" $(BIN)/pytest -n 2 $(BY_FILE) -m "cluster and not long" $(PYTEST)

soak: venv ## the long forms, before a release (ROUNDS=2: twice as many, SEED=1000: others, MINUTES=10: of churn; an hour)
	@assets="$${KUBEBUILDER_ASSETS:-$$(scripts/kube-assets --path)}" || assets=; \
	KUBEBUILDER_ASSETS="$$assets" $(BIN)/pytest -n 2 --dist load -m long --rounds $(ROUNDS) --seed $(SEED) --minutes $(MINUTES) $(PYTEST)

judges: venv ## clients of others, a real kubelet, a DRA driver of others and KubeVirt, before a release (npm, Go, the network once)
	@scripts/kube-clients >/dev/null
	@scripts/hadolint >/dev/null
	@scripts/kubelet-protos >/dev/null
	@scripts/dra-example-driver >/dev/null
	@scripts/kubevirt >/dev/null
	@KUBEBUILDER_ASSETS="$$(scripts/kube-assets --kubelet)" $(BIN)/pytest -m judges --all-parts $(PYTEST)

libvirt: .venv/libvirt ## libvirt-python in the virtual environment (needs libvirt-dev, python3-dev, gcc, pkg-config)

.venv/libvirt: .venv/installed
	@command -v pkg-config >/dev/null && pkg-config --exists libvirt || { \
		echo "libvirt-python is built here: apt install libvirt-dev python3-dev gcc pkg-config"; exit 1; }
	@scripts/again $(BIN)/python -m pip install --quiet --disable-pip-version-check 'libvirt-python>=9.0'
	@touch $@

test-libvirt: libvirt ## the tests that need libvirt and QEMU (root on Debian: a libvirtd of their own)
	@$(BIN)/pytest -n 2 $(BY_GROUP) -m "libvirt and not long" $(PYTEST)

test-hardware: libvirt ## a host with real devices in a VM: SR-IOV, IOMMU, mdev, vfio-pci (Debian; minutes, and 250 MB once)
	@$(BIN)/python scripts/test-hardware $(HARDWARE)

kube-assets: ## build Kubernetes and etcd for the tests into a cache folder (needs Go, about 10 minutes)
	@scripts/kube-assets

virtctl: ## build KubeVirt's virtctl for the tests into a cache folder (needs Go, about 4 minutes)
	@scripts/virtctl

bench: venv ## side-by-side measurements (KUBEBUILDER_ASSETS adds kube-apiserver)
	@$(BIN)/python -m bench.store
	@$(BIN)/python -m bench.inventory
	@$(BIN)/python -m bench.allocate
	@$(BIN)/python -m bench.vms
	@$(BIN)/python -m bench.migrate
	@$(BIN)/python -m bench.migrate 10 20 2 device
	@$(BIN)/python -m bench.plan
	@$(BIN)/python -m bench.assignment
	@$(BIN)/python -m bench.servers
	@$(BIN)/python -m bench.stall
	@if [ -n "$$KUBEBUILDER_ASSETS" ]; then $(BIN)/python -m bench.cluster; fi

lock: venv ## recompute requirements.lock from pyproject.toml
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --group dev pyproject.toml \
		--no-header --no-annotate --no-emit-index-url -o requirements.lock

clean: ## remove what the other targets made in this folder
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
