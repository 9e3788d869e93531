// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * An error of the core, or of a function in another language. The frames over there come first in its stack trace. It is
 * unchecked, as are all that derive from it.
 */
public class PortcallException extends RuntimeException {
    private static final Pattern FRAME = Pattern.compile("  File \"(.*)\", line (\\d+), in (.*)");
    private static final int MOST_FRAMES = 100;
    private final String kind, trace;

    /** An error for callers in other languages, which know it by its kind, such as "ValueError". */
    public PortcallException(String kind, String message) { this(kind, message, "", null); }

    PortcallException(String kind, String message, String trace, Throwable cause) {
        super(message, cause);
        this.kind = java.util.Objects.requireNonNull(kind, "the kind");
        this.trace = trace;
        List<StackTraceElement> frames = new ArrayList<>();
        for (Matcher m = FRAME.matcher(trace); m.find() && frames.size() < MOST_FRAMES; ) {
            frames.add(new StackTraceElement("", m.group(3), m.group(1), line(m.group(2))));
        }
        if (frames.isEmpty()) return;
        frames.addAll(List.of(getStackTrace()));
        setStackTrace(frames.toArray(new StackTraceElement[0]));
    }

    private static int line(String digits) { return digits.length() < 10 ? Integer.parseInt(digits) : 0; }

    /** The class over there, such as "ValueError". */
    public String kind() { return kind; }

    /** The frames over there as text, the most recent first; empty where they are not told. */
    public String trace() { return trace; }

    @Override
    public String toString() {
        return getClass().getName() + ": " + (kind.isEmpty() ? "" : kind + ": ") + getMessage();
    }
}
