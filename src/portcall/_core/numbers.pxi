# SPDX-License-Identifier: Apache-2.0
# Numbers of the ABI that Python's files use, by their names in c_api.h and dlpack.h.
cdef extern from "portcall/c_api.h" nogil:
    enum:
        kTVMFFIAny
        kTVMFFIObject
        kPortcallTypeSelf
        kTVMFFIFieldFlagBitMaskIsStaticMethod
        kTVMFFIFieldFlagBitMaskSEqHashIgnore
        kTVMFFIFieldFlagBitMaskDefaultFromFactory
        kTVMFFIFieldFlagBitMaskReprOff
        kTVMFFIFieldFlagBitMaskCompareOff
        kTVMFFIFieldFlagBitMaskHashOff
        kTVMFFIFieldFlagBitMaskInitOff
        kTVMFFIFieldFlagBitMaskSEqHashDefSimple
        kTVMFFISEqHashKindTreeNode
        kTVMFFISEqHashKindFreeVar
        kTVMFFISEqHashKindDAGNode
        kTVMFFISEqHashKindUniqueInstance
        kDLInt
        kDLFloat
        kDLOpaqueHandle
        kDLBool
        kDLFloat4_e2m1fn
    int64_t kPortcallFieldFlagOptional
    int64_t kPortcallFieldFlagIdentity

TYPE_INDEX = {
    "Any": kTVMFFIAny, "Int": kTVMFFIInt, "Bool": kTVMFFIBool, "Float": kTVMFFIFloat, "DataType": kTVMFFIDataType,
    "Device": kTVMFFIDevice, "Object": kTVMFFIObject, "Str": kTVMFFIStr, "Bytes": kTVMFFIBytes,
    "Function": kTVMFFIFunction, "Shape": kTVMFFIShape, "Tensor": kTVMFFITensor, "Array": kTVMFFIArray,
    "Map": kTVMFFIMap, "Module": kTVMFFIModule, "List": kTVMFFIList, "Dict": kTVMFFIDict,
    "DynObjectBegin": kTVMFFIDynObjectBegin, "Self": kPortcallTypeSelf,
}
FIELD_FLAG = {
    "Writable": kTVMFFIFieldFlagBitMaskWritable, "HasDefault": kTVMFFIFieldFlagBitMaskHasDefault,
    "IsStaticMethod": kTVMFFIFieldFlagBitMaskIsStaticMethod, "SEqHashIgnore": kTVMFFIFieldFlagBitMaskSEqHashIgnore,
    "DefaultFromFactory": kTVMFFIFieldFlagBitMaskDefaultFromFactory, "ReprOff": kTVMFFIFieldFlagBitMaskReprOff,
    "CompareOff": kTVMFFIFieldFlagBitMaskCompareOff, "HashOff": kTVMFFIFieldFlagBitMaskHashOff,
    "InitOff": kTVMFFIFieldFlagBitMaskInitOff, "KwOnly": kTVMFFIFieldFlagBitMaskKwOnly,
    "SEqHashDefSimple": kTVMFFIFieldFlagBitMaskSEqHashDefSimple, "Optional": kPortcallFieldFlagOptional,
    "Identity": kPortcallFieldFlagIdentity,
}
STRUCTURE_KIND = {
    "TreeNode": kTVMFFISEqHashKindTreeNode, "FreeVar": kTVMFFISEqHashKindFreeVar,
    "DAGNode": kTVMFFISEqHashKindDAGNode, "UniqueInstance": kTVMFFISEqHashKindUniqueInstance,
}
DEVICE_TYPE = {"CPU": kDLCPU}
TYPE_CODE = {
    "Int": kDLInt, "UInt": kDLUInt, "Float": kDLFloat, "OpaqueHandle": kDLOpaqueHandle, "Complex": kDLComplex,
    "Bool": kDLBool, "Float4_e2m1fn": kDLFloat4_e2m1fn,
}
