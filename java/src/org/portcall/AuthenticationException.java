// SPDX-License-Identifier: Apache-2.0
package org.portcall;

/** A token is wrong or missing. */
public final class AuthenticationException extends ConnectException {
    AuthenticationException(String kind, String message, String trace, Throwable cause) {
        super(kind, message, trace, cause);
    }
}
