// SPDX-License-Identifier: Apache-2.0
package org.portcall;

/** The session is over: it was closed here, or the server or the network went away. */
public final class SessionBrokenException extends PortcallException {
    SessionBrokenException(String kind, String message, String trace, Throwable cause) {
        super(kind, message, trace, cause);
    }
}
