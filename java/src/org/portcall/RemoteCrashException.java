// SPDX-License-Identifier: Apache-2.0
package org.portcall;

/** The session crashed on the server; others go on. */
public final class RemoteCrashException extends PortcallException {
    RemoteCrashException(String kind, String message, String trace, Throwable cause) {
        super(kind, message, trace, cause);
    }
}
