// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Exceptions of Java as errors of the core, and back. */
final class Errors {
    private static final Pattern ESCAPES = Pattern.compile("\\e\\[[0-?]*[ -/]*[@-~]|[\\p{Cntrl}&&[^\\n\\t]]");
    // What a server says: the class in front; words of each hop before it.
    private static final Pattern REMOTE = Pattern.compile("(?:RPCError: Error caught from RPC call:\n|RemoteError: )*"
            + "(?:(?!Error:)(\\w*(?:Error|Exception|Warning|Interrupt|Exit|Iteration)): )?(.*)", Pattern.DOTALL);

    /** What C throws: the exception itself where Java threw it, unless that is a checked one. */
    static Throwable make(byte[] kindBytes, byte[] messageBytes, byte[] traceBytes, Throwable original, long facts) {
        if (original instanceof RuntimeException || original instanceof Error) return original;
        String kind = new String(kindBytes, UTF_8), message = new String(messageBytes, UTF_8), trace = new String(traceBytes, UTF_8);
        if (original != null) return new PortcallException(kind, message, trace, original);
        List<Object> items = facts == 0 ? List.of("") : Values.items(facts);
        Object tag = items.isEmpty() ? "" : items.get(0);
        if ("portcall.ArgumentError".equals(tag) && items.size() == 5) {
            return new ArgumentException(message, trace, items.subList(1, 5));
        }
        return make(kind, message, trace, "portcall.RPCError".equals(tag) && items.size() > 1 ? items.get(1).toString() : "");
    }

    private static PortcallException make(String kind, String message, String trace, String peer) {
        switch (kind) {
            case "FunctionNotFoundError": return new FunctionNotFoundException(kind, message, trace, null);
            case "ModuleLoadError": return new ModuleLoadException(kind, message, trace, null);
            case "ConnectError", "KeyMismatchError", "VersionMismatchError":
                return new ConnectException(kind, clean(message), trace, null);
            case "AuthenticationError": return new AuthenticationException(kind, clean(message), trace, null);
            case "SessionBrokenError", "SessionClosedError", "SessionLostError":
                return new SessionBrokenException(kind, clean(message), trace, null);
            case "SessionTimeoutError", "CallTimeoutError": return new SessionTimeoutException(kind, clean(message), trace, null);
            case "RemoteCrashError": return new RemoteCrashException(kind, clean(message), trace, null);
            case "RemoteError": return remote(clean(message), clean(trace), peer);
            default: return new PortcallException(kind, message, trace, null);
        }
    }

    private static PortcallException remote(String text, String trace, String peer) {
        Matcher match = REMOTE.matcher(text);
        boolean told = match.matches();
        String kind = told && match.group(1) != null ? match.group(1) : "", message = told ? match.group(2) : text;
        if (kind.equals("RemoteCrashError")) return new RemoteCrashException(kind, peer + ": " + message, trace, null);
        return new RemoteException(kind, message, trace, peer);
    }

    /** Text of a peer without what a terminal would obey. */
    private static String clean(String text) { return ESCAPES.matcher(text).replaceAll(""); }

    /** Kind, message and trace of an exception, as the core has them. */
    static byte[][] describe(Throwable e) {
        String message = e.getMessage() == null ? e.getClass().getName() : e.getMessage();
        return new byte[][] {kindOf(e).getBytes(UTF_8), message.getBytes(UTF_8), traceOf(e).getBytes(UTF_8)};
    }

    private static String kindOf(Throwable e) {
        if (e instanceof PortcallException ours) return ours.kind().isEmpty() ? "RuntimeError" : ours.kind();
        if (e instanceof IllegalArgumentException) return "ValueError";
        if (e instanceof IndexOutOfBoundsException) return "IndexError";
        if (e instanceof ClassCastException || e instanceof NullPointerException) return "TypeError";
        if (e instanceof IOException || e instanceof java.io.UncheckedIOException) return "OSError";
        if (e instanceof OutOfMemoryError) return "MemoryError";
        if (e instanceof StackOverflowError) return "RecursionError";
        String name = e.getClass().getSimpleName();
        return name.isEmpty() ? "RuntimeError" : name;
    }

    private static String traceOf(Throwable e) {
        StringBuilder trace = new StringBuilder();
        for (StackTraceElement f : e.getStackTrace()) {
            if (f.getClassName().equals(Upcall.class.getName())) break;
            String where = f.getClassName().isEmpty() ? "" : f.getClassName() + ".";
            trace.append("  File \"").append(f.getFileName()).append("\", line ").append(Math.max(0, f.getLineNumber())).append(", in ")
                    .append(where).append(f.getMethodName()).append('\n');
        }
        return trace.toString();
    }

    private Errors() {}
}
