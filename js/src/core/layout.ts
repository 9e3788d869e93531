// SPDX-License-Identifier: Apache-2.0
// Where the parts of the core's structures lie on wasm32, in bytes (core/include/portcall/c_api.h). No I/O here.

/** A value: a type index, a size and a payload. */
export const CELL = 16;

/** An object's header: two counts, then the index of its type. What the type has follows. */
export const OBJECT_TYPE = 8;
export const BODY = 24;

/** The key in a type's description, after two numbers. */
export const TYPE_KEY = 8;

/** A list of cells: where they are, and how many. */
export const SEQUENCE = { DATA: BODY, SIZE: BODY + 8 } as const;

/** The address of the version's text in the table of the core, after the table's size. */
export const CORE_VERSION = 4;

/** A DLTensor; a tensor object has it as its body. */
export const DLTENSOR = {
  DATA: 0,
  DEVICE_TYPE: 4,
  DEVICE_INDEX: 8,
  DIMENSIONS: 12,
  CODE: 16,
  BITS: 17,
  LANES: 18,
  SHAPE: 20,
  OFFSET: 32,
  SIZE: 40,
} as const;

/** An error object: three texts (an address and a size each), two pointers, and the object that it carries. */
export const ERROR = { KIND: BODY, MESSAGE: BODY + 8, TRACE: BODY + 16, CONTEXT: BODY + 32 } as const;
