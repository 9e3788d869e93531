// SPDX-License-Identifier: Apache-2.0
// Headers of 0.16 and later have a file of this name.
