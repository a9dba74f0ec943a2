# What people and CI run. `make` lists the targets. What a target needs is installed by scripts/need.sh where it may,
# else named in one line.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help deps program optimised build image shipped sbom notices release licenses deny manifest fmt quick lint test test-unit test-searches test-it test-load test-hostile-objects test-install test-history planted test-parity testbed database-images older model e2e e2e-jobs e2e-clusters e2e-installs e2e-guides e2e-collector e2e-upgrade e2e-scenarios e2e-drains e2e-cordons e2e-lost e2e-rungs e2e-edits e2e-halfway e2e-restored e2e-mistakes e2e-strangers e2e-expiry e2e-refusals e2e-leader e2e-machines e2e-runner e2e-storage e2e-load test-databases test-databases-full fuzz bench bench-serve bench-pilot bench-controller bench-fleet bench-machines bench-tls idle compare-inits kill-store full-stores full-registries test-growth test-at-rest golden ci full test-ci test-page pictures test-monitoring test-monitoring-newest run test-local test-renewals test-shared-ring test-taken-over test-secure-upgrade docs test-quickstart test-quickstart-full clean

CARGO    ?= cargo
unexport RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS
# For tests: what clippy lints is what is built, so that no dependency is compiled twice. Not for the release.
LINTED   := RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings $(CARGO)
# scripts/run_tests.py prints the seconds of each test. Set for this command alone, since scripts/crates.sh goes by variables of cargo's targets.
TESTED   := CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=scripts/run_tests.py $(LINTED) test --no-fail-fast
PROFILE  ?= release
TESTBED  ?= $(CURDIR)/.testbed
TARGET   := x86_64-unknown-linux-gnu
OUT      := $(or $(CARGO_TARGET_DIR),target)/$(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
# What tests run: docs/decisions/0010-one-build-for-tests.md.
PROGRAM  := $(or $(CARGO_TARGET_DIR),target)/$(TARGET)/debug/navigator
# Jobs of e2e, by the bed on which they run: what clusters live through, and what Navigator's own installation does.
CLUSTERS := main_job+elasticsearch_job,deletion_job,secure_job,mistakes_cassandra,mistakes_elasticsearch
INSTALLS := install_job api_job etcd_job
# And e2e. TRIED=release: what is shipped. BEDS=e2e-clusters: one of the two.
TRIED    ?= dev
BEDS     ?= e2e-clusters e2e-installs
DENY     := 0.20.2
# MiB of the shipped binary, at most (docs/decisions/0010-one-build-for-tests.md).
LARGEST  := 28
JOLOKIA  := .cache/agent/jolokia-agent-jvm-2.2.9.jar
GUIDES   := docs/quickstart.md docs/local.md docs/cassandra.md docs/elasticsearch.md docs/hardening.md docs/migration.md docs/machines.md
IMAGE     = $$(bin/navigator manifest --print-image)
# Of the commit, so that one commit makes one image.
LABELS    = --label org.opencontainers.image.version=$$(bin/navigator version --output json | sed -n 's/.*"version": *"\([^"]*\)".*/\1/p') \
            --label org.opencontainers.image.revision=$$(git rev-parse HEAD) \
            --label org.opencontainers.image.created=$$(TZ=UTC git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ)
BUILDAH  := buildah --storage-driver vfs --root $(CURDIR)/.cache/buildah/root --runroot $(CURDIR)/.cache/buildah/run
export NAVIGATOR_TESTBED := $(TESTBED)

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# What the compiler needs, as command=package. (protoc's own definitions are only recommended by its package.)
COMPILES := protoc=protobuf-compiler $(or $(PROTOC_INCLUDE),/usr/include)/google/protobuf/descriptor.proto=libprotobuf-dev cc=gcc python3=python3

deps: $(JOLOKIA) ## installs what a build needs, and brings crates that this machine has compiled already
	@scripts/need.sh $(COMPILES)
	@scripts/crates.sh seed dev

$(JOLOKIA): scripts/jolokia.sh
	@scripts/need.sh mvn=maven
	scripts/jolokia.sh $@
	@touch $@

program: deps # leaves the program of the tests, as `make lint` does, but not the tests
	$(TESTED) --no-run --test fuzz
	@scripts/crates.sh keep dev

optimised: deps
	@scripts/crates.sh seed $(PROFILE)
	$(CARGO) build --profile $(PROFILE) --bin navigator
	@scripts/crates.sh keep $(PROFILE)

# PROFILE=dev: the program of the tests.
build: $(if $(filter dev,$(PROFILE)),program,optimised) ## leaves the static binary at bin/navigator
	@mkdir -p bin && install -m 755 $(OUT)/navigator bin/navigator
	@[ $(PROFILE) != dev ] || strip bin/navigator
	@# (not into a pipe that ldd could be killed by: it is said once, whole)
	@linked=$$(ldd bin/navigator 2>&1 || true); \
	  case "$$linked" in *"statically linked"*) ;; *) echo "bin/navigator is not static: $$linked" >&2; exit 1;; esac
	@size=$$(stat -c %s bin/navigator); echo "bin/navigator: static, $$((size / 1024)) KiB"; \
	  [ "$(PROFILE)" != release ] || [ "$$size" -le $$(($(LARGEST) * 1024 * 1024)) ] || { echo "bin/navigator is over $(LARGEST) MiB" >&2; exit 1; }
	@[ "$(PROFILE)" != release ] || scripts/idle.py check $(OUT)/navigator.map

image: build notices ## leaves the image at bin/navigator-image.tar
	@scripts/need.sh buildah=buildah
	@rm -f bin/navigator-image.tar
	$(BUILDAH) bud --isolation chroot --quiet --timestamp 0 -f Dockerfile -t $(IMAGE) $(LABELS) bin
	$(BUILDAH) push --quiet $(IMAGE) docker-archive:bin/navigator-image.tar:$(IMAGE)
	@rm -rf .cache/buildah
	@echo "bin/navigator-image.tar: $(IMAGE)"

shipped: image $(TESTBED)/bin/kubectl ## what is shipped: built, measured, and put in charge of real clusters on this machine
	@scripts/need.sh mvn=maven python3=python3
	tests/local/run.py bin/navigator

sbom: build ## leaves what the binary consists of at bin/navigator.cdx.json (CycloneDX)
	scripts/sbom.py bin/navigator bin/navigator.cdx.json

notices: deps ## leaves what licences of others ask to be handed on at bin/THIRD-PARTY-NOTICES.txt
	@scripts/need.sh python3=python3 gcc=gcc /usr/share/doc/libc6-dev/copyright=libc6-dev
	@mkdir -p bin && scripts/notices.py bin/THIRD-PARTY-NOTICES.txt

# PROFILE=dev: to try it; of a program that is slower and larger than what is shipped.
release: image sbom ## leaves what a release consists of at bin/release, with checksums; make full comes before it
	@scripts/release.py bin/navigator bin/navigator-image.tar bin/navigator.cdx.json bin/THIRD-PARTY-NOTICES.txt bin/release

licenses: ## holds every crate against deny.toml: licences, sources, banned ones; and against the advisories in scripts/advisories.txt
	@scripts/need.sh python3=python3
	@scripts/sbom.py
	@scripts/advisories.py

deny: ## the same by cargo-deny, against the advisories of today, which scripts/advisories.txt then has, too; needs github.com
	@# (said before a build of minutes; cargo-deny itself would fail too, never pass without them)
	@GIT_TERMINAL_PROMPT=0 timeout 60 git ls-remote --quiet https://github.com/RustSec/advisory-db HEAD >/dev/null || \
	  { echo "make deny: github.com, where known vulnerabilities are listed, cannot be reached: NOTHING was checked" >&2; exit 1; }
	@mkdir -p .cache/deny && rm -rf .cache/deny/advisories
	@git clone --quiet --bare --depth 1 https://github.com/RustSec/advisory-db .cache/deny/advisories
	@scripts/advisories.py renew .cache/deny/advisories
	@[ -x .cache/deny/bin/cargo-deny ] || $(CARGO) install --locked --root .cache/deny cargo-deny@$(DENY)
	PATH="$(CURDIR)/.cache/deny/bin:$$PATH" $(CARGO) deny check

manifest: build ## rewrites deploy/navigator.yaml and deploy/cluster-manager.yaml
	bin/navigator manifest >deploy/navigator.yaml
	bin/navigator manifest --cluster-manager >deploy/cluster-manager.yaml

fmt: ## formats the code
	$(CARGO) fmt --all

# (no Maven: a build without the Jolokia agent can be checked and tested, not installed)
quick: ## format, lints and unit tests without searches: what a change is tried by first; no Go, no Maven
	@scripts/check-machine.sh
	@scripts/need.sh $(COMPILES)
	@mkdir -p $(dir $(JOLOKIA))
	@scripts/crates.sh seed dev
	$(CARGO) fmt --all --check
	@# (some tests wait: two for each processor)
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((2 * $$(nproc)))} $(TESTED) --lib -- --skip searches::
	@scripts/crates.sh keep dev

lint: deps ## format and lints, without changing anything; leaves the tests built
	$(CARGO) fmt --all --check
	@# (that tests would notice faults `make planted` shows, as long as these can be planted)
	@scripts/need.sh python3=python3
	@tests/planted/run.py --check
	@scripts/words.py
	$(TESTED) --no-run --all-targets
	@# (all targets are those that `cargo test` runs; these are not)
	$(TESTED) --no-run --test databases --test history --test inits --test install
	@# (tests are built with what is shipped: docs/decisions/0009-one-set-of-features.md)
	@features() { $(CARGO) tree --locked --edges "no-proc-macro,$$1" --prefix none --format '{p} {f}' | sed 's/ (\*)$$//' | sort -u; }; \
	  shipped=$$(features normal) tested=$$(features normal,dev); \
	  other=$$(comm -23 <(echo "$$shipped") <(echo "$$tested")); \
	  [ -z "$$other" ] || { echo "tests have other features than what is shipped of: $$other" >&2; exit 1; }
	@scripts/crates.sh keep dev

# What tests in `tests/it` start.
SERVERS := $(TESTBED)/bin/etcd $(TESTBED)/bin/kubectl $(TESTBED)/bin/kube-apiserver
# Most of `tests/it` waits for a process: four tests for each processor.
IT_THREADS = RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((4 * $$(nproc)))}

test: lint test-unit test-searches test-it test-load ## format, lints, unit, conformance, HTTP surface, process tests

test-unit: deps ## unit tests, without searches and random walks
	$(TESTED) --lib --bins -- --skip searches::

test-searches: deps ## searches and random walks, in short; `make model` has them at length
	$(TESTED) --lib searches::

test-it: deps $(SERVERS) ## tests/it: conformance, HTTP surface, process tests
	@scripts/need.sh unshare=util-linux setpriv=util-linux perl=perl redis-server=redis-server sshd=openssh-server ssh=openssh-client systemd-analyze=systemd flock=util-linux cc=gcc
	@# (they run the program of the example, which `cargo test` alone would build, too)
	$(LINTED) build --example redis
	$(IT_THREADS) $(TESTED) --test it -- --skip serve::load::

test-load: deps $(SERVERS) ## hostile and heavy load on the API server, and on the controller
	@scripts/need.sh unshare=util-linux setpriv=util-linux
	RUST_TEST_THREADS=2 $(TESTED) --test it serve::load::
	$(MAKE) test-hostile-objects CLUSTERS=5 OBJECTS=180 KINDS="secrets persistentvolumeclaims"

test-hostile-objects: program $(SERVERS) ## hundreds of large objects with our label, beside CLUSTERS (30) clusters of others; a minute to 15
	@scripts/need.sh unshare=util-linux setpriv=util-linux ip=iproute2 openssl=openssl python3=python3
	scripts/bench_fleet/build.sh $(TESTBED)
	CLUSTERS="$(CLUSTERS)" OBJECTS="$(OBJECTS)" KINDS="$(KINDS)" scripts/bench_fleet/hostile.py $(PROGRAM) $(TESTBED)/bin/crowd

test-install: deps $(TESTBED)/bin/helm $(TESTBED)/bin/kubectl $(TESTBED)/bin/etcd ## what Helm and kustomize make of deploy/, beside the manifest; the roles as rendered
	@scripts/need.sh unshare=util-linux
	$(TESTED) --test install

# HISTORY_SEED=7 for one, HISTORY_SEED=1..200 for many.
test-history: deps $(TESTBED)/bin/etcd ## API servers that are killed and cut off, their clients and watchers; 6 histories are judged
	$(TESTED) --test history

# FAULTS="NAME ROOM" for some; they are in tests/planted.
planted: deps $(TESTBED)/bin/etcd $(TESTBED)/bin/kubectl $(TESTBED)/bin/kube-apiserver ## builds faults of one line each in, and shows that the tests catch each of them
	@scripts/need.sh python3=python3 unshare=util-linux
	tests/planted/run.py $(FAULTS)

# FACTOR=200 for two hundred times as much as CI searches.
model: deps ## all searches and random walks of the unit tests, 60 times as far as in CI; prints what they met
	NAVIGATOR_SEARCH_FACTOR=$(or $(FACTOR),60) $(TESTED) --lib searches:: -- --nocapture

# FUZZ=600 for ten minutes.
fuzz: deps ## decodes damaged manifests for 8 s
	$(TESTED) --test fuzz -- $(or $(FUZZ),8)

# NODES=1 for one node.
run: ## three Cassandra nodes on this machine, without Kubernetes; shows what to type next
	@scripts/check-machine.sh run
	@scripts/need.sh mvn=maven $(COMPILES)
	@scripts/fetch.sh $(CARGO) fetch --quiet --locked --target $(TARGET)
	@scripts/crates.sh seed dev
	@# (The program holds the agent. Where crates are compiled already, the agent comes first; else it comes meanwhile, as the database does,
	@# and cargo is asked once more. What a next compilation could reuse takes a fifth longer to compile.)
	@[ ! -e target/debug ] || scripts/jolokia.sh $(JOLOKIA)
	export CARGO_INCREMENTAL=$${CARGO_INCREMENTAL:-0}; \
	  { scripts/jolokia.sh $(JOLOKIA) && scripts/run.sh fetch; } & fetch=$$!; \
	  $(CARGO) build --bin navigator && wait $$fetch && $(CARGO) build --quiet --bin navigator
	@scripts/crates.sh keep dev
	@mkdir -p bin && install -m 755 $(PROGRAM) bin/navigator
	scripts/run.sh bin/navigator

# SCENARIOS="bad-input clients" for those; part `shipped` of full runs all of them.
test-local: program $(TESTBED)/bin/kubectl ## the life of clusters by `navigator local` and kubectl, at most 8 minutes
	@scripts/need.sh mvn=maven python3=python3
	tests/local/run.py $(PROGRAM) $(SCENARIOS)

test-renewals: program $(TESTBED)/bin/kubectl ## certificates of ten minutes are renewed, and CAs replaced, under clients of four releases; 30 minutes; not part of ci
	@scripts/need.sh mvn=maven python3=python3
	tests/local/renewals.py $(PROGRAM)

test-shared-ring: program $(TESTBED)/bin/kubectl ## a ring of two clusters with CAs of their own is encrypted rung by rung, opened again, and asks for logins; 20 minutes; not part of ci
	@scripts/need.sh mvn=maven python3=python3
	tests/local/shared_ring.py $(PROGRAM)

test-taken-over: program $(TESTBED)/bin/kubectl ## a ring whose people made its logins becomes one whose logins are Navigator's, under a client; 10 minutes; not part of ci
	@scripts/need.sh mvn=maven python3=python3
	tests/local/taken_over.py $(PROGRAM)

test-secure-upgrade: program $(TESTBED)/bin/kubectl ## secured clusters go to the next major version under a client; 15 minutes; not part of ci
	@scripts/need.sh mvn=maven python3=python3
	tests/local/secure_upgrade.py $(PROGRAM)

bench: deps $(TESTBED)/bin/etcd ## prints what stores, conversions and whole servers cost
	$(CARGO) bench --bench conversion --bench store
	$(MAKE) bench-serve

# SIZES=1000 ONLY=etcd,sample,get,http2 for a part.
bench-serve: deps $(TESTBED)/bin/etcd $(TESTBED)/bin/kube-apiserver $(TESTBED)/bin/sample-apiserver ## our API server beside others; writes docs/benchmarks.md; under 30 minutes
	@scripts/need.sh setpriv=util-linux
	$(CARGO) bench --bench serve

compare-inits: deps ## prints what our init, tini and dumb-init do, as a table
	@scripts/need.sh unshare=util-linux tini=tini dumb-init=dumb-init dash=dash script=bsdutils
	$(TESTED) --test inits

bench-pilot: deps ## prints what a pilot costs, beside tini, dumb-init and no init
	@scripts/need.sh tini=tini dumb-init=dumb-init perl=perl
	$(CARGO) bench --bench pilot

bench-controller: build ## prints what the controller's caches cost with 100 and 1000 clusters of ten nodes, and their heartbeats
	@scripts/need.sh python3=python3
	@for clusters in 100 1000; do scripts/fleet.py bin/navigator $$clusters; done

# SIZES="10 100" for fewer clusters, PEER=FOLDER for a peer.
bench-fleet: build $(TESTBED)/bin/etcd $(TESTBED)/bin/kubectl $(TESTBED)/bin/kube-apiserver ## our server and controller with 100, 1000 and 10000 scripted pilots, and a peer's manager; minutes to an hour
	@scripts/need.sh unshare=util-linux setpriv=util-linux ip=iproute2 openssl=openssl python3=python3
	scripts/bench_fleet/build.sh $(TESTBED)
	scripts/bench_fleet/run.py bin/navigator $(TESTBED)/bin/crowd $(PEER)

bench-machines: build $(TESTBED)/bin/etcd $(TESTBED)/bin/kubectl $(TESTBED)/bin/kube-apiserver ## what coordinator and agent cost at rest, and peers' programs; 12 minutes
	@scripts/need.sh unshare=util-linux ip=iproute2 openssl=openssl python3=python3
	scripts/bench_machines/run.py bin/navigator $(PEERS)

bench-tls: build $(TESTBED)/bin/kubectl ## what TLS and logins cost: a secure cluster of each database beside an open one; 15 minutes
	@scripts/need.sh mvn=maven python3=python3
	PATH=$(TESTBED)/bin:$$PATH scripts/bench_tls.py bin/navigator $(TESTBED)

# The check of `make build` would stop it just when it is needed.
idle: optimised ## rewrites src/pilot/idle.ld: what pilots run while three Cassandra nodes on this machine idle; needs ptrace
	@scripts/need.sh mvn=maven python3=python3
	export NAVIGATOR_LOCAL_DIR=/var/tmp/navigator-idle; trap '$(OUT)/navigator local down --delete-data' EXIT; \
	  scripts/run.sh $(OUT)/navigator && sleep 60 && \
	  scripts/idle.py write $(OUT)/navigator.map $$($(OUT)/navigator local status -o json | \
	    python3 -c 'import json, sys; print(*(one["pid"] for of in json.load(sys.stdin)["clusters"] for one in of["members"]))')

kill-store: deps ## kills the embedded store 1000 times under load, and lets the power fail 200 times
	$(TESTED) --test it storage::kill:: -- --ignored --nocapture --test-threads 1

full-stores: deps $(TESTBED)/bin/etcd $(TESTBED)/bin/kube-apiserver ## fills each store to its bound; ten servers in a row serve it in the manifest's memory
	$(TESTED) --test it serve::load::full:: -- --ignored --nocapture --test-threads 1

full-registries: deps $(TESTBED)/bin/etcd $(TESTBED)/bin/kube-apiserver ## 500 namespaces get the credentials of ten registries, and nothing is written in a minute at rest
	$(TESTED) --test it registries::scale:: -- --ignored --nocapture --test-threads 1

test-at-rest: deps $(TESTBED)/bin/etcd ## what pilots at rest ask of the API in 20 minutes; not part of ci
	$(TESTED) --test it pilot::at_rest:: -- --ignored --nocapture --test-threads 1

test-growth: program $(TESTBED)/bin/etcd $(TESTBED)/bin/kubectl $(TESTBED)/bin/kube-apiserver $(TESTBED)/bin/kube-controller-manager ## volumes grow, and a quota refuses pods, before a real kube-apiserver; 3 minutes; not part of ci
	@scripts/need.sh unshare=util-linux ip=iproute2 openssl=openssl python3=python3
	folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; cd tests/parity; NAVIGATOR=$(abspath $(PROGRAM)) \
	  unshare $$([ $$(id -u) = 0 ] || echo --map-root-user) --net --pid --fork --kill-child=KILL --mount-proc python3 world.py ours "$$folder/ours" growth

golden = $(strip $(foreach name,$(NAME),$(findstring $(name),$(1))))
# NAME="plugin docs/flags" for all whose path contains one of these, NAME=/ for all. Rooms of tests/it without goldens are left out.
golden: deps ## rewrites expected outputs whose path contains NAME; read the diff, and write why into tests/golden/REASONS
	@scripts/need.sh python3=python3
	@[ -n "$(NAME)" ] || { echo "make golden: say which: NAME=plugin/list, NAME=\"docs/flags docs/metrics\"; a test that fails names its file" >&2; exit 64; }
	$(if $(call golden,$(wildcard deploy/helm/navigator/files/dashboards/*)),python3 scripts/dashboards.py)
	@# (others that differ fail, and stay)
	-UPDATE_GOLDEN="$(NAME)" $(TESTED) --lib databases::tests::
	-UPDATE_GOLDEN="$(NAME)" $(TESTED) --test it -- $$(grep -rl 'golden::check' tests/it | sed -E 's,tests/it/([a-z_]+).*,\1::,' | sort -u)
	$(if $(call golden,tests/golden/plugin/status-upgrade.ansi docs/images/plugin-status.svg),scripts/screenshot.py tests/golden/plugin/status-upgrade.ansi docs/images/plugin-status.svg "kubectl navigator status demo")
	@sed -e 1d -e '/^\$$ /,$$d' tests/golden/plugin/help.txt >.cache/help.txt
	$(if $(call golden,tests/golden/plugin/help.txt docs/images/plugin-help.svg),scripts/screenshot.py .cache/help.txt docs/images/plugin-help.svg "kubectl navigator --help")
	@UPDATE_GOLDEN="$(NAME)" $(TESTED) --quiet --test it -- every_golden_has_a_reason_of_its_content >/dev/null
	@awk '!/^#/ && NF == 2 { print "tests/golden/REASONS: say why it changed: " $$0 }' tests/golden/REASONS

testbed: ## builds a real Kubernetes node's programs from Go modules
	@scripts/need.sh containerd=containerd runc=runc iptables=iptables ip=iproute2 conntrack=conntrack socat=socat kmod=kmod openssl=openssl sysctl=procps gcc=gcc python3=python3
	tests/testbed/build.sh $(TESTBED)
	tests/testbed/helm.sh $(TESTBED)

database-images: ## packs images of the databases, and what jobs of e2e run in
	@scripts/need.sh debootstrap=debootstrap mvn=maven python3=python3 xz=xz-utils gcc=gcc
	tests/e2e/prepare.sh $(TESTBED)

$(TESTBED)/bin/etcd $(TESTBED)/bin/kubectl:
	tests/testbed/build.sh $(TESTBED) $(@F)

# (and the small programs of a node)
$(TESTBED)/bin/kube-apiserver $(TESTBED)/bin/kube-controller-manager:
	@scripts/need.sh gcc=gcc python3=python3
	tests/testbed/build.sh $(TESTBED) $(@F)

$(TESTBED)/bin/sample-apiserver:
	tests/testbed/sample.sh $(TESTBED)

$(TESTBED)/bin/helm:
	tests/testbed/helm.sh $(TESTBED)

test-page: ## the status page in a headless Chromium
	@scripts/need.sh chromium=chromium python3=python3 /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf=fonts-dejavu-core
	tests/page/browser.py

pictures: ## rewrites the pictures of docs/images
	@scripts/need.sh chromium=chromium python3=python3 /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf=fonts-dejavu-core
	tests/page/browser.py --pictures docs/images

# SECTIONS="requests clientgo" for those, and client-go's tests.
test-parity: program $(TESTBED)/bin/etcd $(TESTBED)/bin/kubectl $(TESTBED)/bin/kube-apiserver $(TESTBED)/bin/kube-controller-manager ## kubectl on our server beside CRDs on kube-apiserver, and client-go's own machinery; 2 minutes
	@scripts/need.sh unshare=util-linux setpriv=util-linux ip=iproute2 openssl=openssl python3=python3 gcc=gcc diff=diffutils
	tests/clientgo/build.sh $(TESTBED)
	$(if $(SECTIONS),,cd tests/clientgo && CGO_ENABLED=0 GOFLAGS='-mod=readonly -trimpath' go vet .)
	NAVIGATOR=$(PROGRAM) tests/parity/run.py $(SECTIONS)

test-monitoring: ## alerts and dashboards, by Debian's promtool
	@scripts/need.sh python3=python3
	scripts/promtool.sh debian .cache/promtool-debian
	tests/monitoring/run.sh .cache/promtool-debian

test-monitoring-newest: ## the same by that of the newest Prometheus, which is built from Go modules
	@scripts/need.sh python3=python3
	scripts/promtool.sh newest .cache/promtool-newest
	tests/monitoring/run.sh .cache/promtool-newest

older: deps ## leaves an older release at .cache/older/navigator, to upgrade from
	scripts/older.sh .cache/older/navigator

e2e: testbed database-images ## every job of CI on a real Kubernetes with real databases
	$(MAKE) image PROFILE=$(TRIED)
	$(MAKE) $(if $(JOBS),e2e-jobs,-j2 --output-sync $(BEDS))

# CI tries some of the wrong edits, and watches each for a moment.
e2e-clusters: export MISTAKES = founding keystore replicas
e2e-clusters: export MISTAKES_SECONDS = 20

# (what they need is there)
e2e-clusters e2e-installs e2e-jobs:
	tests/e2e/run.sh $(TESTBED) $(or $(JOBS),$(if $(filter %-installs,$@),$(INSTALLS),$(CLUSTERS)))

e2e-guides: ## the commands of the guides, as typed; not part of ci
	$(MAKE) e2e JOBS="readme_job guide_job"

# (the API is served again 40 s after the collector's start)
e2e-collector: ## the API goes at ten moments under a collector that was just started; not part of ci
	MOMENTS=$(or $(MOMENTS),41,45,50,55,61,67,73,78,86,93) $(MAKE) e2e JOBS=collector_job

e2e-upgrade: older ## an older release is upgraded under a Cassandra, goes back, and comes forth again; not part of ci
	$(MAKE) e2e JOBS=upgrade_job

e2e-scenarios: ## what once gave way there, tried again; not part of ci
	$(MAKE) e2e JOBS=scenarios_cassandra+scenarios_elasticsearch

e2e-drains: ## machines are drained under clients, DRAIN_SECONDS=60 for each cluster; not part of ci
	$(MAKE) e2e JOBS=drain_job

# CORDON_RUNS=20 for twenty drains; CORDON_OF="three restarts datacenters" for some.
e2e-cordons: ## a machine that holds all nodes of clusters is drained by the plugin, and taken back, again and again; not part of ci
	$(MAKE) e2e JOBS=cordon_job

e2e-lost: ## a node and a rack of Cassandra, and two masters of Elasticsearch, are lost for good, and given up; not part of ci
	$(MAKE) e2e JOBS="lost_job voters_job"

e2e-rungs: ## encryption and logins are turned on and off under clients; not part of ci
	tests/testbed/database-image.sh elasticsearch 8.19.4 $(TESTBED)
	$(MAKE) e2e JOBS=rungs_job

e2e-edits: ## what people ask of clusters and take back, under clients: departures, a stop, a pool; not part of ci
	$(MAKE) e2e JOBS="edits_job+pools_job names_job"

e2e-mistakes: ## edits that their people correct or take back: roles, a switch, a version, settings, a keystore; not part of ci
	$(MAKE) e2e JOBS=mistakes_cassandra+mistakes_elasticsearch

# HALFWAY=older for one of its cases.
e2e-halfway: ## a node of Cassandra is lost in the middle of an upgrade to the next major version, and given up; not part of ci
	tests/testbed/database-image.sh cassandra 4.1.10 $(TESTBED)
	$(MAKE) e2e JOBS=halfway_job

e2e-restored: ## a namespace with a Cassandra and an Elasticsearch is deleted, and put back from a copy of its objects; not part of ci
	$(MAKE) e2e JOBS=restored_job

e2e-strangers: ## a Secret of a stranger lies there before its cluster, and a user that is taken out holds a connection open; not part of ci
	$(MAKE) e2e JOBS=strangers_job

e2e-expiry: ## the controller is away until certificates of ten minutes have ended, and all nodes serve again when it is back; not part of ci
	$(MAKE) e2e JOBS=expiry_job

e2e-refusals: ## pods that a quota or Pod Security refuses are told of within a minute; not part of ci
	$(MAKE) e2e JOBS=refusals_job

e2e-storage: ## volumes of Cassandra grow, and a full one holds its node until it has grown; not part of ci
	$(MAKE) e2e JOBS=storage_job

e2e-leader: ## what the controller writes, that one alone writes when the leader is killed or stopped, and a join under kills; not part of ci
	$(MAKE) e2e JOBS=leader_job
	$(MAKE) e2e JOBS=kill_run

e2e-machines: testbed ## hollow machines are upgraded by a coordinator that is killed at every change, and the databases' own is rebooted; not part of ci
	tests/testbed/kubemark.sh $(TESTBED)
	$(MAKE) e2e JOBS=machines_job

e2e-runner: testbed ## the bed's real machine upgrades itself by kubeadm, and goes back where the new kubelet does not start; not part of ci
	tests/testbed/machine.sh $(TESTBED)
	$(MAKE) e2e JOBS=runner_job

e2e-load: ## what somebody with few rights can send through kube-apiserver stops nobody; not part of ci
	$(MAKE) e2e JOBS=load_job

.cache/mdbook: scripts/mdbook.sh
	@scripts/need.sh cc=gcc
	scripts/mdbook.sh $@
	@touch $@

docs: .cache/mdbook ## leaves the book of the docs at .cache/book/html; every link leads somewhere
	@scripts/need.sh python3=python3 cc=gcc
	python3 tests/e2e/guide_test.py
	python3 tests/e2e/guide.py --check $(GUIDES)
	python3 scripts/book.py .cache/book .cache/mdbook

test-quickstart: program $(TESTBED)/bin/kubectl ## types the commands of the quick start in a clean clone, with the program of the tests
	@scripts/need.sh mvn=maven python3=python3
	tests/local/quickstart.sh $(PROGRAM)

test-quickstart-full: deps $(TESTBED)/bin/kubectl ## the same with `make run` whole, which compiles Navigator; not part of ci
	tests/local/quickstart.sh

# SCENARIOS=cassandra for those of this database.
test-databases: deps ## the pilots against real databases on loopback, at most 12 minutes
	@scripts/need.sh mvn=maven
	$(TESTED) --test databases -- --quick $(SCENARIOS)

# SCENARIOS="cassandra-life cassandra-kept" for those; the page's rows of others stay.
test-databases-full: deps ## the same with every scenario; rewrites docs/test-databases.md
	@scripts/need.sh mvn=maven iptables=iptables
	$(TESTED) --test databases -- --full --report docs/test-databases.md $(SCENARIOS)

# STEPS="lint test" for those, and what they need.
ci: ## all that a change must pass, with a table of how long each step took
	@scripts/check-machine.sh ci
	@scripts/need.sh python3=python3
	scripts/ci.py $(STEPS)

# PARTS="shipped model" for those.
full: ## at length what ci shows in short, hours of it; goes on where it was interrupted; writes docs/tested.md
	@scripts/need.sh python3=python3
	scripts/full.py $(PARTS)

test-ci: deps ## the cache of compiled crates hides nothing; the test bed is not built in part; a step that hangs is ended; a release lacks nothing; a crate with a known fault is refused
	@scripts/need.sh python3=python3
	tests/ci/crates.sh
	tests/ci/testbed.sh
	tests/ci/check_machine.sh
	tests/ci/steps.py
	tests/ci/run_tests.py
	tests/ci/full.py
	tests/ci/release.py
	tests/ci/advisories.py

clean: ## forgets what was built (not the testbed)
	rm -rf target bin .cache
