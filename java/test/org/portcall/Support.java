// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/** What tests need beside Java: libraries in C, programs in Python, servers. The repository is the present folder, or -Dportcall.root. */
final class Support {
    static final Path ROOT = Path.of(System.getProperty("portcall.root", "")).toAbsolutePath();
    static final Path FOLDER = temporary();
    private static Module kernels;

    private static Path temporary() {
        try {
            Path made = Files.createTempDirectory("portcall-java-test-");
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                try (var all = Files.walk(made)) {
                    all.sorted(java.util.Comparator.reverseOrder()).forEach(each -> each.toFile().delete());
                } catch (IOException left) { // in the folder for temporary files
                }
            }));
            return made;
        } catch (IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    static String python() {
        String given = System.getProperty("portcall.python");
        return given != null ? given : ROOT.resolve(".venv/bin/python").toString();
    }

    /** Runs a program to its end, and returns what it printed. */
    static String run(String... words) throws Exception {
        Process process = new ProcessBuilder(words).directory(ROOT.toFile()).redirectErrorStream(true).start();
        process.getOutputStream().close();
        String printed = new String(process.getInputStream().readAllBytes());
        assertTrue(process.waitFor(120, TimeUnit.SECONDS));
        assertEquals(0, process.exitValue(), () -> String.join(" ", words) + ": " + printed);
        return printed;
    }

    /** The words that start a program of Java with the classes of this one. */
    static List<String> java(String path, List<String> options, Class<?> program, String... words) {
        List<String> all = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-cp", path));
        if (Runtime.version().feature() >= 24) all.add("--enable-native-access=ALL-UNNAMED"); // or it warns
        all.addAll(options);
        all.add(program.getName());
        all.addAll(List.of(words));
        return all;
    }

    /** Compiles a source of the repository, unless -Dportcall.compiled names a folder that has it. */
    static Path compile(String source) throws Exception {
        String compiled = System.getProperty("portcall.compiled");
        Path out = (compiled == null ? FOLDER : Path.of(compiled)).resolve(source.replace('/', '-').replaceAll("\\.c$", ".so"));
        if (!Files.exists(out)) {
            run("cc", "-O1", "-fPIC", "-shared", "-pthread", "-Icore/include", "-Ijs/test", source, "-o", out.toString());
        }
        return out;
    }

    /** Kernels as a kernel compiler makes them, and functions that make objects. */
    static synchronized Module kernels() {
        try {
            if (kernels == null) kernels = Module.load(compile("java/test/kernels.c"));
            return kernels;
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    /** A server, until close(). */
    static final class Server implements AutoCloseable {
        final String address;
        private final Process process;

        Server(String... words) throws IOException {
            List<String> all = new ArrayList<>(List.of(python(), "-m", "portcall", "serve", "--json", "--port", "0"));
            all.addAll(List.of(words));
            process = new ProcessBuilder(all).directory(ROOT.toFile()).redirectError(ProcessBuilder.Redirect.DISCARD).start();
            BufferedReader lines = process.inputReader();
            String line = lines.readLine();
            if (line == null) throw new IOException("the server ended");
            address = line.replaceAll(".*\"address\": *\"([^\"]*)\".*", "$1");
        }

        @Override
        public void close() throws IOException {
            process.destroy();
            try {
                if (!process.waitFor(20, TimeUnit.SECONDS)) process.destroyForcibly();
            } catch (InterruptedException stop) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Collects garbage until a condition holds. */
    static boolean collectUntil(BooleanSupplier holds) throws InterruptedException {
        for (int i = 0; i < 200; ++i) {
            if (holds.getAsBoolean()) return true;
            System.gc();
            Handle.Watch.drain();
        }
        return false;
    }

    private Support() {}
}
