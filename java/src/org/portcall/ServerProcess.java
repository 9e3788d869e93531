// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The program portcall-server, which `portcall board build` makes: each session is a process of its own, with limits, and a crash ends
 * that session alone. It serves what is uploaded to it, and no functions of Java. It ends with this object, or with Java.
 */
public final class ServerProcess implements AutoCloseable {
    private static final Pattern ADDRESS = Pattern.compile("\"port\": (\\d+), \"address\": \"([^\"]*)\"");
    private static final int MOST_LINES = 1000;
    private final Process process;
    private final Thread hook;
    private final ArrayDeque<String> lines = new ArrayDeque<>();
    private final String address;
    private final int port;

    private ServerProcess(Process process) throws IOException {
        this.process = process;
        hook = new Thread(process::destroy, "portcall-server's end");
        Thread reader = new Thread(this::readLog, "portcall-server's log");
        reader.setDaemon(true);
        reader.start();
        BufferedReader out = process.inputReader();
        String said = out.readLine();
        Matcher found = ADDRESS.matcher(said == null ? "" : said);
        if (!found.find()) {
            stop(Duration.ofSeconds(1));
            join(reader);
            throw new IOException("portcall-server did not start: " + (said == null ? String.join("; ", log()) : said));
        }
        port = Integer.parseInt(found.group(1));
        address = found.group(2);
        Runtime.getRuntime().addShutdownHook(hook);
    }

    private static void join(Thread reader) {
        try {
            reader.join(1000);
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
    }

    /**
     * Starts the program, and waits until it takes clients. The options are those of its --help; without a --port it takes a free one.
     * @throws IOException there is no such program, or it refuses the options: with what it says
     */
    public static ServerProcess start(Path program, String... options) throws IOException {
        List<String> words = new ArrayList<>(List.of(program.toString(), "--json"));
        Collections.addAll(words, options);
        if (words.stream().noneMatch(word -> word.startsWith("--port") || word.startsWith("--unix"))) Collections.addAll(words, "--port", "0");
        Process process = new ProcessBuilder(words).start();
        process.getOutputStream().close();
        return new ServerProcess(process);
    }

    private void readLog() {
        try (BufferedReader in = process.errorReader()) {
            for (String line; (line = in.readLine()) != null; ) {
                synchronized (lines) {
                    if (lines.size() == MOST_LINES) lines.removeFirst();
                    lines.addLast(line);
                }
            }
        } catch (IOException ended) { // with the program
        }
    }

    /** What clients connect to. */
    public String address() { return address; }

    /** The port; 0 for a Unix socket. */
    public int port() { return port; }

    /** Whether the program runs. */
    public boolean isRunning() { return process.isAlive(); }

    /** The last 1,000 lines that it has written to its log. */
    public List<String> log() {
        synchronized (lines) {
            return List.copyOf(lines);
        }
    }

    /** Ends it with its sessions; returns the exit code. */
    public int stop(Duration wait) {
        process.destroy();
        try {
            if (!process.waitFor(wait.toMillis(), TimeUnit.MILLISECONDS)) process.destroyForcibly();
            return process.waitFor();
        } catch (InterruptedException stop) {
            process.destroyForcibly();
            Thread.currentThread().interrupt();
            return -1;
        } finally {
            try {
                Runtime.getRuntime().removeShutdownHook(hook);
            } catch (IllegalStateException ending) { // Java ends, and the hook runs
            }
        }
    }

    /** Ends it with its sessions. */
    @Override public void close() { stop(Duration.ofSeconds(10)); }
}
