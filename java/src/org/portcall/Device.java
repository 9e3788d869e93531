// SPDX-License-Identifier: Apache-2.0
package org.portcall;

/**
 * Where tensors lie and kernels run, in this process. Those of a session are given by {@link Session#device}.
 * @param type DLPack's kind: 1 for the host, 2 for CUDA, 4 for OpenCL
 * @param id which one of the kind
 */
public record Device(int type, int id) {
    /** The host. */
    public static final Device CPU = new Device(1, 0);

    /** An NVIDIA GPU. */
    public static Device cuda(int id) { return new Device(2, id); }

    /** An OpenCL device. */
    public static Device opencl(int id) { return new Device(4, id); }

    Device(long word) { this((int) word, (int) (word >> 32)); }

    long word() { return type & 0xffffffffL | (long) id << 32; }

    @Override
    public String toString() {
        String name = type == 1 ? "cpu" : type == 2 ? "cuda" : type == 4 ? "opencl" : "device " + type;
        return name + ":" + id;
    }
}
