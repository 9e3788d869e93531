// SPDX-License-Identifier: Apache-2.0
// The functions vm.builtin.sample_*, multinomial_from_uniform and apply_*, which hosts of language models call between
// two tokens. What is wrong changes nothing. Sums are of double precision.
#include <algorithm>
#include <cmath>

#include "lm/state.h"

namespace portcall::lm {
namespace {

constexpr DLDataType kFloats{kDLFloat, 32, 1}, kIds{kDLInt, 32, 1};

double Number(const Arguments& args, int32_t i, const char* what, double least, double most) {
  double value = FloatAt(args, i);
  if (value >= least && value <= most) return value;
  args.Refuse(
      {what, " is ", std::to_string(value), " (must be ", std::to_string(least), " to ", std::to_string(most), ")"});
}

constexpr double kLeastTemperature = 1e-6;
double TemperatureAt(const Arguments& args, int32_t i, double least) {
  return Number(args, i, "the temperature", least, 1e6);
}

float* FloatsOf(const DLTensor& tensor) {
  return reinterpret_cast<float*>(static_cast<char*>(tensor.data) + tensor.byte_offset);
}

// A row of numbers: [n] or [1, …, n].
struct Row {
  int64_t size;
  float* floats;
  int32_t* ids() const { return reinterpret_cast<int32_t*>(floats); }
};

Row RowOf(const Arguments& args, int32_t i, const DLTensor& tensor, DLDataType dtype = kFloats) {
  int64_t size = tensor.ndim ? tensor.shape[tensor.ndim - 1] : -1;
  if (tensor.dtype != dtype || static_cast<int64_t>(NumElements(tensor)) != size) {
    std::string type = ToString(dtype);
    args.Refuse({"argument ", i, " must be one row of ", type, ", not ", ToString(tensor.dtype),
                 vm::ExtentsText({tensor.shape, tensor.ndim})});
  }
  return {size, FloatsOf(tensor)};
}

// What a function writes or reads in place.
Row RowAt(const Arguments& args, int32_t i, DLDataType dtype = kFloats) {
  const DLTensor& tensor = args.TensorAt(i);
  if (tensor.device.device_type != kDLCPU || !IsContiguous(tensor))
    args.Fail(i, "a compact tensor in the host's memory");
  return RowOf(args, i, tensor, dtype);
}

// The place of the largest of some logits. None of them may be NaN or +inf; -inf is one that cannot be drawn.
int64_t Largest(const Arguments& args, const Row& logits) {
  int64_t best = 0;
  for (int64_t i = 0; i < logits.size; ++i) {
    if (!(logits.floats[i] < INFINITY)) args.Refuse({"logit ", i, " is ", std::to_string(logits.floats[i])});
    if (logits.floats[i] > logits.floats[best]) best = i;
  }
  if (logits.size == 0 || logits.floats[best] == -INFINITY)
    args.Refuse({"none of ", logits.size, " logits can be drawn"});
  return best;
}

double CheckedChance(const Arguments& args, float chance, int64_t i) {
  if (!(chance >= 0 && chance < INFINITY)) args.Refuse({"probability ", i, " is ", std::to_string(chance)});
  return chance;
}

struct Chance {
  double chance;
  int64_t id;
};
// Of equal ones the first id comes first.
bool Less(const Chance& a, const Chance& b) { return a.chance == b.chance ? a.id > b.id : a.chance < b.chance; }

// The id at `uniform` of the most likely ones that have `top_p` of all together. What chances lack to a sum of 1 is of
// nobody, unless they are `relative`.
template <typename Weigh>
void Sample(const Arguments& args, Result result, const Row& row, double top_p, double uniform, bool relative,
            const Weigh& weigh) {
  std::vector<Chance> chances;
  double all = 0, sum = 0;
  for (int64_t i = 0; i < row.size; ++i) {
    double chance = weigh(i);
    all += chance;
    if (chance > 0) chances.push_back({chance, i});
  }
  if (chances.empty()) args.Refuse({"none of ", row.size, " ids can be drawn"});
  Chance *begin = chances.data(), *end = begin + chances.size(), *kept = end;
  std::make_heap(begin, end, Less);
  double most = relative ? top_p * all : top_p;
  bool whole = most >= all;
  do {  // after this, kept ones are in order from the end, with sums in the places of chances
    std::pop_heap(begin, kept, Less);
    --kept;
    sum += kept->chance;
    kept->chance = sum;
  } while (kept != begin && (whole ? sum <= uniform * all : sum < most));
  Chance* at = whole ? kept : end - 1;
  while (at != kept && at->chance <= uniform * sum) --at;
  result.Int(at->id);
}

void SampleTopP(const Arguments& args, Result result, bool logits) {
  Tensor host = vm::OnHost(args, 0);
  Row row = RowOf(args, 0, *host.dl_tensor());
  int32_t next = logits ? 2 : 1;
  double temperature = logits ? TemperatureAt(args, 1, 0) : 1, top_p = Number(args, next, "top_p", 0, 1),
         uniform = Number(args, next + 1, "the uniform number", 0, 1);
  int64_t best = logits ? Largest(args, row) : 0;
  if (temperature < kLeastTemperature) return result.Int(best);
  Sample(args, result, row, top_p, uniform, logits, [&](int64_t i) {
    double value = row.floats[i];
    return logits ? std::exp((value - row.floats[best]) / temperature) : CheckedChance(args, row.floats[i], i);
  });
}

void SampleFromLogits(const Arguments& args, Result result) {  // (logits, temperature, top_p, uniform)
  args.CheckCount(4, 4);
  SampleTopP(args, result, true);
}

void SampleFromProb(const Arguments& args, Result result) {  // (probabilities, top_p, uniform)
  args.CheckCount(3, 3);
  SampleTopP(args, result, false);
}

void Multinomial(const Arguments& args, Result result) {  // (probabilities: [n, ids], uniform: [n, 1]) -> int64[n, 1]
  args.CheckCount(2, 2);
  Tensor host = vm::OnHost(args, 0), draws = vm::OnHost(args, 1);
  const DLTensor &all = *host.dl_tensor(), &uniform = *draws.dl_tensor();
  if (all.ndim != 2 || all.dtype != kFloats) args.Fail(0, "two dimensions of float32");
  int64_t rows = all.shape[0], ids = all.shape[1];
  if (uniform.dtype != kFloats || static_cast<int64_t>(NumElements(uniform)) != rows)
    args.Fail(1, "a float32 for each row");
  Tensor drawn = Tensor::Empty({rows, 1}, DataTypeOf<int64_t>());
  for (int64_t row = 0; row < rows; ++row) {
    int64_t found = -1;
    float number = FloatsOf(uniform)[row];
    double sum = 0;
    for (int64_t i = 0; i < ids && (found < 0 || sum <= number); ++i) {
      double chance = CheckedChance(args, FloatsOf(all)[row * ids + i], i);
      sum += chance;
      if (chance > 0) found = i;
    }
    if (found < 0 || !(number >= 0 && number <= 1)) args.Refuse({"nothing can be drawn from row ", row});
    static_cast<int64_t*>(drawn.raw_data())[row] = found;
  }
  result.Move(drawn);
}

Row IdsAt(const Arguments& args, int32_t i, int64_t most) {
  Row row = RowAt(args, i, kIds);
  for (int64_t k = 0; k < row.size; ++k) {
    int32_t id = row.ids()[k];
    if (id < 0 || id >= most) args.Refuse({"id ", id, " at ", k, " (must be 0-", most - 1, ")"});
  }
  return row;
}

void RepetitionPenalty(const Arguments& args, Result) {  // (logits, ids, penalty)
  args.CheckCount(3, 3);
  Row logits = RowAt(args, 0), ids = IdsAt(args, 1, logits.size);
  double penalty = Number(args, 2, "the penalty", 1e-6, 1e6);
  for (int64_t k = 0; k < ids.size; ++k) {
    float& logit = logits.floats[ids.ids()[k]];
    logit = static_cast<float>(logit <= 0 ? logit * penalty : logit / penalty);
  }
}

void PresencePenalty(const Arguments& args, Result) {  // (logits, ids, how often each was, presence, frequency)
  args.CheckCount(5, 5);
  Row logits = RowAt(args, 0), ids = IdsAt(args, 1, logits.size), times = RowAt(args, 2, kIds);
  if (times.size != ids.size) args.Refuse({ids.size, " ids, but ", times.size, " frequencies"});
  double presence = Number(args, 3, "the presence penalty", -1e6, 1e6),
         frequency = Number(args, 4, "the frequency penalty", -1e6, 1e6);
  for (int64_t k = 0; k < ids.size; ++k) {
    float& logit = logits.floats[ids.ids()[k]];
    logit = static_cast<float>(logit - (times.ids()[k] * frequency + presence));
  }
}

void Softmax(const Arguments& args, Result) {  // (logits, temperature)
  args.CheckCount(2, 2);
  Row logits = RowAt(args, 0);
  double temperature = TemperatureAt(args, 1, kLeastTemperature), total = 0,
         most = logits.floats[Largest(args, logits)];
  auto power = [&](int64_t i) { return std::exp((logits.floats[i] - most) / temperature); };
  for (int64_t i = 0; i < logits.size; ++i) total += power(i);
  for (int64_t i = 0; i < logits.size; ++i) logits.floats[i] = static_cast<float>(power(i) / total);
}

Builtin sampling_builtins[] = {
    {"vm.builtin.sample_top_p_from_logits", SampleFromLogits},
    {"vm.builtin.sample_top_p_from_prob", SampleFromProb},
    {"vm.builtin.multinomial_from_uniform", Multinomial},
    {"vm.builtin.apply_repetition_penalty", RepetitionPenalty},
    {"vm.builtin.apply_presence_and_frequency_penalty", PresencePenalty},
    {"vm.builtin.apply_softmax_with_temperature", Softmax},
};

}  // namespace
}  // namespace portcall::lm
