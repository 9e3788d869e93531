// SPDX-License-Identifier: Apache-2.0
package org.portcall;

/** No answer came in time, or the time of the session is over. */
public final class SessionTimeoutException extends PortcallException {
    SessionTimeoutException(String kind, String message, String trace, Throwable cause) {
        super(kind, message, trace, cause);
    }
}
