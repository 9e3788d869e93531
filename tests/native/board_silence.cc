// SPDX-License-Identifier: Apache-2.0
// How the server without Python sees that a client's machine is gone, for tests/rpc/test_lasting.py.
#include <portcall/portcall.h>

#include "board/listen.h"

PORTCALL_EXPORT_TYPED(is_silent, portcall::board::IsSilent)
