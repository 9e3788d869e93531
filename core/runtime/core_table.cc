// SPDX-License-Identifier: Apache-2.0
// The table through which bindings call the core, and its version.
#include "portcall/c_api.h"

const PortcallCore* PortcallGetCore() {
  static const PortcallCore core = {
      sizeof(PortcallCore),
      PORTCALL_VERSION,
      TVMFFIObjectIncRef,
      TVMFFIObjectDecRef,
      TVMFFIObjectCreateOpaque,
      TVMFFIAnyViewToOwnedAny,
      TVMFFIGetTypeInfo,
      TVMFFIErrorSetRaised,
      TVMFFIErrorMoveFromRaised,
      TVMFFIErrorCreateWithCauseAndExtraContext,
      PortcallFunctionCreate,
      PortcallFunctionGetInfo,
      TVMFFIFunctionGetGlobal,
      TVMFFIFunctionSetGlobal,
      TVMFFIStringFromByteArray,
      TVMFFIBytesFromByteArray,
      TVMFFIBigIntFromByteArray,
      TVMFFIBigIntGetContentByteArray,
      TVMFFIDataTypeFromString,
      TVMFFIDataTypeToString,
      PortcallShapeCreate,
      PortcallArrayCreate,
      PortcallMapCreate,
      PortcallMapSize,
      PortcallMapFind,
      PortcallMapNext,
      TVMFFITensorFromDLPack,
      TVMFFITensorFromDLPackVersioned,
      TVMFFITensorToDLPack,
      TVMFFITensorToDLPackVersioned,
      PortcallTensorFromMemory,
      PortcallTensorAlloc,
      PortcallTensorGetFlags,
      PortcallTensorCopy,
      TVMFFIEnvRegisterCAPI,
      TVMFFITypeKeyToIndex,
      PortcallTypeDefine,
      PortcallObjectCreate,
      PortcallObjectSetField,
      PortcallListCreate,
      PortcallDictCreate,
      PortcallArraySplice,
      PortcallMapSet,
      PortcallMapErase,
      TVMFFITensorCreateUnsafeView,
      TVMFFIEnvGetStream,
      TVMFFITypeRegisterAttr,
      TVMFFIGetTypeAttrColumn,
  };
  return &core;
}

void TVMFFIGetVersion(TVMFFIVersion* out) {
  *out = {0, 1, 13};  // of the ABI that this runtime follows, not of portcall
}
