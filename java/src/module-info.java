// SPDX-License-Identifier: Apache-2.0
/** The core of portcall in Java. JDK 24 and later are told {@code --enable-native-access=org.portcall}. */
module org.portcall {
    exports org.portcall;
}
