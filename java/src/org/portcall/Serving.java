// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;

/**
 * Functions of this process, for clients of portcall and TVM. Each session runs in a thread of its own, all of them in this process:
 * what one of them crashes, all lose. Code of strangers is for {@link ServerProcess}.
 */
public final class Serving implements AutoCloseable {
    private static final PackedFunc LISTEN = Portcall.get("portcall.rpc.Listen");
    private static final double HANDSHAKE_SECONDS = 10;
    private final int port;
    private final PackedFunc end;

    private Serving(int port, PackedFunc end) {
        this.port = port;
        this.end = end;
    }

    /** Where to listen, and whom to let in. */
    public static final class Options {
        private String host = "127.0.0.1", key = "", token = "";
        private int port;
        private Consumer<String> log;

        /** The address to listen on: 127.0.0.1 unless it is said. Others need a token. */
        public Options host(String address) { host = address; return this; }

        /** The port; 0 takes a free one. */
        public Options port(int number) { port = number; return this; }

        /** The key that clients ask for. */
        public Options key(String words) { key = words; return this; }

        /** What both sides know, and what never travels. Null, or empty text, for none. */
        public Options token(String secret) { token = secret == null ? "" : secret; return this; }

        /** Hears, in the threads of sessions, which ones open, end and are refused. */
        public Options log(Consumer<String> listener) { log = listener; return this; }
    }

    /** Options to fill. */
    public static Options options() { return new Options(); }

    /** Serves functions whose names match, such as "demo.*", on a free port of this machine. */
    public static Serving listen(String... patterns) { return listen(options(), patterns); }

    /**
     * Serves functions whose names match the patterns, until it is closed.
     * @throws PortcallException the port is taken
     * @throws IllegalArgumentException others than this machine could call the functions, and there is no token
     */
    public static Serving listen(Options options, String... patterns) {
        boolean local = options.host.equals("localhost") || options.host.equals("::1") || options.host.startsWith("127.");
        if (!local && options.token.isEmpty()) {
            throw new IllegalArgumentException("anyone who reaches " + options.host + " could call these functions; give it a token");
        }
        Consumer<String> log = options.log;
        PackedFunc told = log == null ? null : PackedFunc.of(facts -> {
            log.accept("session " + facts.asLong(1) + " " + facts.asString(0) + ": " + facts.asString(2));
            return null;
        });
        List<?> made = LISTEN.callAs(List.class, options.host, options.port, List.of(patterns), options.key, options.token,
                HANDSHAKE_SECONDS, told);
        return new Serving(((Number) made.get(0)).intValue(), (PackedFunc) made.get(1));
    }

    /** The port that clients connect to. */
    public int port() { return port; }

    /** Ends all sessions, and waits for functions that run. Returns how many go on. */
    public long close(Duration wait) { return end.callLong(wait.toNanos() / 1e9); }

    /** Ends all sessions, and waits half a minute for functions that run. */
    @Override public void close() { close(Duration.ofSeconds(30)); }
}
