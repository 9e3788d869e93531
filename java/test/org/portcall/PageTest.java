// SPDX-License-Identifier: Apache-2.0
package org.portcall;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** The blocks of docs/java.md as they stand: what a new user types. */
class PageTest {
    private static final Pattern BLOCKS = Pattern.compile("(<!-- compiled only -->\n)?```(java|cpp)\n(.*?)```", Pattern.DOTALL);
    private static final String IMPORTS = """
            import java.nio.ByteBuffer;
            import java.nio.FloatBuffer;
            import java.nio.file.Path;
            import java.util.Map;
            import java.util.function.LongBinaryOperator;
            import org.portcall.*;
            import org.portcall.Module;
            """;

    /** Runs a source; where this Java has no compiler, that of the JDK compiles it first. */
    private static String java(Path folder, String source) throws Exception {
        String path = System.getProperty("java.class.path").replaceAll("(^|:)(?!/)", "$1" + Support.ROOT + "/"), program = source;
        if (javax.tools.ToolProvider.getSystemJavaCompiler() == null) {
            Support.run(Path.of(System.getProperty("portcall.jdk"), "bin", "javac").toString(), "-cp", path, "-d", folder.toString(),
                    folder.resolve(source).toString());
            path += ":" + folder;
            program = source.replace(".java", "");
        }
        List<String> all = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-cp", path, program));
        Process process = new ProcessBuilder(all).directory(folder.toFile()).redirectErrorStream(true).start();
        process.getOutputStream().close();
        String printed = new String(process.getInputStream().readAllBytes());
        assertEquals(0, process.waitFor(), printed);
        return printed;
    }

    @Test
    void blocksOfThePageRun() throws Exception {
        String page = Files.readString(Support.ROOT.resolve("docs/java.md"));
        Path folder = Files.createDirectory(Support.FOLDER.resolve("page"));
        StringBuilder methods = new StringBuilder(), calls = new StringBuilder();
        int count = 0;
        for (MatchResult found : BLOCKS.matcher(page).results().toList()) {
            String code = found.group(3);
            if (found.group(2).equals("cpp")) {
                Files.writeString(folder.resolve("kernels.cc"), code);
                Support.run(Support.python(), "-m", "portcall", "compile", folder.resolve("kernels.cc").toString(), "-o",
                        folder.resolve("kernels.so").toString());
            } else if (code.contains("public class First")) {
                Files.writeString(folder.resolve("First.java"), code);
                assertTrue(java(folder, "First.java").contains("[2.0, 3.0, 4.0]"));
                ++count;
            } else {
                methods.append("static void block").append(++count).append("() throws Exception {\n").append(code).append("}\n");
                if (found.group(1) == null) calls.append("block").append(count).append("();\n");
            }
        }
        assertTrue(count >= 7);
        try (Support.Server server = new Support.Server()) {
            String source = IMPORTS + "public class Blocks {\npublic static void main(String[] words) throws Exception {\n" + calls + "}\n" + methods + "}\n";
            Files.writeString(folder.resolve("Blocks.java"), source.replace("127.0.0.1:9090", server.address));
            String printed = java(folder, "Blocks.java");
            assertTrue(printed.contains("42") && printed.contains("1.0"), printed);
        }
    }
}
