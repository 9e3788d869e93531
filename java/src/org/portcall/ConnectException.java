// SPDX-License-Identifier: Apache-2.0
package org.portcall;

/** No session could be opened. */
public class ConnectException extends PortcallException {
    ConnectException(String kind, String message, String trace, Throwable cause) { super(kind, message, trace, cause); }
}
