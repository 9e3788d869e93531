// SPDX-License-Identifier: Apache-2.0
// Classes of users may have names that the headers have, too.
#include "portcall/portcall.h"
#include "tests/check.h"

// No `using namespace portcall`: in this namespace these names are the user's.
namespace names {

// A node, its reference class, and a value type; all are methods' classes.
#define NAMES_CLASS(Name)                                                                                     \
  struct Name##Obj : portcall::Object {                                                                       \
    PORTCALL_OBJECT(Name##Obj, portcall::Object, "test_names." #Name)                                         \
    int64_t value = 1;                                                                                        \
    int64_t Get() const { return value; }                                                                     \
    void Set(int64_t to) { value = to; }                                                                      \
    static void Describe(portcall::Description<Name##Obj>* type) { type->field("value", &Name##Obj::value); } \
  };                                                                                                          \
  class Name : public portcall::ObjectRef {                                                                   \
    PORTCALL_OBJECT_REF(Name, Name##Obj)                                                                      \
    int64_t Twice() const { return 2 * node()->value; }                                                       \
  };                                                                                                          \
  PORTCALL_REGISTER_OBJECT(Name##Obj);                                                                        \
  PORTCALL_REGISTER_GLOBAL("test_names." #Name).set_body_typed([] { return portcall::Make<Name>(); });        \
  PORTCALL_REGISTER_GLOBAL("test_names." #Name ".get").set_body_method<Name>(&Name##Obj::Get);                \
  PORTCALL_REGISTER_GLOBAL("test_names." #Name ".set").set_body_method<Name>(&Name##Obj::Set);                \
  PORTCALL_REGISTER_GLOBAL("test_names." #Name ".twice").set_body_method<Name>(&Name::Twice);                 \
  PORTCALL_REGISTER_GLOBAL("test_names." #Name ".defined").set_body_method<Name>(&Name::defined);

NAMES_CLASS(Node)
NAMES_CLASS(Parent)
NAMES_CLASS(Object)
NAMES_CLASS(Array)
NAMES_CLASS(Map)
NAMES_CLASS(Function)
NAMES_CLASS(Value)
NAMES_CLASS(Module)
NAMES_CLASS(Tensor)
NAMES_CLASS(Type)
NAMES_CLASS(Field)
NAMES_CLASS(Error)
NAMES_CLASS(Any)
NAMES_CLASS(Args)
NAMES_CLASS(Registry)
NAMES_CLASS(TypeTraits)

// In a node and in a reference, too, they are the user's.
struct TreeObj : portcall::Object {
  PORTCALL_OBJECT(TreeObj, portcall::Object, "test_names.Tree")
  Node root = portcall::Make<Node>();
  Parent parent = portcall::Make<Parent>();
};
class Tree : public portcall::ObjectRef {
  PORTCALL_OBJECT_REF(Tree, TreeObj)
  Node Root() const { return node()->root; }
  Parent Above() const { return node()->parent; }
};
PORTCALL_REGISTER_GLOBAL("test_names.Tree.root").set_body_method(&Tree::Root);

}  // namespace names

TEST("classes may be named as those of the headers") {
  for (const char* name : {"Node", "Parent", "Object", "Array", "Map", "Function", "Value", "Module", "Tensor", "Type",
                           "Field", "Error", "Any", "Args", "Registry", "TypeTraits"}) {
    const std::string prefix = std::string("test_names.") + name;
    const portcall::Any made = portcall::Registry::GetRequired(prefix)();
    portcall::Registry::GetRequired(prefix + ".set")(made, 21);
    CHECK_EQ(portcall::Registry::GetRequired(prefix + ".get")(made).cast<int64_t>(), 21);
    CHECK_EQ(portcall::Registry::GetRequired(prefix + ".twice")(made).cast<int64_t>(), 42);
    CHECK(portcall::Registry::GetRequired(prefix + ".defined")(made).cast<bool>());
  }
  const auto tree = portcall::Make<names::Tree>();
  CHECK_EQ(portcall::Registry::GetRequired("test_names.Tree.root")(tree).cast<names::Node>()->value, 1);
  CHECK_EQ(tree.Above()->value, 1);
}
