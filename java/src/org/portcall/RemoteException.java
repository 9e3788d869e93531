// SPDX-License-Identifier: Apache-2.0
package org.portcall;

/** A function of a server raised an error. {@link #kind} is its class there, and its frames come first in the stack trace. */
public final class RemoteException extends PortcallException {
    private final String peer;

    RemoteException(String kind, String message, String trace, String peer) {
        super(kind, message, trace, null);
        this.peer = peer;
    }

    /** The server. */
    public String peer() { return peer; }
}
