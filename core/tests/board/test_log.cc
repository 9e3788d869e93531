// SPDX-License-Identifier: Apache-2.0
#include "board/log.h"

#include <unistd.h>

#include "session/descriptor.h"
#include "tests/check.h"

using namespace portcall::board;

TEST("the rest of what a session printed ends, even where a process prints forever") {
  const Descriptor forever(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  CHECK_EQ(ReadRest(forever.get()).size(), kMostRest);
  int ends[2];
  CHECK_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const Descriptor reading(ends[0]), writing(ends[1]);
  CHECK_EQ(write(writing.get(), "last words", 10), 10);
  CHECK_EQ(ReadRest(reading.get()), "last words");
}
