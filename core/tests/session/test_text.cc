// SPDX-License-Identifier: Apache-2.0
#include "session/text.h"

#include "tests/check.h"

using namespace portcall::session;

TEST("a text is split at any of its separators, into parts that are not empty") {
  CHECK_EQ(Join(Split("/lib:/usr/lib", ":")), "/lib,/usr/lib");
  CHECK_EQ(Join(Split(" \ta  b\r", " \t\r")), "a,b");
  CHECK_EQ(Join(Split("a", ",")), "a");
  CHECK(Split("", ",").empty());
  CHECK(Split(",,", ",").empty());
}
