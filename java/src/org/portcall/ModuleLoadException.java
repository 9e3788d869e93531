// SPDX-License-Identifier: Apache-2.0
package org.portcall;

/** A library cannot be loaded; the message says why. */
public final class ModuleLoadException extends PortcallException {
    ModuleLoadException(String kind, String message, String trace, Throwable cause) {
        super(kind, message, trace, cause);
    }
}
