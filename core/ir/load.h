// SPDX-License-Identifier: Apache-2.0
// What both readers have in common: making nodes from parts that refer to earlier nodes, within limits.
#ifndef PORTCALL_IR_LOAD_H_
#define PORTCALL_IR_LOAD_H_

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "ir/types.h"
#include "portcall/ir.h"

namespace portcall::ir {

class Builder {
 public:
  // fail(reason) throws, with the place.
  using Fail = std::function<void(const std::string& reason)>;

  Builder(LoadLimits limits, Fail fail) : limits_(limits), fail_(std::move(fail)) {}
  // Takes apart what contains itself, unless Finish() was reached.
  ~Builder();

  size_t num_nodes() const { return nodes_.size(); }

  // Parts of the next node. Text and other objects that only the part holds are kept until the node is made.
  void Reserve(size_t n) { parts_.reserve(n); }
  void Begin(size_t num_unchanged) {
    parts_.assign(num_unchanged, kUnchanged);
    owned_.clear();
    depth_ = 0;
  }
  TVMFFIAny* parts() { return parts_.data(); }
  size_t num_parts() const { return parts_.size(); }
  void Append(const TVMFFIAny& part) { parts_.push_back(part); }
  TVMFFIAny Keep(Any value) {
    TVMFFIAny cell = value.cell();
    if (IsObject(cell)) owned_.push_back(std::move(value));
    return cell;
  }
  // An earlier node as a part.
  TVMFFIAny Refer(uint64_t number) {
    if (number >= nodes_.size()) {
      fail_("refers to node " + std::to_string(number) +
            ", which does not come before it: nodes stand after all that they refer to");
    }
    depth_ = std::max(depth_, depths_[number]);
    return nodes_[number].cell();
  }

  // Make the next node of the parts.
  void MakeObject(const Type& type);
  void MakeContainer(int32_t type_index);
  void MakeTensor(DLDataType dtype, const std::vector<int64_t>& shape, const std::function<void(char*)>& fill);
  // The node with this number has to be an empty List or Dict (of this type, if it is not 0). Returns its type.
  int32_t CheckEmpty(uint64_t number, int32_t type_index);
  // Puts the parts into it; that is another node, which is the same object.
  void PutContents(uint64_t number);
  // Checks the fields that hold what was empty when they were written.
  void Finish(Types* types);
  // How many bytes such a tensor has.
  size_t TensorBytes(DLDataType dtype, const std::vector<int64_t>& shape) const;

 private:
  static constexpr TVMFFIAny kUnchanged = {kTVMFFIUnchanged, {0}, {0}};

  template <typename F> void Make(F make);
  void MakeOfData(const Type& type);

  LoadLimits limits_;
  Fail fail_;
  std::vector<Any> nodes_;
  std::vector<uint32_t> depths_;
  std::vector<ObjectRef> filled_;
  std::vector<TVMFFIAny> parts_;
  std::vector<Any> owned_;
  uint32_t depth_ = 0;
};

}  // namespace portcall::ir
#endif  // PORTCALL_IR_LOAD_H_
