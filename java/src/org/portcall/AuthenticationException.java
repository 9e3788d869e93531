// SPDX-License-Identifier: Apache-2.0
package org.portcall;

/** A token is wrong or missing. */
public final class AuthenticationException extends ConnectException {
    private static final long serialVersionUID = 1;

    AuthenticationException(String kind, String message, String trace, Throwable cause) {
        super(kind, message, trace, cause);
    }
}
