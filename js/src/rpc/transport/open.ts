// SPDX-License-Identifier: Apache-2.0
// Opens a connection to an address. The code for each kind is loaded when it is used: browsers have no TCP.

import { isNode } from "../../check.js";
import { ConnectError } from "../../errors.js";
import { type Address, addressText, type Transport } from "./transport.js";

/** Open a connection.
 * @throws ConnectError Nobody listens there. */
export async function openTransport(address: Address, signal: AbortSignal): Promise<Transport> {
  if (address.kind === "websocket") {
    const { openWebSocket } = await import("./websocket.js");
    return openWebSocket(address.url, signal);
  }
  if (!isNode()) {
    throw new ConnectError(`${addressText(address)}: browsers only connect to ws:// and wss:// addresses`, {
      peer: addressText(address),
      reason: "no-tcp",
    });
  }
  const { openSocket } = await import("./tcp.js");
  return openSocket(address, signal);
}
