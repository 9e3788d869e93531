// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Each in a process of its own, since a process loads the libraries once. */
class LoaderTest {
    private static final int MACHINE = 18; // where an ELF file says so

    /** Calls a function; with an argument, again in another class loader. */
    static final class Program {
        public static void main(String[] words) throws Exception {
            System.out.println(Portcall.get("testing.echo").callLong(7) + " in " + Portcall.class.getModule());
            if (words.length == 0) return;
            URL[] places = Arrays.stream(System.getProperty("java.class.path").split(File.pathSeparator)).map(Program::url).toArray(URL[]::new);
            try (URLClassLoader other = new URLClassLoader(places, null)) {
                other.loadClass("org.portcall.Portcall").getMethod("get", String.class).invoke(null, "testing.echo");
            }
        }

        private static URL url(String path) {
            try {
                return Path.of(path).toUri().toURL();
            } catch (java.net.MalformedURLException never) {
                throw new IllegalArgumentException(never);
            }
        }
    }

    record Ended(int code, String printed) {}

    static Ended run(boolean withLibraries, List<String> options, String... words) throws Exception {
        String path = String.join(File.pathSeparator, Arrays.stream(System.getProperty("java.class.path").split(File.pathSeparator))
                .filter(each -> withLibraries || !each.contains("portcall-linux")).toList());
        Process process = new ProcessBuilder(Support.java(path, options, Program.class, words)).redirectErrorStream(true).start();
        String printed = new String(process.getInputStream().readAllBytes());
        return new Ended(process.waitFor(), printed);
    }

    @Test
    void unpacksTheJarIntoAFolderThatGoes() throws Exception {
        Path folder = Files.createDirectory(Support.FOLDER.resolve("unpacked"));
        Ended ended = run(true, List.of("-Dportcall.tmpdir=" + folder));
        assertEquals(0, ended.code(), ended::printed);
        try (var left = Files.list(folder)) {
            assertFalse(left.findAny().isPresent());
        }
    }

    @Test
    void isAModule() throws Exception {
        String[] path = System.getProperty("java.class.path").split(File.pathSeparator);
        String jar = Arrays.stream(path).filter(each -> each.endsWith("portcall.jar")).findFirst().orElseThrow();
        String tests = Path.of(LoaderTest.class.getProtectionDomain().getCodeSource().getLocation().toURI()).toString();
        Ended ended = run(true, List.of("-p", jar, "--add-modules", "org.portcall", "--patch-module", "org.portcall=" + tests));
        assertEquals(0, ended.code(), ended::printed);
        assertTrue(ended.printed().contains("module org.portcall"), ended::printed);
    }

    @Test
    void takesAFolderThatIsNamed() throws Exception {
        Path folder = Support.ROOT.resolve("build/java/native").resolve(Loader.platform()).resolve("META-INF/native").resolve(Loader.platform());
        Ended ended = run(false, List.of("-Dportcall.library.path=" + folder));
        assertEquals(0, ended.code(), ended::printed);
    }

    @Test
    void namesTheRemedyWhereNothingIsFound() throws Exception {
        Path text = Files.createDirectory(Support.FOLDER.resolve("no-library"));
        Files.writeString(text.resolve(System.mapLibraryName("portcall")), "not a library");
        for (List<String> options : List.of(List.<String>of(), List.of("-Dportcall.library.path=/no/such/folder"),
                List.of("-Dportcall.library.path=" + text))) {
            Ended ended = run(false, options);
            assertEquals(1, ended.code());
            assertTrue(ended.printed().contains("-Dportcall.library.path=DIR"), ended::printed);
        }
        Path other = Files.createDirectory(Support.FOLDER.resolve("other-machine"));
        byte[] core = Loader.class.getResourceAsStream("/META-INF/native/" + Loader.platform() + "/" + System.mapLibraryName("portcall")).readAllBytes();
        core[MACHINE] ^= 0x55; // what an ELF file is for
        Files.write(other.resolve(System.mapLibraryName("portcall")), core);
        Ended wrong = run(true, List.of("-Dportcall.library.path=" + other));
        assertEquals(1, wrong.code());
        assertTrue(wrong.printed().contains("portcall's libraries for " + Loader.platform()), wrong::printed);
        Ended ended = run(true, List.of("-Dportcall.tmpdir=/no/such/folder"));
        assertEquals(1, ended.code());
        assertTrue(ended.printed().contains("-Dportcall.tmpdir=DIR"), ended::printed);
    }

    @Test
    void isLoadedOnceInAProcess() throws Exception {
        Ended ended = run(true, List.of(), "again");
        assertEquals(1, ended.code());
        assertTrue(ended.printed().contains("loaded in this process already"), ended::printed);
    }
}
