// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "engine/sizes.h"

namespace padfree::engine {

// Which sizes are worth a CUDA graph, and which graphs to keep, by the rules of runtime/gpu/graph_cache.py. The number
// of graphs is bounded; the least recently used one is evicted first, and only if it is idle.
template <class Key, class Kept>
class GraphCache {
 public:
  static constexpr size_t kMostGraphs = 256;
  static constexpr size_t kMostSeen = 8 * kMostGraphs;             // remembered sizes without a graph
  static constexpr int64_t kIdleRuns = 32 * int64_t{kMostGraphs};  // a graph is idle after this many runs without it
  static constexpr int kComes = 2;                                 // a size is worth a graph when it comes this often,
  // and where a slightly larger graph serves it, so many runs after the last capture, which stops the lane.
  static constexpr int64_t kRunsACapture = 512;

  // The graph for these sizes, or null. Called once for every run.
  Kept* get(const Key& key) {
    ++runs_;
    const auto found = graphs_.find(key);
    return found == graphs_.end() ? nullptr : use(found->second);
  }

  // The smallest graph that serves these sizes, too, at little cost, or null. A key begins with tokens and sequences.
  Kept* getLarger(const Key& key) {
    const int64_t most = key[0] + largestFiller(key[0]);
    for (auto found = graphs_.lower_bound(key); found != graphs_.end() && found->first[0] <= most; ++found) {
      if (holds(found->first, key)) return use(found->second);
    }
    return nullptr;
  }

  // Whether these sizes are worth a capture: they came before, and there is room. `is_served`: by a larger graph.
  bool isWorth(const Key& key, bool is_served) {
    if (graphs_.size() >= kMostGraphs && runs_ - graphs_.at(order_.front()).used <= kIdleRuns) return false;
    if (seen_.size() >= kMostSeen && seen_.count(key) == 0) seen_.clear();
    return ++seen_[key] >= kComes && !(is_served && runs_ - last_put_ < kRunsACapture);
  }

  void put(const Key& key, std::unique_ptr<Kept> graph) {
    if (graphs_.size() >= kMostGraphs) {
      graphs_.erase(order_.front());
      order_.pop_front();
    }
    last_put_ = runs_;
    order_.push_back(key);
    graphs_[key] = {std::move(graph), runs_, std::prev(order_.end())};
    seen_.erase(key);
  }

  void clear() {
    graphs_.clear();
    order_.clear();
  }

 private:
  // Whether a graph has at least as many sequences, and the rest of the key.
  static bool holds(const Key& graph, const Key& key) {
    return graph[1] >= key[1] && std::equal(graph.begin() + 2, graph.end(), key.begin() + 2);
  }

  struct Entry {
    std::unique_ptr<Kept> graph;
    int64_t used;
    typename std::list<Key>::iterator place;
  };

  Kept* use(Entry& entry) {
    order_.splice(order_.end(), order_, entry.place);
    entry.used = runs_;
    return entry.graph.get();
  }

  std::map<Key, Entry> graphs_;
  std::list<Key> order_;  // least recently used first
  std::map<Key, int> seen_;
  int64_t runs_ = 0, last_put_ = 0;
};

}  // namespace padfree::engine
