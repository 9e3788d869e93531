// SPDX-License-Identifier: Apache-2.0
#include "graph/bundle.h"

namespace portcall::graph {
namespace {

constexpr uint32_t kBundleVersion = 1;

}  // namespace

BundleIndex ReadBundleIndex(std::string_view file, uint64_t index_bytes) {
  std::string_view data = file.substr(0, file.size() - index_bytes);
  Cursor cursor(file.substr(data.size()), "the index of the bundle");
  auto version = cursor.Take<uint32_t>("a version");
  if (version != kBundleVersion) {
    ThrowGraphError({"the bundle has version ", version, ", this runtime knows ", kBundleVersion,
                     "; update portcall, or export the bundle again"});
  }
  BundleIndex index;
  index.name = cursor.Text("the name");
  index.json = cursor.Text("the graph");
  index.plan = cursor.Text("the plan");
  index.params.resize(cursor.Count(8 + 4 + 4 + 8, "the number of parameters"));
  for (Param& param : index.params) {
    param.name = cursor.Text("the name of a parameter");
    size_t elements = ReadDescription(&cursor, &param);
    auto offset = cursor.Take<uint64_t>("where a parameter is");
    size_t nbytes = NumBytes(param.dtype, elements);
    if (offset > data.size() || nbytes > data.size() - offset) cursor.Fail({"a parameter lies outside of the file"});
    if (offset % kTensorAlignment) cursor.Fail({"a parameter is not aligned"});
    param.data = data.substr(offset, nbytes);
  }
  cursor.ExpectEnd();
  return index;
}

}  // namespace portcall::graph
