// SPDX-License-Identifier: Apache-2.0
#include "vm/machine.h"

#include <algorithm>
#include <chrono>

namespace portcall::vm {
namespace {

constexpr size_t kMostFrames = 1000000;
constexpr size_t kMostCells = size_t{1} << 26;  // 1 GiB of registers
constexpr size_t kMostNotes = 8;                // levels that an error tells of
constexpr int32_t kCellsInPlace = 48;           // arguments of a call for which no memory is allocated
constexpr int64_t kPooled = 2;                  // kind of allocator

}  // namespace

// The registers of one thread: frames of functions that call each other, one after the other, in chunks. Registers
// that are not in use are None.
class RegisterStack {
 public:
  static RegisterStack& OfThread() {
    static thread_local RegisterStack stack;
    return stack;
  }

  Any* Push(size_t n) {
    if (total_ + n > kMostCells)
      Throw("RecursionError",
            {"the functions of the executable call each other too deeply: there is no room for more registers"});
    if (chunks_.empty() || used_ + n > chunks_[top_].size()) NextChunk(n);
    Any* registers = chunks_[top_].data() + used_;
    used_ += n;
    total_ += n;
    return registers;
  }
  void Pop(Any* registers, size_t n) {
    for (size_t i = 0; i < n; ++i) registers[i].reset();
    used_ -= n;
    total_ -= n;
    while (used_ == 0 && top_ > 0) {
      if (chunks_.size() > top_ + 1) chunks_.pop_back();  // one is kept for the next time
      --top_;
      used_ = below_.back();
      below_.pop_back();
    }
  }

 private:
  void NextChunk(size_t n) {
    constexpr size_t kCells = 4096;
    size_t next = chunks_.empty() ? 0 : top_ + 1;
    if (next == chunks_.size()) {
      chunks_.emplace_back(std::max(kCells, n));
    } else if (chunks_[next].size() < n) {
      chunks_[next] = std::vector<Any>(n);
    }
    if (next > 0) below_.push_back(used_);
    top_ = next;
    used_ = 0;
  }

  std::vector<std::vector<Any>> chunks_;
  std::vector<size_t> below_;  // how much is in use of the chunks below
  size_t top_ = 0, used_ = 0, total_ = 0;
};

namespace {

bool IsUsable(const TVMFFIAny& value, const DLTensor& tensor, const Device& device) {
  auto address = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  bool aligned = tensor.device.device_type != kDLCPU || address % kTensorAlignment == 0;
  return value.type_index == kTVMFFITensor && tensor.device == device && IsContiguous(tensor) && aligned;
}

bool IsSequence(const TVMFFIAny& value) { return value.type_index == kTVMFFIArray || value.type_index == kTVMFFIList; }

// The value, with every tensor in it as functions of the executable may have it. `device`: null leaves a tensor where it
// is.
Any Adapted(const TVMFFIAny& value, const Device* device) {
  if (const DLTensor* tensor = TryDLTensor(value)) {
    const Device& to = device ? *device : tensor->device;
    if (IsUsable(value, *tensor, to)) return Any::Copy(value);
    Tensor made = Tensor::Empty(std::vector<int64_t>(tensor->shape, tensor->shape + tensor->ndim), tensor->dtype, to);
    made.CopyFrom(*tensor);
    return made;
  }
  if (!IsSequence(value)) return Any::Copy(value);
  std::vector<Any> items;
  bool same = value.type_index == kTVMFFIArray;
  for (const Any& item : Any::Copy(value).cast<Array<Any>>()) {
    items.push_back(Adapted(item.cell(), device));
    same = same && IsObject(item.cell()) && items.back().cell().v_obj == item.cell().v_obj;
  }
  return same ? Any::Copy(value) : NewTuple(items);
}

}  // namespace

// ---- Setting up ----------------------------------------------------------------------------------------------------

void Machine::SetUp(const Arguments& args) {
  if (args.size() == 0 || args.size() % 3 != 0)
    Throw("ValueError",
          {"a machine is set up with the kind and index of a device and a kind of allocator, for each device"});
  std::lock_guard<std::mutex> lock(mutex_);
  if (ready_) Throw("RuntimeError", {"the machine has been set up before"});
  std::vector<Place> places;
  for (int32_t i = 0; i < args.size(); i += 3) {
    Device device{static_cast<DLDeviceType>(args.Int(i)), static_cast<int32_t>(args.Int(i + 1))};
    const PortcallDeviceAPI* api = nullptr;
    Check(PortcallDeviceGetAPI(device.device_type, &api));  // an error when nothing is known of the kind
    places.push_back({device, args.Int(i + 2) == kPooled ? Pool::Of(device) : nullptr});
  }
  program_ = Link(executable_, ItemsOf(imports_), places[0].device, this);
  places_ = std::move(places);
  ready_ = true;
}

int64_t Machine::Find(std::string_view name) const {
  int64_t function = executable_->Find(name);
  return function >= 0 && executable_->FunctionAt(function).kind == kPacked ? -1 : function;
}

int64_t Machine::Required(std::string_view name) const {
  int64_t function = Find(name);
  if (function < 0) Throw("ValueError", {"the executable has no function '", name, "'"});
  return function;
}

void Machine::CheckReady() const {
  if (!ready_) Throw("RuntimeError", {"the machine was not set up: call vm_initialization first"});
}

const Place& Machine::PlaceAt(int64_t index) const {
  auto count = static_cast<int64_t>(places_.size());
  if (index == -1) index = count - 1;
  if (index < 0 || index >= count) Throw("ValueError", {"the machine has ", count, " devices, not ", index});
  return places_[static_cast<size_t>(index)];
}

void Machine::SetInstrument(PackedFunc instrument) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::swap(instrument_, instrument);
  instrumented_ = instrument_.defined();
}

PackedFunc Machine::Instrument() {
  if (!instrumented_) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  return instrument_;
}

Any Machine::Input(const TVMFFIAny& value) const {
  CheckReady();
  return Adapted(value, &device());
}

// ---- Which machine runs --------------------------------------------------------------------------------------------

// The machine that this thread is in. Built-in functions take no other: a pointer may come from anywhere.
class Machine::Entered {
 public:
  explicit Entered(Machine* machine) : outer_(std::exchange(now_, machine)) {}
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  ~Entered() { now_ = outer_; }
  static Machine* now() { return now_; }

 private:
  Machine* outer_;
  static thread_local Machine* now_;
};
thread_local Machine* Machine::Entered::now_ = nullptr;

Machine* Machine::Current(const TVMFFIAny& cell) {
  if (cell.type_index != kTVMFFIOpaquePtr || !cell.v_ptr || cell.v_ptr != Entered::now())
    Throw("TypeError", {"expected the machine that is running, got ", DescribeValue(cell),
                        ": this function is called by functions of an executable only"});
  return Entered::now();
}

// ---- Running -------------------------------------------------------------------------------------------------------

// The frames of one entry into the machine. A call of one function of the executable by another is one frame more.
class Machine::Frames {
 public:
  struct Frame {
    const Routine* routine;
    const Step* step;
    Any* registers;
  };

  explicit Frames(const Routine& routine) : stack_(RegisterStack::OfThread()), now_(NewFrame(routine)) {}
  Frames(const Frames&) = delete;
  Frames& operator=(const Frames&) = delete;
  ~Frames() {
    Remove(now_);
    for (; !callers_.empty(); callers_.pop_back()) Remove(callers_.back());
  }

  bool outermost() const { return callers_.empty(); }
  const Frame& now() const { return now_; }
  void Enter(const Routine& routine, const Step* from) {
    if (callers_.size() >= kMostFrames)
      Throw("RecursionError",
            {"the functions of the executable call each other more than ", kMostFrames, " levels deep"});
    if (callers_.size() == callers_.capacity())
      callers_.reserve(2 * callers_.size() + 8);  // so that push_back succeeds
    Frame inner = NewFrame(routine);
    now_.step = from;
    callers_.push_back(now_);
    now_ = inner;
  }
  const Frame& Leave() {
    Remove(now_);
    now_ = callers_.back();
    callers_.pop_back();
    return now_;
  }
  const std::vector<Frame>& callers() const { return callers_; }

 private:
  Frame NewFrame(const Routine& routine) {
    return {&routine, routine.steps.data(), stack_.Push(static_cast<size_t>(routine.num_registers))};
  }
  void Remove(const Frame& frame) { stack_.Pop(frame.registers, static_cast<size_t>(frame.routine->num_registers)); }

  RegisterStack& stack_;
  Frame now_;
  std::vector<Frame> callers_;
};

Any Machine::Run(int64_t function, const std::vector<Any>& args, Profile* profile) {
  CheckReady();
  TVMFFIAny result;
  detail::SetCell(&result, kTVMFFINone);
  Invoke(function, reinterpret_cast<const TVMFFIAny*>(args.data()), static_cast<int32_t>(args.size()), profile,
         &result);  // an Any is a cell
  return Any::Steal(result);
}

void Machine::CheckCount(int64_t function, int32_t num_args) const {
  const Function& f = executable_->FunctionAt(function);
  if (num_args == f.num_args) return;
  std::string names;
  for (const std::string& name : f.params) names += (names.empty() ? "" : ", ") + name;
  Throw("TypeError",
        {f.name, "(", names, ") takes ", f.num_args, f.num_args == 1 ? " argument" : " arguments", ", got ", num_args});
}

void Machine::RunCompiled(int64_t function, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  std::vector<Any> registers(static_cast<size_t>(executable_->FunctionAt(function).num_registers));
  for (int32_t i = 0; i < num_args; ++i) registers[static_cast<size_t>(i)] = Any::Copy(args[i]);
  program_->compiled[static_cast<size_t>(function)](static_cast<void*>(this), static_cast<void*>(registers.data()),
                                                    static_cast<void*>(program_->constants.data()),
                                                    static_cast<void*>(program_->functions.data()));
  *result = registers[static_cast<size_t>(num_args)].release();
}

void Machine::InvokeObject(const TVMFFIAny& callee, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  if (callee.type_index == kTVMFFIFunction) {
    auto* func = static_cast<FunctionObj*>(static_cast<TVMFFIObject*>(callee.v_obj));
    return Check(func->cell.safe_call(callee.v_obj, args, num_args, result));
  }
  ClosureObj* closure = TryClosure(callee);
  if (!closure) Throw("TypeError", {"expected a function or a closure, got ", DescribeValue(callee)});
  if (closure->executable != executable_) Throw("ValueError", {"the closure belongs to another executable"});
  if (closure->bound.empty()) return Invoke(closure->function, args, num_args, nullptr, result);
  std::vector<TVMFFIAny> cells(args, args + num_args);
  for (const Any& value : closure->bound) cells.push_back(value.cell());
  Invoke(closure->function, cells.data(), static_cast<int32_t>(cells.size()), nullptr, result);
}

// A call that needs no frame.
void Machine::CallOut(const Step& step, const TVMFFIAny* cells, Profile* profile, TVMFFIAny* out) {
  auto start = profile ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
  if (step.action == Step::kCallFunction) {
    Check(step.call(step.self, cells, step.num_args, out));
    if (step.foreign && (TryDLTensor(*out) || IsSequence(*out))) {
      *out = Adapted(Any::Steal(*out).cell(), nullptr).release();
    }
  } else if (step.action == Step::kCallClosure) {
    InvokeObject(cells[1], cells + 2, step.num_args - 2, out);
  } else {
    Invoke(step.function, cells, step.num_args, profile, out);
  }
  if (!profile) return;
  Profile::Row& row = profile->rows[static_cast<size_t>(step.function)];
  ++row.calls;
  auto spent = std::chrono::steady_clock::now() - start;
  row.nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count();
}

// The instrument gets (function, name, before, result, arguments…); 1 before the call skips it.
void Machine::CallInstrumented(const PackedFunc& instrument, const Step& step, const TVMFFIAny* cells, TVMFFIAny* out) {
  const Any& callee = program_->functions[static_cast<size_t>(step.function)];
  const Any name(executable_->FunctionAt(step.function).name), before(true), after(false);
  std::vector<TVMFFIAny> all = {callee.cell(), name.cell(), before.cell(), Any().cell()};
  all.insert(all.end(), cells, cells + step.num_args);
  Any verdict = instrument.CallPacked(all.data(), static_cast<int32_t>(all.size()));
  if (verdict.type_index() == kTVMFFIInt && verdict.cell().v_int64 == 1) return;
  InvokeObject(callee.cell(), cells, step.num_args, out);
  Any result = Any::Steal(*out);
  detail::SetCell(out, kTVMFFINone);
  all[2] = after.cell();
  all[3] = result.cell();
  instrument.CallPacked(all.data(), static_cast<int32_t>(all.size()));
  *out = result.release();
}

std::string Machine::Describe(const Routine& routine, const Step* step) const {
  const Function& f = executable_->functions[static_cast<size_t>(&routine - program_->routines.data())];
  bool call = step->function >= 0;
  return Join({"in ", f.name, ", instruction ", step - routine.steps.data(), call ? ": " : "",
               call ? executable_->FunctionAt(step->function).name : ""});
}

// One entry into the machine, until the function returns that was entered first.
class Machine::Interpreter {
 public:
  Interpreter(Machine* machine, const Routine& routine, Profile* profile)
      : machine_(*machine), profile_(profile), instrument_(machine->Instrument()), frames_(routine) {
    Resume(frames_.now());
  }

  TVMFFIAny Run(const TVMFFIAny* args, int32_t num_args) {
    for (int32_t i = 0; i < num_args; ++i) registers_[i] = Any::Copy(args[i]);
    try {
      return Loop();
    } catch (const Error& error) {
      AddNotes(error);
      throw;
    }
  }

 private:
  TVMFFIAny Loop() {
    for (;;) {
      switch (step_->action) {
        case Step::kReturnValue: {
          Any value;
          if (step_->target >= 0) value = std::move(registers_[step_->target]);
          if (frames_.outermost()) return value.release();
          Resume(frames_.Leave());
          if (step_->target >= 0) registers_[step_->target] = std::move(value);
          ++step_;
          break;
        }
        case Step::kJump:
          step_ += step_->jump;
          break;
        case Step::kBranch:
          step_ += step_->target >= 0 && registers_[step_->target].cell().v_int64 != 0 ? 1 : step_->jump;
          break;
        case Step::kClear:
          if (!instrument_.defined()) {
            registers_[step_->target].reset();
            ++step_;
            break;
          }
          [[fallthrough]];
        default:
          Call();
      }
    }
  }

  void Call() {
    const Step& step = *step_;
    TVMFFIAny* cells = in_place_;
    if (__builtin_expect(step.num_args > kCellsInPlace, 0)) {
      many_.resize(static_cast<size_t>(step.num_args));
      cells = many_.data();
    }
    for (int32_t i = 0; i < step.num_args; ++i) cells[i] = step.cells[i];
    for (int32_t i = 0; i < step.num_patches; ++i) {
      cells[step.patches[i].position] = registers_[step.patches[i].source].cell();
    }
    TVMFFIAny out;
    detail::SetCell(&out, kTVMFFINone);
    if (__builtin_expect(instrument_.defined(), 0)) {
      machine_.CallInstrumented(instrument_, step, cells, &out);
    } else if (__builtin_expect(!profile_ && step.action == Step::kCallFunction && !step.foreign, 1)) {
      if (step.call(step.self, cells, step.num_args, &out) != 0) ThrowRaised();
    } else if (EnterCallee(step, cells)) {
      return;
    } else {
      machine_.CallOut(step, cells, profile_, &out);
    }
    if (step.target >= 0) {
      registers_[step.target] = Any::Steal(out);
    } else if (IsObject(out)) {
      Release(out.v_obj);
    }
    ++step_;
  }

  // Goes on in the function that is called, if it is one of bytecode.
  bool EnterCallee(const Step& step, const TVMFFIAny* cells) {
    if (step.action == Step::kEnter) {
      Enter(step.function, cells, step.num_args, {});
      return true;
    }
    ClosureObj* closure = step.action == Step::kCallClosure ? TryClosure(cells[1]) : nullptr;
    if (!closure || closure->executable != machine_.executable_) return false;
    if (machine_.executable_->FunctionAt(closure->function).kind != kBytecode) return false;
    Enter(closure->function, cells + 2, step.num_args - 2, closure->bound);
    return true;
  }
  void Enter(int64_t function, const TVMFFIAny* cells, int32_t n, const std::vector<Any>& bound) {
    machine_.CheckCount(function, n + static_cast<int32_t>(bound.size()));
    frames_.Enter(machine_.program_->routines[static_cast<size_t>(function)], step_);
    Resume(frames_.now());
    for (int32_t i = 0; i < n; ++i) registers_[i] = Any::Copy(cells[i]);
    std::copy(bound.begin(), bound.end(), registers_ + n);
  }
  void Resume(const Frames::Frame& frame) {
    registers_ = frame.registers;
    step_ = frame.step;
  }

  // Where the error arose, and through which calls it came.
  void AddNotes(const Error& error) const {
    error.AddNote(machine_.Describe(*frames_.now().routine, step_));
    const auto& callers = frames_.callers();
    size_t shown = std::min(callers.size(), kMostNotes);
    for (size_t i = 0; i < shown; ++i) {
      const Frames::Frame& caller = callers[callers.size() - 1 - i];
      error.AddNote(machine_.Describe(*caller.routine, caller.step));
    }
    if (callers.size() > shown) error.AddNote(Join({"and through ", callers.size() - shown, " more calls"}));
  }

  Machine& machine_;
  Profile* profile_;
  const PackedFunc instrument_;
  Frames frames_;
  Any* registers_ = nullptr;
  const Step* step_ = nullptr;
  TVMFFIAny in_place_[kCellsInPlace];
  std::vector<TVMFFIAny> many_;
};

void Machine::Invoke(int64_t function, const TVMFFIAny* args, int32_t num_args, Profile* profile, TVMFFIAny* result) {
  CheckCount(function, num_args);
  Entered entered(this);
  if (executable_->FunctionAt(function).kind == kCompiled) return RunCompiled(function, args, num_args, result);
  *result = Interpreter(this, program_->routines[static_cast<size_t>(function)], profile).Run(args, num_args);
}

}  // namespace portcall::vm
