// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;

/** Finds the native libraries: in a folder that a property names, where the system keeps such, or in a jar. */
final class Loader {
    private static final String FOLDER = "portcall.library.path", TEMPORARY = "portcall.tmpdir", LOADED = "portcall.loaded";
    private static final String CORE = "portcall", BINDING = "portcall_jni";
    private static final String[] OPENED_LATER = {"portcall_graph", "portcall_session", "portcall_vm", "portcall_lm", "portcall_ir"};

    /** Loads the core and the binding, once in a process: each other copy would have functions and objects of its own. */
    static void load() {
        synchronized (System.class) { // the same for all class loaders
            if (System.getProperty(LOADED) != null) {
                throw new UnsatisfiedLinkError("portcall is loaded in this process already, by " + System.getProperty(LOADED)
                        + "; put portcall.jar where one class loader serves all that use it");
            }
            find();
            System.setProperty(LOADED, "the class loader " + Loader.class.getClassLoader());
        }
    }

    private static void find() {
        String folder = System.getProperty(FOLDER);
        if (folder != null) {
            Path path = Path.of(folder).toAbsolutePath();
            loadFile(path.resolve(System.mapLibraryName(CORE)));
            Path binding = path.resolve(System.mapLibraryName(BINDING));
            if (Files.exists(binding)) loadFile(binding);
            else loadFile(unpack(BINDING)); // the folder of an installed wheel
            return;
        }
        String tried;
        try {
            System.loadLibrary(BINDING); // which brings the core along: Android, or -Djava.library.path
            return;
        } catch (UnsatisfiedLinkError error) {
            tried = error.getMessage();
        }
        try {
            Path unpacked = unpack(CORE, BINDING);
            loadFile(unpacked.resolveSibling(System.mapLibraryName(CORE)));
            loadFile(unpacked.resolveSibling(System.mapLibraryName(BINDING)));
        } catch (UnsatisfiedLinkError error) {
            throw new UnsatisfiedLinkError(error.getMessage() + " (before: " + tried + ")");
        }
    }

    private static void loadFile(Path file) {
        try {
            System.load(file.toString());
        } catch (UnsatisfiedLinkError error) {
            throw new UnsatisfiedLinkError("cannot load " + file + ": " + error.getMessage() + "; -D" + FOLDER
                    + "=DIR names a folder with portcall's libraries for " + platform() + ", -D" + TEMPORARY
                    + "=DIR one, not mounted noexec, for those of the jar");
        }
    }

    /** As the jars' folders are named: linux-x64. */
    static String platform() {
        String system = System.getProperty("os.name").toLowerCase(), machine = System.getProperty("os.arch");
        return system + "-" + switch (machine) {
            case "amd64", "x86_64" -> "x64";
            case "aarch64" -> "arm64";
            default -> machine;
        };
    }

    /** Copies libraries out of the jar into a new folder, which goes when Java ends; returns the first one's copy. */
    private static Path unpack(String... needed) {
        String given = System.getProperty(TEMPORARY);
        try {
            // Of this user alone, and new, or an error. (Java's own temporary names start its cryptography: half of the time to load.)
            Path folder = Files.createDirectory(Path.of(given == null ? System.getProperty("java.io.tmpdir") : given, "portcall-" + System.nanoTime()),
                    PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------")));
            folder.toFile().deleteOnExit(); // in reverse order: the folder after its files
            for (String name : needed) {
                if (!unpackTo(folder, name)) {
                    throw new UnsatisfiedLinkError("no jar of the class path has portcall's libraries for " + platform() + "; add portcall-"
                            + platform() + ".jar, or name their folder by -D" + FOLDER + "=DIR");
                }
            }
            if (needed.length > 1) for (String name : OPENED_LATER) unpackTo(folder, name);
            return folder.resolve(System.mapLibraryName(needed[0]));
        } catch (IOException error) {
            throw new UnsatisfiedLinkError("cannot unpack portcall's libraries into "
                    + (given == null ? System.getProperty("java.io.tmpdir") : given) + ": " + error + "; -D" + TEMPORARY
                    + "=DIR names another folder");
        }
    }

    private static boolean unpackTo(Path folder, String name) throws IOException {
        String file = System.mapLibraryName(name);
        // By the class loader: a class of a module finds what is in its module alone.
        try (InputStream in = Loader.class.getClassLoader().getResourceAsStream("META-INF/native/" + platform() + "/" + file)) {
            if (in == null) return false;
            File copy = folder.resolve(file).toFile();
            copy.deleteOnExit();
            try (FileOutputStream out = new FileOutputStream(copy)) { // Files.copy() takes 5 ms more, by its classes
                in.transferTo(out);
            }
            return true;
        }
    }

    private Loader() {}
}
