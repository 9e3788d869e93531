// SPDX-License-Identifier: Apache-2.0
package org.portcall;

/** No function has the name that was asked for. */
public final class FunctionNotFoundException extends PortcallException {
    FunctionNotFoundException(String kind, String message, String trace, Throwable cause) {
        super(kind, message, trace, cause);
    }
}
