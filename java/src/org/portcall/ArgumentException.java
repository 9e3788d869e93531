// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.util.List;

/** An argument, or a result, is of another type than is expected. */
public final class ArgumentException extends PortcallException {
    private final String function, expected, got;
    private final int position;

    ArgumentException(String function, int position, String expected, String got) {
        this(message(function, position, expected, got), "", List.of(function, (long) position, expected, got));
    }

    ArgumentException(String message, String trace, List<?> facts) {
        super("TypeError", message, trace, null);
        function = String.valueOf(facts.get(0));
        position = facts.get(1) instanceof Long number ? number.intValue() : -1;
        expected = String.valueOf(facts.get(2));
        got = String.valueOf(facts.get(3));
    }

    private static String message(String function, int position, String expected, String got) {
        String where = position < 0 ? "" : "argument #" + position + ": ";
        return (function.isEmpty() ? "" : function + ": ") + where + "expected " + expected + ", got " + got;
    }

    /** The name of the function; empty where it has none. */
    public String function() { return function; }

    /** Which argument, from 0 on; -1 where it is the result, or their number. */
    public int position() { return position; }

    /** What was expected. */
    public String expected() { return expected; }

    /** What was given. */
    public String got() { return got; }
}
