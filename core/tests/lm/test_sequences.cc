// SPDX-License-Identifier: Apache-2.0
#include "lm/sequences.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "portcall/portcall.h"
#include "tests/check.h"

using namespace portcall;
using namespace portcall::lm;

namespace {

constexpr int kPages = 5, kSize = 4, kMost = 5;

// Sequences as lists of tokens, beside a memory of pages.
struct Model {
  std::vector<std::vector<int>> memory{kPages, std::vector<int>(kSize, -1)};
  std::map<int64_t, std::vector<int>> tokens;
  Sequences sequences{kPages, kSize, false, [this](int32_t from, int32_t to, int64_t count) {
                        std::copy_n(memory[static_cast<size_t>(from)].begin(), count,
                                    memory[static_cast<size_t>(to)].begin());
                      }};
  int next = 0;

  // What the history says. False: an error is expected.
  bool Step(std::mt19937& random) {
    auto draw = [&](unsigned n) { return static_cast<int64_t>(random() % n); };
    int64_t a = draw(kMost), b = draw(kMost), n = draw(9);
    switch (draw(6)) {
      case 0:
        sequences.Add(a);
        return tokens.try_emplace(a).second;
      case 1:
        sequences.Remove(a);
        return tokens.erase(a) == 1;
      case 2: {
        sequences.Fork(a, b, n - 1);
        if (!tokens.count(a) || tokens.count(b)) return false;
        std::vector<int> shared = tokens[a];
        if (n > 0) shared.resize(static_cast<size_t>(n) - 1);
        tokens[b] = shared;
        return true;
      }
      case 3:
        sequences.Pop(a, n);
        if (!tokens.count(a) || n > static_cast<int64_t>(tokens[a].size())) return false;
        tokens[a].resize(tokens[a].size() - static_cast<size_t>(n));
        return true;
      default:
        return Append({a, b}, {n, draw(3)});
    }
  }

  bool Append(std::vector<int64_t> ids, std::vector<int64_t> counts) {
    if (counts[1] == 0) ids.pop_back(), counts.pop_back();
    Batch batch = sequences.Append(ids, counts);
    size_t at = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!tokens.count(ids[i])) return false;
      for (int64_t k = 0; k < counts[i]; ++k, ++at) {
        CHECK_EQ(batch.positions[at], static_cast<int32_t>(tokens[ids[i]].size()));
        memory[static_cast<size_t>(batch.places[at] / kSize)][static_cast<size_t>(batch.places[at] % kSize)] = next;
        tokens[ids[i]].push_back(next++);
      }
    }
    return at == batch.places.size();
  }

  bool Holds() const {
    std::set<int32_t> used, blocks;
    for (const auto& [id, expected] : tokens) {
      std::vector<int> got;
      for (int32_t place : sequences.Places(id))
        got.push_back(memory[static_cast<size_t>(place / kSize)][static_cast<size_t>(place % kSize)]);
      if (got != expected || sequences.Length(id) != static_cast<int64_t>(got.size())) return false;
      std::vector<int32_t> chain = sequences.Chain(id);
      if (sequences.At(chain.back()).refs != 1) return false;
      int64_t start = 0;
      for (int32_t number : chain) {
        const Block& block = sequences.At(number);
        if (block.start != start || static_cast<int64_t>(block.pages.size()) != (block.length + kSize - 1) / kSize)
          return false;
        start += block.length;
        for (int32_t page : block.pages) {
          if (blocks.count(number) == 0 && !used.insert(page).second) return false;  // in two blocks
        }
        blocks.insert(number);
      }
    }
    return used.size() + sequences.FreePages() == kPages;  // none is lost
  }
};

std::string ChainText(const Sequences& sequences, int64_t id) {
  std::string text;
  for (int32_t block : sequences.Chain(id))
    text += (text.empty() ? "" : " ") + std::to_string(sequences.At(block).length);
  return text;
}

}  // namespace

TEST("random histories of sequences are those of a slow model, and no page is lost or in two blocks") {
  std::mt19937 random(7);
  size_t done = 0, full = 0;
  for (int history = 0; history < 4000; ++history) {
    Model model;
    for (int step = 0; step < 30; ++step) {
      try {
        CHECK(model.Step(random));
        ++done;
      } catch (const Error& error) {
        full += error.kind() == "RuntimeError";
      }
      if (!model.Holds()) {
        CHECK(false);
        return;
      }
    }
  }
  CHECK(done > 20000);
  CHECK(full > 100);
}

TEST("a chain is divided into blocks as in TVM's cache") {
  Sequences s(32, 4, false, [](int32_t, int32_t, int64_t) {});
  s.Add(0);
  s.Append({0}, {10});
  s.Fork(0, 1, 6);  // within a page: the page before it is shared
  CHECK_EQ(ChainText(s, 0), "4 6");
  CHECK_EQ(ChainText(s, 1), "4 2");
  s.Append({0}, {2});
  s.Fork(0, 2);  // at the end of a page: the parent goes on in a block of its own
  CHECK_EQ(ChainText(s, 0), "4 8 0");
  CHECK_EQ(ChainText(s, 2), "4 8 0");
  s.Append({0, 2}, {3, 1});
  s.Pop(0, 3);  // a whole block stays, empty
  CHECK_EQ(ChainText(s, 0), "4 8 0");
  s.Pop(0, 1);  // goes up, to a block that is shared: a fork
  CHECK_EQ(ChainText(s, 0), "4 4 3");
  CHECK_EQ(ChainText(s, 2), "4 4 4 1");
  s.Remove(2);
  s.Pop(0, 5);
  CHECK_EQ(s.Length(0), 6);
}

TEST("a batch that does not fit changes nothing") {
  Sequences s(4, 4, false, [](int32_t, int32_t, int64_t) {});
  for (int64_t id : {0, 1}) s.Add(id);
  s.Append({0}, {7});
  CHECK_THROWS(s.Append({0, 1}, {1, 9}), Error);
  CHECK_THROWS(s.Append({1, 2}, {1, 1}), Error);
  CHECK_THROWS(s.Append({1, 1}, {1, 1}), Error);
  CHECK_THROWS(s.Append({1}, {0}), Error);
  CHECK_EQ(s.FreePages(), 2);
  CHECK_EQ(s.TotalLength(), 7);
}

TEST("the number of sequences is bounded") {
  Sequences s(4, 4, false, [](int32_t, int32_t, int64_t) {});
  for (int64_t id = 0; id < 1 << 16; ++id) s.Add(id);
  CHECK_THROWS(s.Add(-1), Error);
  CHECK_THROWS(s.Fork(0, -1), Error);
  s.Remove(7);
  s.Fork(0, -1);
}

TEST("a window slides: pages between the first tokens and the last ones are free again") {
  Sequences s(8, 4, true, [](int32_t, int32_t, int64_t) {});
  s.Add(0);
  s.Slide(0, 8, 2);
  for (int64_t i = 0; i < 40; ++i) {
    Batch batch = s.Append({0}, {1});
    CHECK_EQ(batch.positions[0], static_cast<int32_t>(std::min<int64_t>(i, 8)));
    CHECK_EQ(s.Length(0), std::min<int64_t>(i + 1, 8));
    CHECK(s.FreePages() >= 4);
  }
  CHECK_EQ(s.Places(0).size(), 8);
  CHECK_THROWS(s.Pop(0, 1), Error);
  CHECK_THROWS(s.Fork(0, 1, 1), Error);
  s.Fork(0, 1, 0);
  s.Remove(0);
  s.Remove(1);
  CHECK_EQ(s.FreePages(), 8);
}
