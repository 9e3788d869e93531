// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/replay.h"

TEST("damaged executables are loaded and run, and give errors only") { Replay("vm_executable", FuzzVmExecutable); }
